// The page around the panels: header, cards, controls, legend and help.

import { element, setText } from "./plots.mjs";
import { describePrivacy } from "./privacy.mjs";

const LEGEND = [
  ["clients", "client alone"],
  ["barycenter", "barycenter: where federated averaging ends"],
  ["centralized", "centralized: training on the pooled rows"],
  ["within", "within: pooled rows, if all means were equal"],
  ["shared", "shared head, round by round"],
];

const HELP = [
  "Left: each ellipse is one client's targets. Its center is the mean, its outline one standard deviation.",
  "Right: what a regression head learns from them, drawn as the ellipse of its Gram matrix G = W Wᵀ.",
  "Each client alone would learn its own ellipse. Federated averaging ends at their barycenter.",
  "Training on the pooled rows ends at the dashed ellipse. The difference is the gap.",
  "The gap has three causes: different means, different covariances, and averaging heads instead of Gram matrices. " +
    "Each makes the barycenter smaller.",
  "The correction γ adds one term to each client's loss. At γ = 1 the gap is gone after one round.",
  "A hatched client is not fully active: λ_H λ_W exceeds its target variance in some direction. It learns nothing there.",
];

const KEYS = [
  ["Tab", "go to a client or a handle"],
  ["Arrow keys", "move a client; on a handle, stretch or turn. Shift moves farther"],
  ["[ and ]", "turn a client"],
  ["+ and −", "scale a client"],
  ["Delete", "remove a client"],
];

function button(label, title, action) {
  return element("button", { type: "button", title, on: { click: action } }, label);
}

function card(title, className, ...children) {
  const heading = element("h2", {}, title);
  return element("section", { class: `card ${className}` }, heading, ...children);
}

/** Text with a subscript after an underscore: λ_H. */
function symbol(text) {
  const [before, letter] = text.split("_");
  return element("i", { class: "symbol" }, before, ...(letter ? [element("sub", {}, letter)] : []));
}

/** A slider with a number field. `toSlider` and `toValue` convert between value and position. */
function slider(sign, label, hint, range, { read, write, toSlider, toValue }) {
  const bar = element("input", { type: "range", ...range, "aria-label": label });
  const field = element("input", { type: "number", step: "any", "aria-label": `${label}, as a number` });
  bar.addEventListener("input", () => write(toValue(Number(bar.value))));
  field.addEventListener("change", () => write(Number(field.value)));
  const name = element("span", { class: "slider-name" }, symbol(sign), label, element("small", {}, hint));
  const node = element("div", { class: "slider" }, name, field, bar);
  node.refresh = () => {
    const value = read();
    if (document.activeElement !== field) field.value = String(Number(value.toPrecision(6)));
    const position = String(toSlider(value));
    if (document.activeElement !== bar || Number(bar.value) !== Number(position)) bar.value = position;
  };
  return node;
}

function penaltySlider(app, field, sign, label, hint) {
  return slider(sign, label, hint, { min: -4, max: 1, step: 0.02 }, {
    read: () => app.state.penalty[field],
    write: (value) => app.setPenalty(field, value),
    toSlider: (value) => Math.log10(value),
    toValue: (position) => Number((10 ** position).toPrecision(4)),
  });
}

function sliders(app) {
  return [
    penaltySlider(app, "features", "λ_H", "Feature penalty", "weight decay of the features"),
    penaltySlider(app, "head", "λ_W", "Head penalty", "weight decay of the head"),
    slider("γ", "Correction", "0: none; 1: removes the gap", { min: 0, max: 1, step: 0.01 }, {
      read: () => app.state.strength,
      write: (value) => app.setStrength(value),
      toSlider: (value) => value,
      toValue: (position) => position,
    }),
  ];
}

function legend(app) {
  return LEGEND.map(([kind, text]) => {
    const sample = `<svg width="26" height="10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5"/></svg>`;
    const item = element("button", { type: "button", class: `key ${kind}`, "aria-pressed": "true" });
    item.innerHTML = sample;
    item.append(element("span", {}, text));
    item.addEventListener("click", () => {
      app.toggle(kind);
      item.setAttribute("aria-pressed", String(!app.hidden.has(kind)));
    });
    return item;
  });
}

