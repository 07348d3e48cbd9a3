// The explorer: state, frames, controls. `mount` builds it inside any element.

import { combine, eigen, gram, norm } from "./matrices.mjs";
import { trajectory } from "./barycenter.mjs";
import { pool, predict, refuse, siteEffects } from "./geometry.mjs";
import { Bootstrap } from "./intervals.mjs";
import { Bars } from "./bars.mjs";
import { ClientEditor } from "./client_editor.mjs";
import { GramPanel } from "./gram_panel.mjs";
import { buildLayout } from "./layout.mjs";
import { InputError, momentsDocument, parseMoments } from "./moments.mjs";
import { composeFigure } from "./picture.mjs";
import { element, percent, setText, show } from "./plots.mjs";
import { SiteTable } from "./site_table.mjs";
import { addClient, createState, fromHash, removeClient, setPlane, toHash, unitVector } from "./state.mjs";
import { headline, summary } from "./story.mjs";
import { TargetPanel } from "./target_panel.mjs";

const MOST_ROUNDS = 30;
const ROUND_SECONDS = 0.7; // per round while playing
const ARRIVED = 1e-3; // playing ends when the shared Gram is this close to the barycenter, relatively
const PAUSE = 200; // milliseconds without a change before intervals and the permalink follow
const SLICE = 6; // milliseconds of bootstrap per task, so that a frame is never late
const TABLE_FRAMES = 6; // of a drag, until all rows of the table are up to date
let mounted = 0;

/** One explorer in a root element. `result` is the prediction that it shows, `state` what it is about. */
export class Explorer {
  constructor(root, { presets, initial = null, hasHash = false, onSettle = () => {} }) {
    Object.assign(this, { root, hasHash, onSettle });
    this.presets = initial ? [{ ...initial, id: "data" }, ...presets] : presets;
    this.hidden = new Set();
    this.highlighted = null;
    this.result = null;
    this.intervals = null;
    this.isDragging = false;
    this.drawn = 0;
    const id = `fedgram-${(mounted += 1)}`;
    this.targetPanel = new TargetPanel(this, `${id}-targets`);
    this.gramPanel = new GramPanel(this, `${id}-grams`);
    this.bars = new Bars();
    this.table = new SiteTable(this);
    this.editor = new ClientEditor(this);
    this.ui = buildLayout(this, id);
    this.texts = [
      () => this.drawGap(),
      () => this.drawRounds(),
      () => this.ui.update(),
      () => this.editor.draw(),
      ...Array.from({ length: TABLE_FRAMES }, (_, k) => () => this.table.draw(k, TABLE_FRAMES)),
    ];
    root.classList.add("fedgram-explorer");
    root.replaceChildren(this.ui.page);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(root);
    this.onHash = () => this.openHash();
    if (hasHash) addEventListener("hashchange", this.onHash);
    this.openHash() || this.open(this.presets[0]);
  }

  /** Stop all timers and listeners. */
  close() {
    this.isPlaying = false;
    this.observer.disconnect();
    removeEventListener("hashchange", this.onHash);
    cancelAnimationFrame(this.frameRequest);
    clearTimeout(this.settleTimer);
    clearTimeout(this.sampleTimer);
  }

  // ------------------------------------------------------------------------------------- loading

  /** Show a preset or another description of a state (see createState). */
  open(given) {
    this.setState(createState(given));
  }

  openHash() {
    if (!this.hasHash || location.hash.length < 2) return false;
    return this.attempt(() => {
      const state = fromHash(location.hash, this.presets);
      if (state) this.setState(state);
      return Boolean(state);
    });
  }

  setState(state) {
    this.pause();
    this.state = state;
    this.result = null;
    this.intervals = null;
    clearTimeout(this.sampleTimer);
    this.isFresh = true;
    this.message("");
    this.resize();
    this.render();
    this.settle();
  }

  /** Run an edit; bad input shows its sentence and changes nothing. */
  attempt(edit) {
    try {
      const outcome = edit();
      this.message("");
      this.change();
      return outcome ?? true;
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.message(error.message, "error");
      return false;
    }
  }

