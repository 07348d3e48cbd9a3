// The panel of target space: each client's mean and covariance, to move, stretch and turn.

import { combine, congruent, dot } from "./matrices.mjs";
import { Handles, onDrag } from "./handles.mjs";
import {
  LINE_HALF_HEIGHT, Panel, clientColor, clientDash, labelSpots, placeLabels, projectMatrix, setText, shape, show,
  update,
} from "./plots.mjs";
import { editClient, planeMap, removeClient } from "./state.mjs";

const KEY_STEP = 8; // pixels per press of an arrow key

export class TargetPanel extends Panel {
  constructor(app, id) {
    super("Target space: one ellipse per client", id);
    this.app = app;
    this.pooled = shape("ellipse", { class: "pooled" });
    this.pooledMean = shape("path", { class: "pooled-mean", d: "M-5 0H5M0 -5V5" });
    this.clientLayer = this.layer("clients");
    this.content.append(this.pooled, this.pooledMean);
    this.meanLayer = this.layer("means"); // above all ellipses, so that every client can be grabbed
    this.labelLayer = this.layer("labels", this.overlay);
    this.handles = new Handles(this, "the selected client", {
      begin: () => {
        this.origin = this.client();
        app.beginDrag(this);
      },
      transform: (map) => this.transform(map),
      end: () => app.endDrag(),
    });
    this.clients = [];
  }

  client(m = this.app.state.selected) {
    return this.app.state.moments.clients[m];
  }

  /** Apply a map, in pixels, to the covariance that the selected client had when the drag began. */
  transform(map) {
    const { state } = this.app;
    const size = state.moments.targets.length;
    const whole = planeMap(map, this.frame.unit, state.plane.directions, size);
    editClient(state, state.selected, { covariance: congruent(whole, this.origin.covariance, size) });
    this.app.change();
  }

  /** Move a client by pixels from a mean. */
  moveBy(m, mean, [x, y]) {
    const { state } = this.app;
    const [u, v] = state.plane.directions;
    let moved = combine(1, mean, x * this.frame.unit[0], u);
    if (v) moved = combine(1, moved, -y * this.frame.unit[1], v);
    editClient(state, m, { mean: moved });
    this.app.change();
  }

  addNode(m) {
    const outline = shape("ellipse", { class: "outline" });
    const hatch = shape("ellipse", { class: "hatch", fill: `url(#${this.id}-hatch)` });
    const title = shape("title");
    const group = shape("g", { class: "client", tabindex: 0, role: "button" }, title, outline, hatch);
    const mean = shape("g", { class: "mean" }, shape("circle", { class: "hit", r: 11 }), shape("circle", { r: 4 }));
    const label = shape("text", { class: "name" });
    group.addEventListener("focus", () => this.app.select(m));
    group.addEventListener("keydown", (event) => this.onKey(event, m));
    for (const node of [group, mean]) {
      this.moveWithPointer(node, m, group);
      node.addEventListener("pointerenter", () => this.app.highlight(m));
      node.addEventListener("pointerleave", () => this.app.highlight(null));
    }
    this.clientLayer.append(group);
    this.meanLayer.append(mean);
    this.labelLayer.append(label);
    return { group, outline, hatch, mean, title, label };
  }

  moveWithPointer(node, m, group) {
    let from = null;
    onDrag(node, {
      begin: (event) => {
        this.app.select(m);
        this.app.beginDrag(this);
        group.focus({ preventScroll: true });
        from = { at: this.locate(event), mean: this.client(m).mean };
      },
      move: (event) => {
        const [x, y] = this.locate(event);
        this.moveBy(m, from.mean, [x - from.at[0], y - from.at[1]]);
      },
      end: () => this.app.endDrag(),
    });
  }

  onKey(event, m) {
    const far = event.shiftKey ? 5 : 1;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const scale = { "+": 1.05, "=": 1.05, "-": 1 / 1.05 }[event.key];
    const angle = { "[": -3, "]": 3 }[event.key];
    if (step) {
      this.moveBy(m, this.client(m).mean, step.map((value) => value * KEY_STEP * far));
    } else if (scale || angle) {
      const radians = (-(angle ?? 0) * Math.PI) / 180;
      const [c, s, f] = [Math.cos(radians), Math.sin(radians), scale ?? 1];
      this.origin = this.client(m);
      this.transform([f * c, -f * s, f * s, f * c]);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.app.attempt(() => removeClient(this.app.state, m));
      this.clients[this.app.state.selected]?.group.focus();
    } else return;
    event.preventDefault();
    this.app.settle();
  }

