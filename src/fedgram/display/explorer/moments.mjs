// Read, check and write moments files (format fedgram-moments/1) and permalinks.

import { eigen } from "./matrices.mjs";

const FORMAT = "fedgram-moments/1";
export const MOST_TARGETS = 6; // the panels and the Newton solver stay fast up to here
export const MOST_CLIENTS = 60;
// Asymmetry and negative eigenvalues below this fraction of the largest entry are rounding, as in Python.
const ROUNDING = 1e-10;

/** Bad input; the message is one sentence for people. */
export class InputError extends Error {}

function require(condition, message) {
  if (!condition) throw new InputError(message);
}

/** Parse the text of a moments file, called `name` in messages. */
export function parseMoments(text, name) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new InputError(`'${name}' is not complete JSON.`);
  }
  return readMoments(document, name);
}

/** Check the document of a moments file and convert it to moments. */
export function readMoments(document, name = "The link") {
  require(
    document?.format === FORMAT,
    `'${name}' is not a moments file: its format is not '${FORMAT}'. Write one with 'fedgram moments'.`,
  );
  const { targets, clients } = document;
  require(isNames(targets), `'targets' in '${name}' must be a list of different target names.`);
  require(
    targets.length <= MOST_TARGETS,
    `'${name}' has ${targets.length} targets, but the explorer shows at most ${MOST_TARGETS}. Use fewer targets.`,
  );
  require(Array.isArray(clients), `'clients' in '${name}' must be a list of objects.`);
  require(clients.length >= 2, `'${name}' has ${clients.length} client, but a federation needs at least two.`);
  require(
    clients.length <= MOST_CLIENTS,
    `'${name}' has ${clients.length} clients, but the explorer shows at most ${MOST_CLIENTS}.`,
  );
  const read = clients.map((client, m) => readClient(client ?? {}, m, targets.length));
  require(isNames(read.map((client) => client.name)), `Two clients in '${name}' have the same name.`);
  const without = clients.find((client) => client.weight === undefined);
  const isWeighted = !without;
  require(
    isWeighted || clients.every((client) => client.weight === undefined),
    `Client '${without?.name}' has no weight but others do. Set a weight for all clients or for none.`,
  );
  return { targets: [...targets], clients: read, isWeighted };
}

function isNames(names) {
  const isText = Array.isArray(names) && names.every((name) => typeof name === "string" && name.trim() !== "");
  return isText && names.length > 0 && new Set(names.map((name) => name.trim())).size === names.length;
}

function readClient(client, m, size) {
  const { name, count, mean, covariance, weight = count, privacy } = client;
  require(typeof name === "string" && name.trim() !== "", `Client number ${m + 1} has no name.`);
  require(isNumbers(mean, size), `The mean of client '${name}' must be a list of ${size} finite numbers.`);
  require(
    Array.isArray(covariance) && covariance.length === size && covariance.every((row) => isNumbers(row, size)),
    `The covariance of client '${name}' must be ${size} by ${size} finite numbers.`,
  );
  require(
    Number.isInteger(count) && count > size,
    `The count of client '${name}' must be a whole number of at least ${size + 1}, one more than targets.`,
  );
  require(
    Number.isFinite(weight) && weight > 0,
    `The weight of client '${name}' must be a positive number.`,
  );
  const flat = Float64Array.from(covariance.flat());
  const problem = covarianceProblem(flat, size);
  require(!problem, `The covariance of client '${name}' ${problem}.`);
  const isReleased = privacy !== undefined && privacy !== null;
  require(!isReleased || isPrivacy(privacy, size), `The privacy of client '${name}' is not valid.`);
  const own = isReleased ? { privacy } : {};
  return { name, count, weight, mean: Float64Array.from(mean), covariance: flat, ...own };
}

function isPrivacy({ epsilon, delta, bounds, noise }, size) {
  const areBounds =
    Array.isArray(bounds) && bounds.length === size && bounds.every((pair) => isNumbers(pair, 2) && pair[0] < pair[1]);
  const isBetween = (value, low, high) => typeof value === "number" && value > low && value < high;
  const isNoise = noise === 0 || isBetween(noise, 0, Infinity);
  return areBounds && isNoise && isBetween(epsilon, 0, Infinity) && isBetween(delta, 0, 1);
}

function isNumbers(values, size) {
  return Array.isArray(values) && values.length === size && values.every(Number.isFinite);
}

/** What is wrong with a covariance (C x C); empty if nothing is. Rounding of its symmetry is removed. */
export function covarianceProblem(matrix, size) {
  const largest = matrix.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  for (let i = 0; i < size; i++) {
    for (let j = 0; j < i; j++) {
      const [lower, upper] = [matrix[i * size + j], matrix[j * size + i]];
      if (Math.abs(lower - upper) > ROUNDING * largest) return "is not symmetric";
      matrix[i * size + j] = matrix[j * size + i] = 0.5 * (lower + upper);
    }
  }
  return eigen(matrix, size).values[0] < -ROUNDING * largest ? "has a negative eigenvalue" : "";
}

/** The document of a moments file; weights are in it only if they differ from the counts. */
export function momentsDocument({ targets, clients, isWeighted }) {
  const size = targets.length;
  return {
    format: FORMAT,
    targets,
    clients: clients.map(({ name, count, mean, covariance, weight, privacy }) => ({
      name,
      count,
      mean: [...mean],
      covariance: Array.from({ length: size }, (_, i) => [...covariance.slice(i * size, (i + 1) * size)]),
      ...(isWeighted ? { weight } : {}),
      ...(privacy ? { privacy } : {}),
    })),
  };
}

/** Encode a JSON value for the hash of a URL. */
export function encodeHash(value) {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

/** Decode a value of `encodeHash`. */
export function decodeHash(text) {
  try {
    const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(binary, (char) => char.charCodeAt(0))));
  } catch {
    throw new InputError("The link is damaged: its part after '#' cannot be read. Copy the whole link.");
  }
}