  async importFile(file) {
    const text = await file.text();
    this.attempt(() => {
      parseMoments(text, file.name);
      const { penalty, strength } = this.state;
      this.open({ document: JSON.parse(text), ...penalty, strength, name: file.name, caption: "" });
    });
  }

  message(text, kind = "info") {
    this.ui.message.className = `message ${kind}`;
    this.ui.message.hidden = text === "";
    setText(this.ui.messageText, text);
  }

  // ------------------------------------------------------------------------------------- frames

  change() {
    this.intervals = null;
    clearTimeout(this.sampleTimer);
    this.schedule();
  }

  schedule() {
    this.frameRequest ??= requestAnimationFrame((time) => {
      this.frameRequest = null;
      this.render(time);
    });
  }

  beginDrag(panel) {
    panel.measure();
    this.isDragging = panel;
  }

  endDrag() {
    this.isDragging = false;
    this.settle();
  }

  /** After an edit: fit the axes, then update the permalink and the intervals. */
  settle() {
    this.schedule();
    clearTimeout(this.settleTimer);
    this.settleTimer = setTimeout(() => {
      if (this.isDragging || this.isPlaying) return;
      this.writeHash();
      this.sample();
      this.onSettle(this);
    }, PAUSE);
  }

  /** Compute and draw one frame. */
  render(time = 0) {
    const { state } = this;
    if (this.isPlaying) this.advance(time);
    this.result = predict(state.moments, state.penalty, state.strength, this.result);
    if (this.intervals?.refusal) refuse(this.result, this.intervals.refusal);
    this.result.observed = pool(state.moments);
    this.plain = state.strength === 0 ? this.result : predict(state.moments, state.penalty, 0, this.plain);
    const roots = this.result.clients.map((client) => client.root);
    const rounds = this.result.barycenter ? Math.ceil(state.position) : 0;
    this.heads = trajectory(state.start, roots, this.result.pooled.weights, rounds);
    this.effects = siteEffects(state.moments, this.result, state.penalty);
    this.fitPanels();
    this.targetPanel.draw();
    this.gramPanel.draw();
    this.drawText();
    this.isFresh = false;
    if (this.isPlaying) this.schedule();
  }

  /** Write the numbers. While dragging, one part per frame: the layout of all would take most of a frame. */
  drawText() {
    this.drawn += 1;
    if (this.isDragging) this.texts[this.drawn % this.texts.length]();
    else for (const draw of this.texts) draw();
  }

  /** Move the axes toward what fits; a panel that is dragged in keeps its axes. */
  fitPanels() {
    const isLine = this.state.moments.targets.length === 1;
    for (const panel of [this.targetPanel, this.gramPanel]) {
      panel.isLine = isLine;
      const goal = panel.fit(panel.bounds());
      const isHeld = this.isDragging && (panel === this.isDragging || isClose(panel.frame, goal));
      if (!panel.frame || this.isFresh || (isReduced() && !isHeld)) panel.setFrame(goal);
      else if (!isHeld && approach(panel, goal)) this.schedule();
    }
  }

  resize() {
    for (const [panel, card] of [
      [this.targetPanel, this.ui.targetCard],
      [this.gramPanel, this.ui.gramCard],
    ]) {
      const width = Math.max(card.clientWidth, 260);
      panel.resize(width, Math.round(Math.min(Math.max(width * 0.92, 300), 430)));
    }
    this.bars.resize(Math.max(this.ui.barCard.clientWidth, 220));
    if (this.state) {
      this.isFresh = true;
      this.schedule();
    }
  }

  select(m) {
    if (this.state.selected === m) return;
    this.state.selected = m;
    this.schedule();
  }

  highlight(m) {
    if (this.isDragging || this.highlighted === m) return;
    this.highlighted = m;
    this.schedule();
  }

  toggle(kind) {
    if (!this.hidden.delete(kind)) this.hidden.add(kind);
    this.schedule();
  }

  /** Why a client is not fully active. */
  reasonOf(m) {
    const name = this.state.moments.clients[m].name;
    const own = this.result.notes.find((note) => note.includes(`lient '${name}' is not fully active`));
    return own ?? this.result.notes[0] ?? "";
  }

  // ------------------------------------------------------------------------------------- text

