// Tooltips, filters, sorting, theme and the explorer of the report. Everything is in the page; nothing is loaded.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const runs = new Map(data.runs.map((row) => [row[0], Object.fromEntries(data.columns.map((name, k) => [name, row[k]]))]));
const FILTERS = { setting: "Settings", procedure: "Procedures", seed: "Seeds" };
const excluded = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, new Set()]));
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const format = (value) => (value === null ? "–" : typeof value === "number" ? String(value) : value);
const isShown = (run) => Object.keys(FILTERS).every((name) => !excluded[name].has(run[name]));
const runsOf = (element) => element.dataset.runs.split(" ").map((id) => runs.get(id)).filter(Boolean);

// ------------------------------------------------------------------------------------------ filters
function applyFilters() {
  for (const element of all("[data-runs]")) element.classList.toggle("off", !runsOf(element).some(isShown));
  for (const row of all("#runs tbody tr")) row.hidden = !isShown(runs.get(row.dataset.run));
  const count = [...runs.values()].filter(isShown).length;
  document.getElementById("count").textContent = `${count} of ${runs.size} runs`;
}

function buildFilters() {
  const form = document.getElementById("filters");
  if (!runs.size) return;
  form.hidden = false;
  form.append("Runs in the figures:");
  for (const [name, title] of Object.entries(FILTERS)) {
    const values = [...new Set([...runs.values()].map((run) => run[name]))];
    if (name !== "setting") values.sort((a, b) => (a > b) - (a < b));
    const boxes = make("fieldset", { ariaLabel: title });
    for (const value of values) {
      const box = make("input", { type: "checkbox", checked: true, name, value });
      box.addEventListener("change", () => {
        excluded[name][box.checked ? "delete" : "add"](value);
        applyFilters();
      });
      boxes.append(make("label", {}, box, ` ${value}`));
    }
    const none = make("button", { type: "button", textContent: "all or none" });
    none.addEventListener("click", () => {
      const checked = all("input", boxes).some((box) => !box.checked);
      all("input", boxes).forEach((box) => (box.checked = checked));
      excluded[name] = new Set(checked ? [] : values);
      applyFilters();
    });
    boxes.append(none);
    form.append(make("details", {}, make("summary", { textContent: title }), boxes));
  }
  form.append(make("span", { id: "count" }));
  document.addEventListener("click", (event) => {
    for (const open of all("details[open]", form)) if (!open.contains(event.target)) open.open = false;
  });
  applyFilters();
}

// ------------------------------------------------------------------------------------------ tooltips
const tip = document.getElementById("tip");
// Lines are thin: look a few pixels around the pointer.
const NEAR = [[0, 0], [0, -4], [0, 4], [-4, 0], [4, 0]];

function findRuns(x, y) {
  for (const [dx, dy] of NEAR) {
    const found = document.elementFromPoint(x + dx, y + dy)?.closest("[data-runs]");
    if (found) return runsOf(found).filter(isShown);
  }
  return [];
}

function showTip(event) {
  const found = event.target.closest?.("figure") ? findRuns(event.clientX, event.clientY) : [];
  tip.hidden = !found.length;
  if (tip.hidden) return;
  tip.replaceChildren(
    ...found.slice(0, 5).map((run) =>
      make(
        "p",
        {},
        make("b", { textContent: `${run.setting}, ${run.procedure}, seed ${run.seed}` }),
        `E = ${run.E}, ${run.scale === "yours" ? "your run" : `${run.scale} scale`}: error ${format(run.error)} to ${run.to}, ` +
          `trajectory ${format(run.trajectory)}, δ ${format(run["δ"])}, objective gap ${format(run["objective gap"])}, ` +
          `test MSE ${format(run["test MSE"])}${run.seconds === null ? "" : `, ${format(run.seconds)} s`}`,
      ),
    ),
    ...(found.length > 5 ? [`and ${found.length - 5} more runs`] : []),
  );
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? Math.max(4, event.clientY - height - 12) : event.clientY + 18}px`;
}

// ------------------------------------------------------------------------------------------ tables
/** Sort the rows of a table by a column; cells without a key come last in both directions. */
function sortBy(header) {
  const table = header.closest("table");
  const body = table.tBodies[0];
  const number = header.cellIndex;
  const descending = header.ariaSort === "ascending";
  const key = (row) => row.cells[number].dataset.key ?? row.cells[number].textContent;
  const isNumber = [...body.rows].every((row) => key(row) === "" || Number.isFinite(Number(key(row))));
  const compare = (a, b) => (isNumber ? Number(a) - Number(b) : a.localeCompare(b));
  const rows = [...body.rows].sort((one, two) => {
    const [a, b] = [key(one), key(two)];
    if (a === "" || b === "") return (a === "") - (b === "");
    return descending ? compare(b, a) : compare(a, b);
  });
  for (const other of all("th", table)) other.ariaSort = null;
  header.ariaSort = descending ? "descending" : "ascending";
  body.append(...rows);
}

/** Show the claims of some verdicts, or of one experiment; all if none is chosen. */
function filterClaims(experiment = "") {
  const chosen = all('#verdicts [aria-pressed="true"]').map((button) => button.value);
  for (const row of all("table.claims tbody tr")) {
    const isOther = chosen.length > 0 && !chosen.includes(row.className);
    row.hidden = isOther || (experiment !== "" && row.dataset.experiment !== experiment);
  }
}

function buildRunTable() {
  const section = document.getElementById("runs");
  if (!runs.size) return;
  section.hidden = false;
  const details = section.querySelector("details");
  details.firstElementChild.textContent = `Numbers of ${runs.size} runs`;
  const names = data.columns.slice(1);
  details.addEventListener("toggle", () => {
    const place = details.querySelector(".scroll");
    if (place.firstChild) return;
    const head = make("tr", {}, ...names.map((name) => make("th", {}, make("button", { type: "button", textContent: name }))));
    const body = make("tbody");
    for (const [id, run] of runs) {
      const row = make("tr", {}, ...names.map((name) => make("td", { textContent: format(run[name]) })));
      names.forEach((name, k) => (row.cells[k].dataset.key = run[name] ?? ""));
      row.dataset.run = id;
      body.append(row);
    }
    place.append(make("table", { className: "numbers sortable" }, make("thead", {}, head), body));
    applyFilters();
  });
}

// ------------------------------------------------------------------------------------------ page
/** Open the folded parts around the element of the address. */
function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  target.scrollIntoView();
}

let explorer = null;
function openExplorer(id) {
  const chosen = data.explored.find((each) => each.id === id);
  if (explorer) explorer.open(chosen);
  else explorer = window.mountExplorer(document.getElementById("explorer"), { presets: data.explored, initial: null });
  explorer.open(chosen);
  for (const button of all("#explored button")) button.ariaPressed = String(button.value === id);
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.fedgramTheme
    ? root.dataset.fedgramTheme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.fedgramTheme = isDark ? "light" : "dark";
}

document.addEventListener("pointermove", showTip);
document.addEventListener("pointerdown", showTip);
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.parentElement.tagName === "TH" && button.closest("table.sortable")) sortBy(button.parentElement);
  if (button?.parentElement.id === "verdicts") {
    button.ariaPressed = String(button.ariaPressed !== "true");
    filterClaims();
  }
  if (button?.parentElement.id === "explored") openExplorer(button.value);
  const link = event.target.closest("a[data-experiment]");
  if (link) filterClaims(link.dataset.experiment);
});
document.getElementById("theme").addEventListener("click", switchTheme);
addEventListener("hashchange", openTarget);
buildFilters();
buildRunTable();
openTarget();
