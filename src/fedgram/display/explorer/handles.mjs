// Handles that stretch and turn an ellipse, with the pointer or the keyboard.

import { shape, update } from "./plots.mjs";

const LEAST = 4; // pixels; a shorter axis could not be grabbed again
const TURN_DISTANCE = 20; // pixels between the end of the long axis and the handle that turns it

/** I + (f - 1) e eᵀ for the unit vector e at an angle. */
function stretch(angle, f) {
  const [x, y] = [Math.cos(angle), Math.sin(angle)];
  return [1 + (f - 1) * x * x, (f - 1) * x * y, (f - 1) * x * y, 1 + (f - 1) * y * y];
}

function turn(angle) {
  return [Math.cos(angle), -Math.sin(angle), Math.sin(angle), Math.cos(angle)];
}

/**
 * Call `move(event)` while a pointer that went down on a node moves, and `end()` after it. `begin(event)`
 * comes first and may return false to ignore the pointer.
 */
export function onDrag(node, { begin, move, end }) {
  node.addEventListener("pointerdown", (event) => {
    if (event.button > 0 || begin(event) === false) return;
    event.preventDefault();
    event.stopPropagation();
    node.setPointerCapture(event.pointerId);
    const stop = () => {
      node.removeEventListener("pointermove", move);
      node.removeEventListener("lostpointercapture", stop);
      end();
    };
    node.addEventListener("pointermove", move);
    node.addEventListener("lostpointercapture", stop);
  });
}

/** `transform(K)` receives the map since the drag began, in pixels; `begin()` and `end()` bracket it. */
export class Handles {
  constructor(panel, name, { begin, transform, end }) {
    this.panel = panel;
    this.group = panel.layer("handles", panel.overlay);
    this.turnLine = shape("line", { class: "turn-line" });
    this.group.append(this.turnLine);
    const ends = [
      ["long", 1],
      ["long", -1],
      ["short", 1],
      ["short", -1],
    ];
    this.nodes = ends.map(([axis, side]) => ({ axis, side, node: this.handle(`Stretch ${name}`, "stretch") }));
    this.turn = this.handle(`Turn ${name}`, "turn");
    for (const { axis, side, node } of this.nodes) {
      this.listen(node, { begin, end, transform }, (at, origin) => this.stretchTo(axis, side, at, origin), (key) =>
        stretch(this.angleOf(axis), key > 0 ? 1.05 : 1 / 1.05),
      );
    }
    this.listen(this.turn, { begin, end, transform }, (at, origin) => this.turnTo(at, origin), (key) =>
      turn((-key * 3 * Math.PI) / 180),
    );
  }

  /** Centers of the visible knobs in pixels. */
  spots() {
    return this.group.style.display === "none" ? [] : this.places;
  }

  handle(label, kind) {
    const node = shape("g", { class: `handle ${kind}`, tabindex: 0, role: "button", "aria-label": label });
    node.append(shape("circle", { class: "hit", r: 14 }), shape("circle", { class: "knob", r: 5 }));
    this.group.append(node);
    return node;
  }

  listen(node, { begin, transform, end }, map, keyMap) {
    let origin = null;
    onDrag(node, {
      begin: () => {
        begin();
        node.focus({ preventScroll: true });
        origin = { ...this.ellipse, center: this.center, turnAngle: this.turnAngle };
      },
      move: (event) => transform(map(this.panel.locate(event), origin)),
      end,
    });
    node.addEventListener("keydown", (event) => {
      const key = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
      if (!key) return;
      event.preventDefault();
      event.stopPropagation();
      begin();
      transform(keyMap(key));
      end();
    });
  }

  angleOf(axis, ellipse = this.ellipse) {
    return ellipse.angle + (axis === "short" ? Math.PI / 2 : 0);
  }

  stretchTo(axis, side, [x, y], origin) {
    const angle = this.angleOf(axis, origin);
    const along = side * ((x - origin.center[0]) * Math.cos(angle) + (y - origin.center[1]) * Math.sin(angle));
    return stretch(angle, Math.max(along, LEAST) / Math.max(origin[axis], 0.5));
  }

  turnTo([x, y], origin) {
    return turn(Math.atan2(y - origin.center[1], x - origin.center[0]) - origin.turnAngle);
  }

  /** Place the handles around an ellipse in pixels; `isLine` leaves those along the axis. */
  place(center, ellipse, isLine = false) {
    this.center = center;
    this.ellipse = ellipse;
    this.places = [];
    for (const { axis, side, node } of this.nodes) {
      const angle = this.angleOf(axis);
      const length = side * ellipse[axis];
      const at = [center[0] + length * Math.cos(angle), center[1] + length * Math.sin(angle)];
      update(node, { transform: `translate(${at[0].toFixed(1)} ${at[1].toFixed(1)})` });
      const isShown = !(isLine && axis === "short");
      node.style.display = isShown ? "" : "none";
      if (isShown) this.places.push(at);
    }
    // An ellipse has two ends: stay at the one near the last place, so that a turn never jumps.
    const isNear = Math.cos(ellipse.angle - (this.turnAngle ?? -Math.PI / 4)) >= 0;
    this.turnAngle = ellipse.angle + (isNear ? 0 : Math.PI);
    const tip = ellipse.long + TURN_DISTANCE;
    const [c, s] = [Math.cos(this.turnAngle), Math.sin(this.turnAngle)];
    const end = [center[0] + tip * c, center[1] + tip * s];
    const from = [center[0] + ellipse.long * c, center[1] + ellipse.long * s];
    update(this.turn, { transform: `translate(${end[0].toFixed(1)} ${end[1].toFixed(1)})` });
    update(this.turnLine, { x1: from[0], y1: from[1], x2: end[0], y2: end[1] });
    if (!isLine) this.places.push(end);
    this.turn.style.display = this.turnLine.style.display = isLine ? "none" : "";
  }
}