  /** Bounds of all ellipses in the plane. */
  bounds() {
    const { state, result } = this.app;
    const all = [...state.moments.clients, result.observed];
    const [low, high] = [[Infinity, Infinity], [-Infinity, -Infinity]];
    for (const { mean, covariance } of all) {
      const variances = projectMatrix(covariance, state.plane.directions);
      [0, 1].forEach((k) => {
        const center = state.plane.directions[k] ? dot(state.plane.directions[k], mean) : 0;
        const reach = Math.sqrt(Math.max(variances[2 * k], 0));
        low[k] = Math.min(low[k], center - reach);
        high[k] = Math.max(high[k], center + reach);
      });
    }
    return { low, high };
  }

  /** Center in pixels of client m, or of the pooled data for m = M; clients with one target get a lane each. */
  centerOf(mean, m) {
    const [u, v] = this.app.state.plane.directions;
    const [x, y] = this.toPixels(dot(u, mean), v ? dot(v, mean) : 0);
    const lanes = this.app.state.moments.clients.length + 1;
    return v ? [x, y] : [x, this.box.y + ((m + 0.5) / lanes) * this.box.height];
  }

  shapeOf(covariance) {
    const projected = projectMatrix(covariance, this.app.state.plane.directions);
    if (!this.isLine) return this.ellipse(projected);
    return { long: Math.sqrt(projected[0]) / this.frame.unit[0], short: LINE_HALF_HEIGHT, angle: 0 };
  }

  draw() {
    const { state, result, highlighted } = this.app;
    const { clients, targets } = state.moments;
    while (this.clients.length < clients.length) this.clients.push(this.addNode(this.clients.length));
    while (this.clients.length > clients.length) {
      const { group, mean, label } = this.clients.pop();
      for (const each of [group, mean, label]) each.remove();
    }
    setText(this.xLabel, state.plane.labels[0]);
    setText(this.yLabel, state.plane.labels[1] ?? "");
    const labels = clients.map((client, m) => this.drawClient(client, m, highlighted));
    const center = this.centerOf(result.observed.mean, clients.length);
    this.placeEllipse(this.pooled, center, this.shapeOf(result.observed.covariance));
    update(this.pooledMean, { transform: `translate(${center[0].toFixed(1)} ${center[1].toFixed(1)})` });
    const selected = clients[state.selected];
    this.handles.place(this.centerOf(selected.mean, state.selected), this.shapeOf(selected.covariance), this.isLine);
    labels.sort((a, b) => b.rank - a.rank);
    placeLabels(labels, this.box, this.handles);
    const what = targets.length > 1 ? `${state.plane.labels[0]} against ${state.plane.labels[1]}` : targets[0];
    update(this.svg, { "aria-label": `Target space, ${what}: one ellipse for each of ${clients.length} clients` });
  }

  drawClient(client, m, highlighted) {
    const { state, result } = this.app;
    const node = this.clients[m];
    const center = this.centerOf(client.mean, m);
    const ellipse = this.shapeOf(client.covariance);
    const isSelected = m === state.selected;
    const isActive = result.clients[m].active;
    for (const each of [node.outline, node.hatch]) this.placeEllipse(each, center, ellipse);
    update(node.outline, { stroke: clientColor(m), fill: clientColor(m), "stroke-dasharray": clientDash(m) });
    update(node.hatch, { visibility: isActive ? "hidden" : "visible" });
    const [x, y] = center.map((value) => value.toFixed(2));
    update(node.mean, { transform: `translate(${x} ${y})`, fill: clientColor(m) });
    const means = Array.from(client.mean, (value, i) => `${state.moments.targets[i]} ${show(value)}`).join(", ");
    const reason = isActive ? "" : ` ${this.app.reasonOf(m)}`;
    update(node.group, {
      "aria-label": `${client.name}: mean ${means}.${reason} Arrow keys move it.`,
      "aria-pressed": String(isSelected),
      class: `client${isSelected ? " selected" : ""}${m === highlighted ? " highlighted" : ""}`,
    });
    setText(node.title, `${client.name}${reason && `.${reason}`}`);
    const away = Math.hypot(center[0] - this.width / 2, center[1] - this.height / 2);
    const rank = isSelected ? 2e6 : m === highlighted ? 1e6 : away;
    const spots = labelSpots(center[0], center[1], 8);
    return { node: node.label, text: client.name, spots, rank, isForced: isSelected };
  }
}