/** Two selects of directions, and fields for typed loadings; shown when there are more than two targets. */
function planePicker(app) {
  const selects = [0, 1].map((k) => element("select", { "aria-label": k === 0 ? "Horizontal" : "Vertical" }));
  const fields = [0, 1].map((k) =>
    element("input", { type: "text", size: 14, hidden: "", placeholder: "1, -1, 0", "aria-label": `Loadings ${k + 1}` }),
  );
  const choices = () => selects.map((select, k) => (select.value === "typed" ? fields[k].value : select.value));
  const apply = () => {
    const isTyping = selects.some((select, k) => select.value === "typed" && fields[k].value.trim() === "");
    if (!isTyping && choices().every((choice) => choice !== "shown")) app.choosePlane(choices());
  };
  selects.forEach((select, k) => {
    select.addEventListener("change", () => {
      fields[k].hidden = select.value !== "typed";
      apply();
    });
    fields[k].addEventListener("change", apply);
  });
  const node = element("div", { class: "plane" }, "Show ", selects[0], fields[0], " against ", selects[1], fields[1]);
  let [shown, listed] = [null, ""];
  node.refresh = () => {
    const { plane, moments } = app.state;
    node.hidden = moments.targets.length < 3;
    if (node.hidden || plane === shown) return;
    shown = plane;
    if (listed !== moments.targets.join("\n")) {
      listed = moments.targets.join("\n");
      for (const select of selects) select.replaceChildren(...planeOptions(moments.targets));
    }
    selects.forEach((select, k) => {
      const axis = plane.directions[k].findIndex((value) => Math.abs(value) === 1);
      if (axis >= 0) select.value = `target${axis}`;
      else if (select.value.startsWith("target")) select.value = "typed";
      fields[k].hidden = select.value !== "typed";
      if (!fields[k].hidden) fields[k].value = Array.from(plane.directions[k], (value) => value.toFixed(3)).join(", ");
    });
  };
  return node;
}

function planeOptions(targets) {
  const option = (value, text) => element("option", { value }, text);
  return [
    ...targets.map((name, i) => option(`target${i}`, name)),
    option("gap1", "direction of the largest gap"),
    option("gap2", "direction of the second-largest gap"),
    option("typed", "other direction …"),
  ];
}

function presetPicker(app) {
  const select = element("select", { "aria-label": "Example", class: "preset" });
  for (const preset of app.presets) select.append(element("option", { value: preset.id }, preset.name));
  const own = element("option", { value: "" }, "changed");
  select.append(own);
  select.addEventListener("change", () => {
    const preset = app.presets.find((each) => each.id === select.value);
    if (preset) app.open(preset);
  });
  select.refresh = () => {
    own.hidden = Boolean(app.state.preset);
    setText(own, `${app.state.name}, changed`);
    const value = app.state.preset ?? "";
    if (select.value !== value) select.value = value;
  };
  return select;
}

const THEMES = ["auto", "light", "dark"];

function themeButton(app) {
  const node = button("Theme: auto", "Switch between light and dark", () => {
    const next = THEMES[(THEMES.indexOf(app.root.dataset.theme ?? "auto") + 1) % THEMES.length];
    app.root.dataset.theme = next;
    document.documentElement.dataset.fedgramTheme = next;
    setText(node, `Theme: ${next}`);
  });
  return node;
}

function toolbar(app) {
  const file = element("input", { type: "file", accept: ".json,application/json", hidden: "", "aria-label": "Import" });
  file.addEventListener("change", async () => {
    if (file.files.length > 0) await app.importFile(file.files[0]);
    file.value = "";
  });
  const items = [
    file,
    button("Import", "Open a moments file (moments.json)", () => file.click()),
    button("Export", "Save these moments as moments.json", () => app.exportMoments()),
    button("SVG", "Save this picture as an SVG file", () => app.exportFigure()),
    themeButton(app),
  ];
  if (app.hasHash) items.splice(3, 0, button("Copy link", "Copy a link to this state", () => app.copyLink()));
  return element("div", { class: "toolbar" }, ...items);
}

