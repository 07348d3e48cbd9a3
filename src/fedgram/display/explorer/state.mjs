// What the explorer shows: moments, penalties, start and view; edits of it; its permalink.

import { combine, congruent, dot, identity, norm, squareRoot, trace } from "./matrices.mjs";
import { describeDirection } from "./notes.mjs";
import { pool } from "./geometry.mjs";
import { InputError, decodeHash, encodeHash, momentsDocument, readMoments } from "./moments.mjs";

/** State of a preset or an imported file: { document, features, head, strength, start, name, caption }. */
export function createState(given) {
  const moments = readMoments(given.document, given.name ?? "The data");
  const size = moments.targets.length;
  const state = {
    moments,
    penalty: { features: given.features ?? 0.01, head: given.head ?? 0.01 },
    strength: given.strength ?? 0,
    start: given.start ? Float64Array.from(given.start) : defaultStart(moments, given),
    position: given.position ?? 0,
    plane: { directions: [], labels: [] },
    selected: Math.min(given.selected ?? 0, moments.clients.length - 1),
    name: given.name ?? "Linked data",
    caption: given.caption ?? "",
    preset: given.id ?? null,
  };
  requireNumbers(state, size);
  setPlane(state, given.plane ?? [unitVector(size, 0), ...(size > 1 ? [unitVector(size, 1)] : [])]);
  return state;
}

function requireNumbers({ penalty, strength, start, position }, size) {
  const isValid =
    penalty.features > 0 &&
    penalty.head > 0 &&
    Number.isFinite(penalty.features * penalty.head) &&
    strength >= 0 &&
    strength <= 1 &&
    position >= 0 &&
    start.length === size * size &&
    start.every(Number.isFinite);
  if (!isValid) throw new InputError("The penalties, the strength or the start are not valid.");
}

/** A start that is small, long and oblique, so that the first rounds are visible. */
function defaultStart(moments, { features = 0.01, head = 0.01 }) {
  const size = moments.targets.length;
  const scale = Math.sqrt(features / head) * (trace(squareRoot(pool(moments).covariance, size), size) / size);
  const start = identity(size, 0.4 * scale);
  if (size === 1) return start;
  const [c, s] = [Math.cos(2), Math.sin(2)];
  const map = identity(size);
  [map[0], map[1], map[size], map[size + 1]] = [c * 1.4, -s * 0.4, s * 1.4, c * 0.4];
  return congruent(map, start, size);
}

export function unitVector(size, k) {
  return Array.from({ length: size }, (_, i) => (i === k ? 1 : 0));
}

/** Show two target directions; the second is made orthogonal to the first. */
export function setPlane(state, directions) {
  const { targets } = state.moments;
  const [first, second] = directions.map((direction) => Float64Array.from(direction));
  const isVector = (v) => v.length === targets.length && v.every(Number.isFinite) && norm(v) > 0;
  if (!isVector(first) || (second && !isVector(second))) {
    throw new InputError(`A direction must have ${targets.length} numbers that are not all zero.`);
  }
  const u = first.map((value) => value / norm(first));
  if (!second) {
    state.plane = { directions: [u], labels: [targets[0]] };
    return;
  }
  const rest = combine(1, second, -dot(u, second), u);
  if (norm(rest) <= 1e-9 * norm(second)) throw new InputError("The two directions must differ.");
  const directionsNow = [u, rest.map((value) => value / norm(rest))];
  state.plane = { directions: directionsNow, labels: directionsNow.map((each) => directionLabel(each, targets)) };
}

function directionLabel(direction, targets) {
  return describeDirection(direction, targets)
    .replace(/^target '(.*)'$/, "$1")
    .replace(/^direction \((.*)\)$/, "$1")
    .replace(/-(?=\d)/g, "−");
}

/**
 * The linear map of the targets that acts as K (2 x 2, in pixels) on the plane: I + V (K' - I) Vᵀ, where K' is K
 * in the targets' units. Applied to targets, it keeps every covariance semidefinite.
 */
export function planeMap([a, b, c, d], unit, directions, size) {
  const ratio = unit[0] / unit[1];
  const inner = [a - 1, -b * ratio, -c / ratio, d - 1];
  const [u, v] = directions;
  const map = identity(size);
  for (let i = 0; i < size; i++) {
    for (let j = 0; j < size; j++) {
      map[i * size + j] += inner[0] * u[i] * u[j];
      if (v) map[i * size + j] += inner[1] * u[i] * v[j] + inner[2] * v[i] * u[j] + inner[3] * v[i] * v[j];
    }
  }
  return map;
}

// Private moments with another one of these are no longer what the client released.
const RELEASED = ["count", "mean", "covariance"];

/** Replace fields of one client. */
export function editClient(state, m, fields) {
  const edited = { ...state.moments.clients[m], ...fields };
  if (RELEASED.some((name) => name in fields)) delete edited.privacy;
  const clients = state.moments.clients.map((client, k) => (k === m ? edited : client));
  state.moments = { ...state.moments, clients };
  state.preset = null;
}

/** Add a client with the pooled mean and covariance, and select it. */
export function addClient(state) {
  const { clients } = state.moments;
  const pooled = pool(state.moments);
  const names = new Set(clients.map((client) => client.name));
  let number = clients.length + 1;
  while (names.has(`client ${number}`)) number += 1;
  const mean = (field) => clients.reduce((sum, client) => sum + client[field], 0) / clients.length;
  const added = {
    name: `client ${number}`,
    count: Math.round(mean("count")),
    weight: state.moments.isWeighted ? mean("weight") : Math.round(mean("count")),
    mean: pooled.mean,
    covariance: pooled.within,
  };
  state.moments = { ...state.moments, clients: [...clients, added] };
  state.selected = clients.length;
  state.preset = null;
}

export function removeClient(state, m) {
  if (state.moments.clients.length <= 2) throw new InputError("A federation needs at least two clients.");
  const clients = state.moments.clients.filter((_, k) => k !== m);
  state.moments = { ...state.moments, clients };
  state.selected = Math.min(m, clients.length - 1);
  state.preset = null;
}

/** The hash of a permalink: the name of an unchanged preset, or the whole state. */
export function toHash(state) {
  if (state.preset) return `preset=${state.preset}`;
  return `state=${encodeHash({
    document: momentsDocument(state.moments),
    features: state.penalty.features,
    head: state.penalty.head,
    strength: state.strength,
    start: [...state.start],
    position: Math.round(state.position),
    plane: state.plane.directions.map((direction) => [...direction]),
    selected: state.selected,
    name: state.name,
    caption: state.caption,
  })}`;
}

/** The state of a hash; null if it names none. */
export function fromHash(hash, presets) {
  const [key, value] = hash.replace(/^#/, "").split(/=(.*)/s);
  if (key === "preset") {
    const preset = presets.find((each) => each.id === value);
    if (!preset) throw new InputError(`There is no preset '${value}'.`);
    return createState(preset);
  }
  return key === "state" ? createState({ ...decodeHash(value), id: null }) : null;
}
