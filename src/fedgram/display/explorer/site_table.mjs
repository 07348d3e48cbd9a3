// The table of effects: what each site notices, in the targets' units.

import { clientColor, element, percent, setText, show } from "./plots.mjs";

// Columns of numbers: how the constant is set, which effect, header.
const COLUMNS = [
  ["shared", "error", "shared bias"],
  ["private", "error", "private bias"],
  ["corrected", "error", "correction + offset"],
  ["shared", "difference", "shared bias"],
  ["private", "difference", "private bias"],
];
const EXPLANATION =
  "On a site's own rows, when training has converged. Mean error: prediction minus target. With a shared bias every " +
  "site predicts around the pooled mean; a private bias removes that error. The full correction with the feature " +
  "offset predicts like centralized training, so its difference is 0.";

export class SiteTable {
  constructor(app) {
    this.app = app;
    this.target = 0;
    this.select = element("select", { "aria-label": "Target" });
    this.select.addEventListener("change", () => {
      this.target = Number(this.select.value);
      app.schedule();
    });
    this.body = element("tbody");
    const group = (text, span) => element("th", { scope: "colgroup", colspan: span, class: "group" }, text);
    const groups = element("tr", {}, element("td"), element("td"), element("td"));
    groups.append(group("Mean error", 3), group("Typical (RMS) difference from centralized", 2));
    const heads = ["Site", "Weight", "Share of gap", ...COLUMNS.map(([, , label]) => label)];
    const cells = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
    this.node = element(
      "section",
      { class: "card sites" },
      element("h2", {}, "What each site notices in ", this.select),
      element("div", { class: "scroll" }, element("table", {}, element("thead", {}, groups, cells), this.body)),
      element("p", { class: "hint" }, EXPLANATION),
    );
    this.rows = [];
  }

  /** Write every `stride`-th row from `first` on: while dragging, a frame has time for some of them. */
  draw(first = 0, stride = 1) {
    const { state, result, effects } = this.app;
    const { clients, targets } = state.moments;
    this.node.hidden = effects === null;
    if (!effects) return;
    this.listTargets(targets, effects);
    while (this.rows.length < clients.length) this.rows.push(this.addRow(this.rows.length));
    while (this.rows.length > clients.length) this.rows.pop().node.remove();
    const valueOf = (m, [way, effect]) => effects[m][way][effect][this.target];
    const all = clients.flatMap((_, m) => COLUMNS.map((column) => Math.abs(valueOf(m, column))));
    const largest = Math.max(...all, 1e-300);
    clients.forEach((client, m) => {
      if (m % stride !== first) return;
      const { node, name, numbers, bars, swatch } = this.rows[m];
      node.classList.toggle("selected", m === state.selected);
      swatch.classList.toggle("hatched", !result.clients[m].active);
      setText(name, client.name);
      setText(numbers[0], percent(result.pooled.weights[m]));
      setText(numbers[1], percent(result.gap.clientShares[m]));
      COLUMNS.forEach((column, k) => {
        const value = valueOf(m, column);
        setText(numbers[k + 2], show(Math.abs(value) < 1e-12 * largest ? 0 : value));
        bars[k].style.transform = `scaleX(${(Math.abs(value) / largest).toFixed(3)})`;
      });
    });
  }

  /** List new targets, and show the one with the largest error. */
  listTargets(targets, effects) {
    if (this.listed === targets) return;
    this.listed = targets;
    this.select.replaceChildren(...targets.map((name, i) => element("option", { value: i }, name)));
    const largest = targets.map((_, i) => Math.max(...effects.map(({ shared }) => Math.abs(shared.error[i]))));
    this.target = largest.indexOf(Math.max(...largest));
    this.select.value = String(this.target);
  }

  addRow(m) {
    const swatch = element("span", { class: "swatch" });
    swatch.style.backgroundColor = clientColor(m);
    const name = element("span");
    const numbers = Array.from({ length: 2 + COLUMNS.length }, () => element("span", { class: "number" }));
    const bars = COLUMNS.map(() => element("i"));
    const cells = numbers.map((number, k) =>
      k < 2 ? element("td", {}, number) : element("td", { class: "error" }, number, bars[k - 2]),
    );
    const pick = element("button", { type: "button", class: "pick", on: { click: () => this.app.select(m) } });
    pick.append(swatch, name);
    const node = element("tr", {}, element("th", { scope: "row" }, pick), ...cells);
    node.addEventListener("pointerenter", () => this.app.highlight(m));
    node.addEventListener("pointerleave", () => this.app.highlight(null));
    this.body.append(node);
    return { node, name, numbers, bars, swatch };
  }
}
