// The panel of Gram ellipses: clients, barycenter, within, centralized, and the shared Gram round by round.

import { combine, congruent, gram } from "./matrices.mjs";
import { Handles } from "./handles.mjs";
import {
  LINE_HALF_HEIGHT, Panel, bandPath, clientColor, clientDash, labelSpots, placeLabels, projectMatrix, radiusAt,
  setText, shape, update,
} from "./plots.mjs";
import { planeMap } from "./state.mjs";

const BAND_ANGLES = 72;
const KINDS = ["within", "centralized", "barycenter"];

export class GramPanel extends Panel {
  constructor(app, id) {
    super("Gram ellipses", id);
    this.app = app;
    this.band = shape("path", { class: "band", "fill-rule": "evenodd" });
    this.content.append(this.band);
    this.clientLayer = this.layer("clients");
    this.results = Object.fromEntries(KINDS.map((kind) => [kind, shape("ellipse", { class: kind })]));
    this.trailLayer = this.layer("trail");
    this.start = shape("ellipse", { class: "start" });
    this.shared = shape("ellipse", { class: "shared" });
    this.content.append(...Object.values(this.results), this.start, this.shared);
    this.labelLayer = this.layer("labels", this.overlay);
    this.labels = Object.fromEntries(
      [...KINDS, "shared"].map((kind) => {
        const label = shape("text", { class: `name ${kind}-name` });
        this.labelLayer.append(label);
        return [kind, label];
      }),
    );
    this.handles = new Handles(this, "the start", {
      begin: () => {
        this.origin = app.state.start;
        app.beginDrag(this);
      },
      transform: (map) => this.transform(map),
      end: () => app.endDrag(),
    });
    this.clients = [];
    this.trail = [];
  }

  transform(map) {
    const { state } = this.app;
    const size = state.moments.targets.length;
    const whole = planeMap(map, this.frame.unit, state.plane.directions, size);
    state.start = congruent(whole, this.origin, size);
    state.preset = null;
    this.app.change();
  }

  project(matrix) {
    return projectMatrix(matrix, this.app.state.plane.directions);
  }

  grams() {
    const { state, result } = this.app;
    const all = [...result.clients.map((client) => client.gram), result.within, result.centralized, state.start];
    return result.barycenter ? [...all, result.barycenter.gram] : all;
  }

  bounds() {
    const high = [1e-9, 1e-9];
    for (const matrix of this.grams()) {
      const [a, , c] = this.project(matrix);
      high[0] = Math.max(high[0], Math.sqrt(Math.max(a, 0)));
      high[1] = Math.max(high[1], Math.sqrt(Math.max(c, 0)));
    }
    return { low: high.map((value) => -value), high };
  }

  /** Place an ellipse; with one target each Gram is a bar in its own lane. */
  put(node, matrix, lane) {
    const projected = this.project(matrix);
    const center = this.toPixels(0, 0);
    if (!this.isLine) {
      const ellipse = this.ellipse(projected);
      this.placeEllipse(node, center, ellipse);
      return { center, ellipse };
    }
    const lanes = this.app.state.moments.clients.length + KINDS.length + 1;
    center[1] = this.box.y + ((lane + 0.5) / lanes) * this.box.height;
    const ellipse = { long: Math.sqrt(projected[0]) / this.frame.unit[0], short: LINE_HALF_HEIGHT, angle: 0 };
    this.placeEllipse(node, center, ellipse);
    return { center, ellipse };
  }

  draw() {
    const { state, result, hidden } = this.app;
    const count = state.moments.clients.length;
    setText(this.xLabel, state.plane.labels[0]);
    setText(this.yLabel, state.plane.labels[1] ?? "");
    const clientLabels = this.drawClients();
    const labels = [];
    KINDS.forEach((kind, k) => {
      const matrix = kind === "barycenter" ? result.barycenter?.gram : result[kind];
      const isShown = Boolean(matrix) && !hidden.has(kind);
      update(this.results[kind], { visibility: isShown ? "visible" : "hidden" });
      update(this.labels[kind], { visibility: "hidden" });
      if (!isShown) return;
      const placed = this.put(this.results[kind], matrix, count + k);
      if (kind !== "within" || this.isLine) labels.unshift(this.labelAt(this.labels[kind], kind, placed));
    });
    labels.push(...this.drawShared(count + KINDS.length));
    placeLabels([...labels, ...clientLabels], this.box, this.handles);
    this.drawBand();
  }

