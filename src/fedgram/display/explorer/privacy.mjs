// What the noise of private moments does to the gap, as fedgram.theory.noise.

import { combine, eigen, identity, spectral, symmetric } from "./matrices.mjs";
import { percent } from "./plots.mjs";

// The limits of fedgram.theory.noise, which has the reasons.
const [DECISIVE, NEGLIGIBLE, LEAST_RATIO] = [0.5, 0.02, 2];
const MEAN_WEIGHT = 0.5; // factor of Σy in the released sums
export const DECIDES = "The privacy noise decides the answer:";
const REMEDY = "Release moments of more rows, with narrower bounds or a larger epsilon.";

/** Whether any client has private moments. */
export function isPrivate(moments) {
  return moments.clients.some((client) => client.privacy);
}

/** Which clients are private, in a sentence; empty if none is. */
export function describePrivacy({ clients }) {
  const found = clients.filter((client) => client.privacy);
  if (found.length === 0) return "";
  const who = found.length === clients.length ? "all" : `${found.length} of ${clients.length}`;
  const epsilon = Math.max(...found.map((client) => client.privacy.epsilon));
  return (
    `The moments of ${who} clients are private (epsilon ${Number(epsilon.toPrecision(6))}). ` +
    "A client whose rows, mean or covariance you change no longer counts as private."
  );
}

/** Centers and half widths of the bounds of a client's targets. */
function unitsOf({ bounds }) {
  return {
    center: bounds.map(([low, high]) => (low + high) / 2),
    unit: bounds.map(([low, high]) => (high - low) / 2),
  };
}

/** Divide, or with `power` 1 multiply, a matrix (C x C) by the units of its targets. */
function rescale(matrix, unit, power) {
  const size = unit.length;
  return matrix.map((value, k) => value * (unit[Math.floor(k / size)] * unit[k % size]) ** power);
}

/** Why a client's noise leaves no answer; empty if none does. */
export function noiseProblem({ clients, targets }) {
  for (const { name, count, covariance, privacy } of clients) {
    if (!privacy || privacy.noise === 0) continue;
    const least = eigen(rescale(covariance, unitsOf(privacy).unit, -1), targets.length).values[0];
    const ratio = (least * count) / privacy.noise;
    if (ratio >= LEAST_RATIO) continue;
    return (
      `${DECIDES} the smallest variance of client '${name}' is ${Math.max(ratio, 0).toFixed(1)} standard ` +
      `deviations of its noise, less than ${LEAST_RATIO}. ${REMEDY}`
    );
  }
  return "";
}

/** Why the noise's interval of the gap leaves no answer; empty if it leaves one. */
export function noiseRefusal(relative, [low, high], undefinedDraws, draws) {
  if (undefinedDraws > 0) {
    return `${DECIDES} in ${undefinedDraws} of ${draws} draws, the limit is not defined. ${REMEDY}`;
  }
  const half = (high - low) / 2;
  if (half <= Math.max(DECISIVE * relative, NEGLIGIBLE)) return "";
  return (
    `${DECIDES} it moves the gap of ${percent(relative)} by ${percent(half)} ` +
    `(95% interval ${percent(low)} to ${percent(high)}). ${REMEDY}`
  );
}

/** Draw the noise of all private clients again; `normal` draws a standard normal number. */
export function drawNoise(moments, normal) {
  const size = moments.targets.length;
  const clients = moments.clients.map((client) => (client.privacy ? drawClientNoise(client, size, normal) : client));
  return { ...moments, clients };
}

function drawClientNoise(client, size, normal) {
  const { center, unit } = unitsOf(client.privacy);
  const deviation = client.privacy.noise / client.count;
  const outer = (vector) => Float64Array.from(vector.flatMap((a) => vector.map((b) => a * b)));
  const mapped = Array.from(client.mean, (value, i) => (value - center[i]) / unit[i]);
  const second = combine(1, rescale(client.covariance, unit, -1), 1, outer(mapped));
  const noise = symmetric(Float64Array.from({ length: size * size }, normal), size);
  const mean = mapped.map((value) => value + (deviation / MEAN_WEIGHT) * normal());
  // What the noise of the mean takes away on average.
  const lost = identity(size, (deviation / MEAN_WEIGHT) ** 2);
  const noisy = combine(1, combine(1, combine(1, second, deviation, noise), -1, outer(mean)), 1, lost);
  const projected = spectral((value) => Math.max(value, 0), noisy, size);
  return {
    ...client,
    mean: Float64Array.from(mean, (value, i) => center[i] + unit[i] * value),
    covariance: rescale(projected, unit, 1),
  };
}
