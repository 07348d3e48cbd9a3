// The selected client as numbers: name, rows, weight, mean and covariance.

import { InputError, covarianceProblem } from "./moments.mjs";
import { element } from "./plots.mjs";
import { editClient } from "./state.mjs";

export class ClientEditor {
  constructor(app) {
    this.app = app;
    this.name = this.input("Name", "text", (text) => this.rename(text));
    this.count = this.input("Rows", "number", (text) => this.setCount(Number(text)));
    this.weight = this.input("Weight", "number", (text) => this.setWeight(Number(text)));
    this.byRows = element("input", { type: "checkbox" });
    this.byRows.addEventListener("change", () => this.followRows(this.byRows.checked));
    this.matrix = element("div", { class: "matrix" });
    const label = (text, field) => element("label", {}, element("span", {}, text), field);
    this.node = element(
      "section",
      { class: "card client-editor" },
      element("h2", {}, "Selected client"),
      element(
        "div",
        { class: "fields" },
        label("Name", this.name),
        label("Rows", this.count),
        label("Weight", this.weight),
      ),
      element("label", { class: "check" }, this.byRows, "Clients count by their rows"),
      element("details", {}, element("summary", {}, "Mean and covariance as numbers"), this.matrix),
    );
    this.cells = [];
  }

  input(label, type, change) {
    const range = type === "number" ? { step: "any", min: 0 } : {};
    const field = element("input", { type, "aria-label": label, ...range });
    field.addEventListener("change", () => {
      this.app.attempt(() => change(field.value));
      this.shown = null; // show the number that counts, also after a refusal
      this.app.settle();
    });
    return field;
  }

  get client() {
    return this.app.state.moments.clients[this.app.state.selected];
  }

  edit(fields) {
    editClient(this.app.state, this.app.state.selected, fields);
  }

  rename(text) {
    const name = text.trim();
    const others = this.app.state.moments.clients.filter((client) => client !== this.client);
    if (!name) throw new InputError("A client needs a name.");
    if (others.some((client) => client.name.trim() === name)) {
      throw new InputError(`Another client is called '${name}'. Give each client its own name.`);
    }
    this.edit({ name });
  }

  setCount(count) {
    const least = this.app.state.moments.targets.length + 1;
    if (!(Number.isInteger(count) && count >= least)) {
      throw new InputError(`Rows must be a whole number of at least ${least}, one more than targets.`);
    }
    this.edit(this.app.state.moments.isWeighted ? { count } : { count, weight: count });
  }

  setWeight(weight) {
    if (!(weight > 0 && Number.isFinite(weight))) throw new InputError("A weight must be a positive number.");
    this.edit({ weight });
  }

  followRows(isFollowing) {
    const { state } = this.app;
    const clients = state.moments.clients.map((client) => (isFollowing ? { ...client, weight: client.count } : client));
    state.moments = { ...state.moments, clients, isWeighted: !isFollowing };
    state.preset = null;
    this.app.change();
    this.app.settle();
  }

  setMean(i, value) {
    if (!Number.isFinite(value)) throw new InputError("A mean must be a number.");
    this.edit({ mean: this.client.mean.map((old, k) => (k === i ? value : old)) });
  }

  setCovariance(i, j, value) {
    const size = this.app.state.moments.targets.length;
    const covariance = Float64Array.from(this.client.covariance);
    covariance[i * size + j] = covariance[j * size + i] = value;
    const problem = Number.isFinite(value) ? covarianceProblem(covariance, size) : "must have numbers";
    if (problem) throw new InputError(`This covariance of '${this.client.name}' ${problem}. Nothing was changed.`);
    this.edit({ covariance });
  }

  /** Show the client's numbers, but never overwrite the field that is being typed in. */
  draw() {
    const { moments } = this.app.state;
    if (this.shown === this.client && this.weights === moments.isWeighted) return;
    this.shown = this.client;
    this.weights = moments.isWeighted;
    const { name, count, weight, mean, covariance } = this.client;
    const put = (field, value) => {
      if (document.activeElement !== field && field.value !== String(value)) field.value = value;
    };
    put(this.name, name);
    put(this.count, count);
    put(this.weight, Number(weight.toPrecision(6)));
    this.byRows.checked = !moments.isWeighted;
    this.weight.disabled = !moments.isWeighted;
    if (this.targets !== moments.targets) this.buildMatrix(moments.targets);
    const size = mean.length;
    for (const { field, i, j } of this.cells) {
      put(field, Number((j === null ? mean[i] : covariance[i * size + j]).toPrecision(6)));
    }
  }

  buildMatrix(targets) {
    this.targets = targets;
    this.cells = [];
    const field = (label, i, j, change) => {
      const node = this.input(label, "number", (text) => change(text === "" ? NaN : Number(text)));
      node.removeAttribute("min");
      this.cells.push({ field: node, i, j });
      return element("td", {}, node);
    };
    const rows = targets.map((name, i) => {
      const mean = field(`Mean of ${name}`, i, null, (value) => this.setMean(i, value));
      const entries = targets.map((other, j) =>
        j <= i
          ? field(`Covariance of ${name} and ${other}`, i, j, (value) => this.setCovariance(i, j, value))
          : element("td"),
      );
      return element("tr", {}, element("th", { scope: "row" }, name), mean, ...entries);
    });
    const head = element("tr", {}, ...["", "mean", ...targets].map((text) => element("th", { scope: "col" }, text)));
    this.matrix.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  }
}
