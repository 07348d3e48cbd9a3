// SVG panels: covariances in target space, Gram ellipses, and the bars of the gap.

import { dot } from "./matrices.mjs";

export const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colors without black and blue, which show pooled results and the barycenter.
const CLIENT_COLORS = ["#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#999999"];
// Further clients repeat the colors with another dash. Long ones: every dash costs time in each frame.
const DASHES = ["", "14 5", "4 5"];

export const LINE_HALF_HEIGHT = 8; // pixels; half the height of a bar when there is one target

/** Create an element with attributes and children; `on` holds event listeners. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children);
  return node;
}

/** Set attributes that changed. Writing an equal value would still cost a style update. */
export function update(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = typeof value === "number" ? String(Math.round(value * 100) / 100) : value;
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Change the text of a node; a text that is there is changed in place, which is cheaper to lay out. */
export function setText(node, text) {
  if (node.textContent === text) return;
  const own = node.firstChild;
  if (own instanceof Text && node.childNodes.length === 1) own.data = text;
  else node.textContent = text;
}

export function clientColor(m) {
  return CLIENT_COLORS[m % CLIENT_COLORS.length];
}

export function clientDash(m) {
  return DASHES[Math.floor(m / CLIENT_COLORS.length) % DASHES.length];
}

/** A number with three significant digits and a true minus sign. */
export function show(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const isPlain = Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5;
  const text = isPlain ? String(Number(value.toPrecision(digits))) : value.toExponential(1);
  return text.replace(/-/g, "−");
}

/** A fraction as percents: two significant digits below 10%, else whole percents. */
export function percent(fraction) {
  const value = 100 * fraction;
  if (!Number.isFinite(value)) return "–";
  const text = Math.abs(value) >= 9.95 ? value.toFixed(0) : String(Number(value.toPrecision(2)));
  return `${Math.abs(value) < 0.005 ? "0" : text.replace("-", "−")}%`;
}

/** Semi-axes and angle of the ellipse {Σ^(1/2) u : |u| = 1} of [[a, b], [b, c]]. */
function ellipseOf(a, b, c) {
  const mid = (a + c) / 2;
  const half = Math.hypot((a - c) / 2, b);
  return {
    long: Math.sqrt(Math.max(mid + half, 0)),
    short: Math.sqrt(Math.max(mid - half, 0)),
    angle: 0.5 * Math.atan2(2 * b, a - c),
  };
}

/** Round steps (1, 2 or 5 times a power of ten) that divide a length into about `count` parts. */
function tickStep(length, count) {
  const raw = length / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * ([1, 2, 5].find((step) => step * power >= raw) ?? 10);
}

/**
 * A panel with axes. `frame` maps data in the plane to pixels: x = width/2 + (X - center[0]) / unit[0], and y
 * downward. Shapes have equal units on both axes unless the data differ too much in scale.
 */
export class Panel {
  constructor(label, id) {
    this.id = id;
    this.margin = { left: 46, right: 10, top: 10, bottom: 38 };
    this.axes = shape("g", { class: "axes" });
    const clip = shape("clipPath", { id: `${id}-clip` }, (this.clip = shape("rect")));
    const lines = shape("path", { d: "M0 6 L6 0 M-1 1 L1 -1 M5 7 L7 5", class: "hatch-line" });
    const box = { width: 6, height: 6, patternUnits: "userSpaceOnUse" };
    const hatch = shape("pattern", { id: `${id}-hatch`, ...box }, lines);
    this.content = shape("g", { "clip-path": `url(#${id}-clip)` });
    this.overlay = shape("g");
    this.svg = shape("svg", { class: "panel", role: "group", "aria-label": label });
    this.svg.append(shape("defs", {}, clip, hatch), this.axes, this.content, this.overlay);
    this.xLabel = shape("text", { class: "axis-label", "text-anchor": "middle" });
    this.yLabel = shape("text", { class: "axis-label", "text-anchor": "middle" });
    this.svg.append(this.xLabel, this.yLabel);
    this.resize(460, 420);
  }

  layer(name, parent = this.content) {
    const group = shape("g", { class: name });
    parent.append(group);
    return group;
  }

  resize(width, height) {
    const { left, right, top, bottom } = this.margin;
    this.width = width;
    this.height = height;
    this.box = { x: left, y: top, width: width - left - right, height: height - top - bottom };
    update(this.svg, { viewBox: `0 0 ${width} ${height}`, width, height });
    update(this.clip, { ...this.box });
    update(this.xLabel, { x: left + this.box.width / 2, y: height - 6 });
    const middle = top + this.box.height / 2;
    update(this.yLabel, { x: 12, y: middle, transform: `rotate(-90 12 ${middle})` });
  }

  /** Fit bounds { low: [x, y], high: [x, y] } in the box; equal units unless they differ more than fourfold. */
  fit({ low, high }) {
    const span = [0, 1].map((k) => Math.max(high[k] - low[k], 1e-12) * 1.16);
    const unit = [span[0] / this.box.width, span[1] / this.box.height];
    const isEqual = Math.max(...unit) <= 4 * Math.min(...unit);
    const common = Math.max(...unit);
    return {
      center: [0, 1].map((k) => (low[k] + high[k]) / 2),
      unit: isEqual ? [common, common] : unit,
    };
  }

  setFrame(frame) {
    this.frame = frame;
    this.drawAxes();
  }

  toPixels(x, y) {
    const { center, unit } = this.frame;
    return [
      this.box.x + this.box.width / 2 + (x - center[0]) / unit[0],
      this.box.y + this.box.height / 2 - (y - center[1]) / unit[1],
    ];
  }

  /** Measure where the SVG is. Reading this for every move of a pointer would lay out the page each time. */
  measure() {
    this.onScreen = this.svg.getBoundingClientRect();
  }

  /** Pixel position of an event in the coordinates of the SVG, where it was last measured. */
  locate(event) {
    return [
      ((event.clientX - this.onScreen.left) * this.width) / this.onScreen.width,
      ((event.clientY - this.onScreen.top) * this.height) / this.onScreen.height,
    ];
  }

  /** Semi-axes and angle in pixels of a covariance or Gram [a, b, c] in the plane. */
  ellipse([a, b, c]) {
    const [x, y] = this.frame.unit;
    return ellipseOf(a / (x * x), -b / (x * y), c / (y * y));
  }

  /** Place an SVG ellipse; a flat one stays visible. */
  placeEllipse(node, [x, y], { long, short, angle }) {
    const degrees = (angle * 180) / Math.PI;
    update(node, { rx: Math.max(long, 0.8), ry: Math.max(short, 0.8) });
    update(node, { transform: `translate(${x.toFixed(2)} ${y.toFixed(2)}) rotate(${degrees.toFixed(3)})` });
  }

  drawAxes() {
    const { box, frame } = this;
    const marks = [];
    const step = tickStep(Math.min(box.width * frame.unit[0], box.height * frame.unit[1]), 4);
    const isEqual = frame.unit[0] === frame.unit[1];
    for (const k of [0, 1]) {
      const half = ((k === 0 ? box.width : box.height) * frame.unit[k]) / 2;
      if (k === 1 && this.isLine) continue;
      const stride = isEqual ? step : tickStep(2 * half, 4);
      const first = Math.ceil((frame.center[k] - half) / stride);
      for (let i = first; i * stride <= frame.center[k] + half; i++) {
        const value = i * stride;
        const [x, y] = this.toPixels(k === 0 ? value : 0, k === 1 ? value : 0);
        const line =
          k === 0
            ? { x1: x, x2: x, y1: box.y, y2: box.y + box.height }
            : { x1: box.x, x2: box.x + box.width, y1: y, y2: y };
        marks.push(shape("line", { ...line, class: i === 0 ? "zero" : "grid" }));
        const place =
          k === 0
            ? { x, y: box.y + box.height + 14, "text-anchor": "middle" }
            : { x: box.x - 6, y: y + 4, "text-anchor": "end" };
        const label = shape("text", { ...place, class: "tick" });
        label.textContent = show(Number(value.toPrecision(6)), 6);
        marks.push(label);
      }
    }
    this.axes.replaceChildren(...marks);
  }
}

/** Places for a label around a point: right, left, above and below; `side` is where the text extends to. */
export function labelSpots(x, y, clear) {
  return [
    { x: x + clear, y: y + 4, side: 1 },
    { x: x - clear, y: y + 4, side: -1 },
    { x, y: y - clear - 2, side: 0 },
    { x, y: y + clear + 12, side: 0 },
  ];
}

/** Put each label on its first spot that is free of others and of handles, or hide it; the first choose first. */
export function placeLabels(labels, box, handles) {
  const taken = handles.spots().map(([x, y]) => ({ left: x - 6, right: x + 6, top: y - 6, bottom: y + 6 }));
  for (const { node, text, spots, isForced = false } of labels) {
    const width = 6.6 * text.length + 4; // pixels, for 12 px letters
    const areaOf = ({ x, y, side }) => {
      const left = x - (width * (1 - side)) / 2;
      return { left, right: left + width, top: y - 12, bottom: y + 3 };
    };
    const isFree = (area) =>
      area.left >= box.x &&
      area.right <= box.x + box.width &&
      area.top >= box.y &&
      area.bottom <= box.y + box.height &&
      taken.every((o) => area.right < o.left || area.left > o.right || area.bottom < o.top || area.top > o.bottom);
    const spot = spots.find((each) => isFree(areaOf(each))) ?? (isForced ? spots[0] : null);
    update(node, { visibility: spot ? "visible" : "hidden" });
    if (!spot) continue;
    taken.push(areaOf(spot));
    const place = `translate(${spot.x.toFixed(1)} ${spot.y.toFixed(1)})`; // moving x and y would lay out the text
    update(node, { transform: place, "text-anchor": ["end", "middle", "start"][spot.side + 1] });
    setText(node, text);
  }
}

/** Outline of a band between two radii per angle, as a path with a hole. */
export function bandPath(panel, low, high) {
  const ring = (radii) => {
    const points = radii.map((radius, k) => {
      const angle = (2 * Math.PI * k) / radii.length;
      const [x, y] = panel.toPixels(radius * Math.cos(angle), radius * Math.sin(angle));
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    return `M${points.join("L")}Z`;
  };
  return ring(high) + ring(low);
}

/** Radius of the ellipse of [a, b, c] along an angle: 1 / sqrt(uᵀ P⁻¹ u). */
export function radiusAt([a, b, c], angle) {
  const [x, y] = [Math.cos(angle), Math.sin(angle)];
  const determinant = a * c - b * b;
  return Math.sqrt(Math.max(determinant, 0) / (c * x * x - 2 * b * x * y + a * y * y));
}

/** A symmetric matrix (C x C) in the plane of two directions: [uᵀSu, uᵀSv, vᵀSv]; [S, 0, 0] for one. */
export function projectMatrix(matrix, [u, v]) {
  const n = u.length;
  const image = (w) => Float64Array.from({ length: n }, (_, i) => dot(matrix.subarray(i * n, (i + 1) * n), w));
  const first = image(u);
  return v ? [dot(u, first), dot(v, first), dot(v, image(v))] : [dot(u, first), 0, 0];
}