function help() {
  const keys = KEYS.flatMap(([key, text]) => [element("dt", {}, key), element("dd", {}, text)]);
  return element(
    "details",
    { class: "card help" },
    element("summary", {}, "What do I see?"),
    element("ul", {}, ...HELP.map((text) => element("li", {}, text))),
    element("h2", {}, "Keyboard"),
    element("dl", {}, ...keys),
  );
}

/** Notes on private moments, on clients that are not fully active, and on what cannot be said then. */
function notesList(app) {
  const node = element("ul", { class: "notes" });
  let shown = "";
  node.refresh = () => {
    const privacy = describePrivacy(app.state.moments);
    const notes = app.result.error ? [] : app.result.notes;
    node.hidden = notes.length === 0 && !privacy;
    if (shown === [privacy, ...notes].join("\n")) return;
    shown = [privacy, ...notes].join("\n");
    const items = notes.map((note) => element("li", {}, element("span", { class: "swatch" }), note));
    node.replaceChildren(...(privacy ? [element("li", {}, privacy)] : []), ...items);
  };
  return node;
}

/** Build the page; the result holds the nodes that change, and `update` refreshes the controls. */
export function buildLayout(app, id) {
  const ui = {
    headline: element("p", { class: "headline" }),
    summary: element("p", { class: "summary" }),
    caption: element("p", { class: "caption" }),
    messageText: element("span"),
    round: element("p", { class: "round" }),
    barNote: element("p", { class: "hint" }),
    play: button("Play", "Run rounds of federated averaging", () => app.play()),
    step: button("Step", "Run one round", () => app.stepRound()),
    reset: button("Reset", "Go back to the start", () => app.resetRounds()),
  };
  ui.message = element(
    "div",
    { class: "message", role: "alert", hidden: "" },
    ui.messageText,
    button("×", "Close this message", () => app.message("")),
  );
  ui.targetCard = element("div", { class: "plot" }, app.targetPanel.svg);
  ui.gramCard = element("div", { class: "plot" }, app.gramPanel.svg);
  ui.barCard = element("div", { class: "plot" }, app.bars.svg, ui.barNote);
  ui.gapCard = card("Why they differ", "gap", ui.barCard);
  ui.removeButton = button("Remove", "Remove the selected client", () => app.remove());
  const edits = element(
    "div",
    { class: "row" },
    button("Add client", "Add a client", () => app.add()),
    ui.removeButton,
    element("span", { class: "hint" }, "Drag a client to move it, its handles to stretch or turn it."),
  );
  const rounds = element("div", { class: "row" }, ui.play, ui.step, ui.reset, ui.round);
  const controls = [...sliders(app), planePicker(app), presetPicker(app), notesList(app)];
  const [features, head, strength, plane, preset, notes] = controls;
  const title = element("h1", { id }, "Where does federated averaging end?");
  const eyebrow = element("p", { class: "eyebrow" }, "fedgram explorer");
  const header = element("header", {}, element("div", { class: "brand" }, eyebrow, title, ui.caption));
  header.append(element("div", { class: "tools" }, preset, toolbar(app)));
  const story = element("div", { class: "story", "aria-live": "polite" }, ui.headline, ui.summary);
  const plots = element(
    "div",
    { class: "plots" },
    card("What the clients want to predict", "targets", ui.targetCard, edits),
    card("What the heads learn", "grams", ui.gramCard, rounds, element("div", { class: "legend" }, ...legend(app))),
    element(
      "div",
      { class: "side" },
      ui.gapCard,
      card("Settings", "settings", features, head, strength),
    ),
    app.editor.node,
  );
  ui.page = element("div", { class: "page" }, header, ui.message, story, plane, notes, plots, app.table.node, help());
  ui.update = () => {
    setText(ui.caption, app.state.caption);
    ui.removeButton.disabled = app.state.moments.clients.length <= 2;
    for (const control of controls) control.refresh();
  };
  return ui;
}

