// Bars of the gap: three causes, with shares and sampling intervals.

import { percent, setText, shape, show, update } from "./plots.mjs";

const CAUSES = ["Client means differ", "Client covariances differ", "Heads are averaged, not Grams"];

/** Three bars, one per cause of the gap, with their shares, intervals, and ghosts without the correction. */
export class Bars {
  constructor() {
    this.svg = shape("svg", { class: "bars", role: "img" });
    this.rows = CAUSES.map((cause) => {
      const row = {
        label: shape("text", { class: "bar-label" }),
        ghost: shape("rect", { class: "ghost", height: 14, rx: 2 }),
        bar: shape("rect", { class: "bar", height: 14, rx: 2 }),
        band: shape("rect", { class: "band", height: 14 }),
        whisker: shape("path", { class: "whisker" }),
        value: shape("text", { class: "bar-value" }),
      };
      row.label.textContent = cause;
      this.svg.append(row.ghost, row.bar, row.band, row.whisker, row.label, row.value);
      return row;
    });
    this.zero = shape("line", { class: "zero" });
    this.svg.append(this.zero);
    this.resize(290);
  }

  resize(width) {
    this.width = width;
    update(this.svg, { viewBox: `0 0 ${width} 150`, width, height: 150 });
  }

  /** traces, shares and intervals (or null) of the three causes; `ghosts` are the traces at γ = 0. */
  draw(gap, ghosts, intervals) {
    const ends = [...gap.traces, ...ghosts, ...(intervals ?? []).flat(), 0];
    const [low, high] = [Math.min(...ends), Math.max(...ends) || 1];
    const room = this.width - 64; // for the value right of the longest bar
    const toX = (value) => 1 + ((value - low) / (high - low)) * room;
    update(this.zero, { x1: toX(0), x2: toX(0), y1: 18, y2: 128 });
    this.rows.forEach((row, k) => {
      const top = 18 + 48 * k;
      const value = gap.isNegligible ? 0 : gap.traces[k];
      update(row.label, { x: 1 + Math.max(toX(0) - 1, 0), y: top - 4 });
      placeBar(row.bar, toX(0), toX(value), top);
      placeBar(row.ghost, toX(0), toX(ghosts[k]), top);
      const span = intervals?.[k];
      update(row.band, { visibility: span ? "visible" : "hidden" });
      update(row.whisker, { visibility: span ? "visible" : "hidden" });
      let end = Math.max(toX(value), toX(ghosts[k]), toX(0));
      if (span) {
        const [from, to] = span.map(toX);
        update(row.band, { x: from, width: Math.max(to - from, 1), y: top });
        update(row.whisker, { d: `M${from} ${top + 3}v8m0-4H${to}m0-4v8` });
        end = Math.max(end, to);
      }
      const text = gap.isNegligible ? "0" : gap.isOneSided ? percent(gap.shares[k]) : show(gap.traces[k]);
      update(row.value, { x: end + 6, y: top + 12 });
      setText(row.value, text);
    });
    const parts = this.rows.map((row, k) => `${CAUSES[k]}: ${row.value.textContent}`);
    update(this.svg, { "aria-label": `Causes of the gap. ${parts.join(". ")}.` });
  }
}

function placeBar(node, from, to, top) {
  update(node, { x: Math.min(from, to), width: Math.max(Math.abs(to - from), 0.5), y: top });
}