  drawGap() {
    const { result, intervals, ui } = this;
    ui.headline.classList.toggle("undefined", Boolean(result.error));
    ui.gapCard.hidden = Boolean(result.error);
    setText(ui.headline, headline(result));
    setText(ui.summary, summary(result, intervals));
    if (!result.gap) return;
    const ghosts = this.plain?.gap && this.state.strength > 0 ? this.plain.gap.traces : [0, 0, 0];
    this.bars.draw(result.gap, ghosts, intervals?.traces ?? null);
    const bands = intervals?.isNoise
      ? "Bands: 95% intervals of the privacy noise, without sampling."
      : "Bands: 95% sampling intervals from the clients' row counts.";
    const note = intervals ? bands : "Percentages are shares of the gap's trace.";
    setText(ui.barNote, result.gap.isOneSided ? note : "Lengths are traces; one of them is negative.");
  }

  drawRounds() {
    const { state, result, heads, ui } = this;
    const round = Math.floor(state.position);
    for (const button of [ui.play, ui.step]) button.disabled = !result.barycenter;
    ui.reset.disabled = state.position === 0;
    setText(ui.play, this.isPlaying ? "Pause" : "Play");
    if (!result.barycenter) return setText(ui.round, "");
    const head = heads[Math.min(round, heads.length - 1)];
    const shared = round === 0 ? state.start : gram(head, result.size);
    const away = (to) => percent(norm(combine(1, shared, -1, to)) / norm(to));
    const from = round === 0 ? "Start" : `Round ${round}`;
    setText(
      ui.round,
      `${from}: ${away(result.barycenter.gram)} from the barycenter, ${away(result.centralized)} from centralized.`,
    );
    return undefined;
  }

  // ------------------------------------------------------------------------------------- rounds

  play() {
    if (this.isPlaying) return this.pause();
    if (this.hasArrived() || this.state.position >= MOST_ROUNDS) this.state.position = 0;
    this.isPlaying = true;
    this.playedAt = null;
    this.state.preset = null;
    return this.schedule();
  }

  pause() {
    if (this.isPlaying) this.state.position = Math.round(this.state.position);
    this.isPlaying = false;
    if (this.state) this.settle();
  }

  /** Move on by the time since the last frame. */
  advance(time) {
    const elapsed = this.playedAt === null ? 0 : (time - this.playedAt) / 1000;
    if (isReduced() && this.playedAt !== null && elapsed < ROUND_SECONDS) return;
    this.playedAt = time;
    const before = this.state.position;
    this.state.position = isReduced() ? before + 1 : Math.min(before + elapsed / ROUND_SECONDS, before + 0.25);
    const isWhole = Math.floor(this.state.position) > Math.floor(before);
    if (isWhole && (this.hasArrived() || this.state.position >= MOST_ROUNDS)) {
      this.state.position = Math.floor(this.state.position);
      this.pause();
    }
  }

  hasArrived() {
    const { result, heads } = this;
    if (!result?.barycenter || heads.length < 2) return false;
    const limit = result.barycenter.gram;
    return norm(combine(1, gram(heads[heads.length - 1], result.size), -1, limit)) < ARRIVED * norm(limit);
  }

  stepRound() {
    this.pause();
    this.state.position = Math.min(Math.floor(this.state.position) + 1, MOST_ROUNDS);
    this.state.preset = null;
    this.settle();
  }

  resetRounds() {
    this.pause();
    this.state.position = 0;
    this.settle();
  }

  // ------------------------------------------------------------------------------------- intervals

  /** Sample the gap in slices while nothing changes. */
  sample() {
    clearTimeout(this.sampleTimer);
    if (!this.result?.gap) return;
    const { moments, penalty } = this.state;
    const observe = (matrix) => this.gramPanel.radiiOf(matrix);
    const bootstrap = new Bootstrap(moments, penalty, this.result, observe);
    const run = () => {
      if (this.state.moments !== moments || this.isDragging) return;
      if (!bootstrap.advance(SLICE)) {
        this.sampleTimer = setTimeout(run, 0);
        return;
      }
      this.intervals = bootstrap.intervals();
      this.schedule();
    };
    this.sampleTimer = setTimeout(run, 0);
  }