  drawClients() {
    const { state, result, highlighted, hidden } = this.app;
    const { clients } = state.moments;
    while (this.clients.length < clients.length) {
      const m = this.clients.length;
      const outline = shape("ellipse", { class: "outline" });
      const hatch = shape("ellipse", { class: "hatch", fill: `url(#${this.id}-hatch)` });
      const title = shape("title");
      const group = shape("g", { class: "client" }, title, hatch, outline);
      const label = shape("text", { class: "name" });
      group.addEventListener("pointerdown", () => this.app.select(m));
      group.addEventListener("pointerenter", () => this.app.highlight(m));
      group.addEventListener("pointerleave", () => this.app.highlight(null));
      this.clientLayer.append(group);
      this.labelLayer.append(label);
      this.clients.push({ group, outline, hatch, title, label });
    }
    while (this.clients.length > clients.length) {
      const { group, label } = this.clients.pop();
      group.remove();
      label.remove();
    }
    update(this.clientLayer, { visibility: hidden.has("clients") ? "hidden" : "visible" });
    return result.clients.flatMap(({ gram: matrix, active }, m) => {
      const node = this.clients[m];
      const placed = this.put(node.outline, matrix, m);
      this.put(node.hatch, matrix, m);
      update(node.outline, { stroke: clientColor(m), "stroke-dasharray": clientDash(m) });
      update(node.hatch, { visibility: active || hidden.has("clients") ? "hidden" : "visible" });
      const isOn = m === highlighted || m === state.selected;
      update(node.group, { class: `client${isOn ? " selected" : ""}` });
      setText(node.title, active ? clients[m].name : `${clients[m].name}. ${this.app.reasonOf(m)}`);
      update(node.label, { visibility: "hidden" });
      const isNamed = (isOn || this.isLine) && !hidden.has("clients");
      return isNamed ? [this.labelAt(node.label, clients[m].name, placed)] : [];
    });
  }

  /** The shared Gram at its round, its earlier rounds, and its start. */
  drawShared(lane) {
    const { state, result, heads, hidden } = this.app;
    const size = state.moments.targets.length;
    const isShown = !hidden.has("shared");
    const placed = this.put(this.start, state.start, lane);
    this.handles.place(placed.center, placed.ellipse, this.isLine);
    this.handles.group.style.display = isShown ? "" : "none";
    const done = Math.floor(state.position);
    const rounds = isShown && result.barycenter ? Math.min(done, 8) : 0;
    while (this.trail.length < rounds) {
      const node = shape("ellipse", { class: "past" });
      this.trail.push(node);
      this.trailLayer.append(node);
    }
    while (this.trail.length > rounds) this.trail.pop().remove();
    this.trail.forEach((node, k) => {
      const round = done - rounds + k + (done === state.position ? 0 : 1);
      this.put(node, gram(heads[Math.min(round, heads.length - 1)], size), lane);
      update(node, { opacity: 0.15 + (0.35 * (k + 1)) / rounds });
    });
    const isMoving = isShown && result.barycenter && state.position > 0;
    update(this.start, { visibility: isShown ? "visible" : "hidden" });
    update(this.shared, { visibility: isMoving ? "visible" : "hidden" });
    update(this.labels.shared, { visibility: "hidden" });
    if (!isShown) return [];
    if (!isMoving) return [this.labelAt(this.labels.shared, "start", placed)];
    const at = this.put(this.shared, gram(this.sharedHead(), size), lane);
    return [this.labelAt(this.labels.shared, `round ${done}`, at)];
  }

  /** The head between two rounds while it moves. */
  sharedHead() {
    const { state, heads } = this.app;
    const before = Math.min(Math.floor(state.position), heads.length - 1);
    const after = Math.min(before + 1, heads.length - 1);
    const share = state.position - before;
    return combine(1 - share, heads[before], share, heads[after]);
  }

  /** A label above the highest point of an ellipse, or below its lowest; beside the bar for one target. */
  labelAt(node, text, { center, ellipse }) {
    if (this.isLine) {
      const beside = { x: center[0] + ellipse.long + 12, y: center[1] + 4, side: 1 };
      return { node, text, spots: [beside, { x: center[0], y: center[1] + 4, side: 0 }] };
    }
    const [c, s] = [Math.cos(ellipse.angle), Math.sin(ellipse.angle)];
    const top = Math.hypot(ellipse.long * s, ellipse.short * c);
    const across = (c * s * (ellipse.long ** 2 - ellipse.short ** 2)) / Math.max(top, 1e-9);
    const [x, y] = center;
    if (node === this.labels.shared) return { node, text, spots: labelSpots(x - across, y - top, 10) };
    const above = { x: x - across, y: y - top - 6, side: 0 };
    const below = { x: x + across, y: y + top + 15, side: 0 };
    return { node, text, spots: [above, below, ...labelSpots(x - across, y - top, 6)] };
  }

  /** The 95% band of the barycenter's outline. */
  drawBand() {
    const radii = this.app.intervals?.radii;
    const isShown = Boolean(radii && this.app.result.barycenter) && !this.isLine && !this.app.hidden.has("barycenter");
    update(this.band, { visibility: isShown ? "visible" : "hidden" });
    if (!isShown) return;
    const low = radii.map(([from]) => Math.max(from, 0));
    update(this.band, { d: bandPath(this, low, radii.map(([, to]) => to)) });
  }

  /** Radii of a Gram's outline at equally spaced angles, for the band. */
  radiiOf(matrix) {
    if (this.isLine) return [];
    const projected = this.project(matrix);
    return Array.from({ length: BAND_ANGLES }, (_, k) => radiusAt(projected, (2 * Math.PI * k) / BAND_ANGLES));
  }
}