  // ------------------------------------------------------------------------------------- edits

  setPenalty(field, value) {
    this.attempt(() => {
      if (!(value > 0 && value < 1e6)) throw new InputError("A penalty must be a positive number below a million.");
      this.state.penalty = { ...this.state.penalty, [field]: value };
      this.state.preset = null;
    });
    this.settle();
  }

  setStrength(value) {
    this.attempt(() => {
      if (!(value >= 0 && value <= 1)) throw new InputError("The strength must be between 0 and 1.");
      this.state.strength = value;
      this.state.preset = null;
    });
    this.settle();
  }

  /** Show the directions chosen in the two selects: targets, directions of the gap, or typed loadings. */
  choosePlane(choices) {
    const { size, gap } = this.result;
    const basis = gap && eigen(gap.total, size).basis;
    const vector = (choice) => {
      if (choice.startsWith("gap")) {
        if (!basis) throw new InputError("There is no gap, so it has no directions.");
        const k = size - Number(choice.slice(3));
        return Array.from({ length: size }, (_, i) => basis[i * size + k]);
      }
      if (choice.startsWith("target")) return unitVector(size, Number(choice.slice(6)));
      return choice.trim().replace(/−/g, "-").split(/[\s,;]+/).map(Number);
    };
    const isChosen = this.attempt(() => {
      setPlane(this.state, choices.map(vector));
      this.state.preset = null;
      this.isFresh = true;
    });
    this.settle();
    return isChosen;
  }

  add() {
    this.attempt(() => addClient(this.state));
    this.settle();
  }

  remove() {
    this.attempt(() => removeClient(this.state, this.state.selected));
    this.settle();
  }

  // ------------------------------------------------------------------------------------- files

  writeHash() {
    if (!this.hasHash) return;
    try {
      history.replaceState(null, "", `#${toHash(this.state)}`); // fires no hashchange
    } catch {
      // a sandboxed frame has no history of its own; the page works without a permalink
    }
  }

  async copyLink() {
    const link = `${location.href.split("#")[0]}#${toHash(this.state)}`;
    try {
      await navigator.clipboard.writeText(link);
      this.message("Link copied.");
    } catch {
      this.message(link); // some browsers give pages from disk no clipboard
    }
  }

  exportMoments() {
    const text = `${JSON.stringify(momentsDocument(this.state.moments), null, 1)}\n`;
    save("moments.json", text, "application/json");
  }

  exportFigure() {
    const style = getComputedStyle(this.root);
    const { penalty, name, strength } = this.state;
    const settings = `λ_H = ${show(penalty.features)}, λ_W = ${show(penalty.head)}, γ = ${show(strength)}`;
    const drawings = [this.targetPanel.svg, this.gramPanel.svg, this.bars.svg];
    const figure = composeFigure(
      drawings,
      headline(this.result),
      `${name} · ${settings} · fedgram`,
      style.getPropertyValue("--card").trim(),
      style.getPropertyValue("--ink").trim(),
    );
    save("explorer.svg", figure, "image/svg+xml");
  }
}

function isReduced() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Whether a frame shows what its goal would show, within a factor of two. */
function isClose(frame, goal) {
  return frame && [0, 1].every((k) => goal.unit[k] <= frame.unit[k] && goal.unit[k] >= 0.5 * frame.unit[k]);
}

/** Move a panel's frame a third of the way to its goal; return whether it still moves. */
function approach(panel, goal) {
  const { unit, center } = panel.frame;
  const between = (from, to) => from.map((value, k) => value + 0.34 * (to[k] - value));
  const isThere = [0, 1].every(
    (k) => Math.abs(unit[k] / goal.unit[k] - 1) < 5e-3 && Math.abs(center[k] - goal.center[k]) < 0.5 * unit[k],
  );
  if (isThere && unit[0] === goal.unit[0] && center.every((value, k) => value === goal.center[k])) return false;
  panel.setFrame(isThere ? goal : { unit: between(unit, goal.unit), center: between(center, goal.center) });
  return !isThere;
}

function save(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Build an explorer inside an element. */
export function mount(root, options) {
  return new Explorer(root, options);
}
