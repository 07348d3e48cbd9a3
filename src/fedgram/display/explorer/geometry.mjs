// Predict the limit of federated averaging and explain its gap, as fedgram.theory does in Python.
//
// C is the number of targets, M the number of clients. Matrices are Float64Arrays, row by row.
// Moments: { targets: [C names], clients: [{ name, count, weight, mean (C), covariance (C x C) }] };
// weights are positive and need not sum to one. Penalty: { features: λ_H, head: λ_W }.

import {
  average, column, combine, congruent, dot, EPS, identity, multiply, norm, quadratic, solveDefinite, spectral,
  trace, transpose,
} from "./matrices.mjs";
import { barycenter, closestFactor } from "./barycenter.mjs";
import { localOptimum, scaleOf, thresholdOf } from "./local_optimum.mjs";
import { notes, undefinedLimit } from "./notes.mjs";
import { noiseProblem } from "./privacy.mjs";

function normalizedWeights(clients) {
  const total = clients.reduce((sum, client) => sum + client.weight, 0);
  return Float64Array.from(clients, (client) => client.weight / total);
}

/** Pooled moments μ_g, Σ_within, Σ_μ, Σ_cen and the offsets d_m = μ_m - μ_g, eqs. (3)-(5). */
export function pool(moments) {
  const size = moments.targets.length;
  const weights = normalizedWeights(moments.clients);
  const means = moments.clients.map((client) => client.mean);
  const mean = average(weights, means);
  const once = means.map((each) => combine(1, each, -1, mean));
  const rest = average(weights, once); // centered twice to keep precision at large common offsets
  const offsets = once.map((each) => combine(1, each, -1, rest));
  const between = new Float64Array(size * size);
  offsets.forEach((offset, m) => {
    for (let i = 0; i < size; i++) {
      for (let j = 0; j < size; j++) between[i * size + j] += weights[m] * offset[i] * offset[j];
    }
  });
  const within = average(weights, moments.clients.map((client) => client.covariance));
  return { weights, mean, offsets, within, between, covariance: combine(1, within, 1, between) };
}

/**
 * Moments of the problem that clients solve under the correction γ C_m, eq. (13): covariances become
 * (1 - γ) Σ_m + γ Σ_cen. Means that move to μ_g + sqrt(1 - γ) d_m keep Σ_cen as it is.
 */
export function correctedMoments(moments, strength) {
  if (strength === 0) return moments;
  const pooled = pool(moments);
  const clients = moments.clients.map((client, m) => ({
    ...client,
    mean: combine(1, pooled.mean, Math.sqrt(1 - strength), pooled.offsets[m]),
    covariance: combine(1 - strength, client.covariance, strength, pooled.covariance),
  }));
  return { ...moments, clients };
}

/**
 * The prediction and its explanation. `previous`, the result of a nearby problem, saves rounds. If the limit
 * is not defined, or the noise of private moments decides it, `error` is a sentence, and the barycenter and
 * what follows from it are null.
 */
export function predict(moments, penalty, strength = 0, previous = null) {
  const problem = correctedMoments(moments, strength);
  const result = { ...findLimit(problem, penalty, previous), strength, gap: null };
  const refusal = result.error ? "" : noiseProblem(moments);
  if (refusal) refuse(result, refusal);
  if (!result.error) {
    const { factor } = result.barycenter;
    for (const client of result.clients) client.selected = closestFactor(factor, client.root, result.size);
    result.gap = explain(result, problem, penalty);
  }
  result.notes = notes(moments, result, penalty);
  return result;
}

/** Give no answer, but a reason. */
export function refuse(result, error) {
  Object.assign(result, { error, barycenter: null, gap: null });
}

/** Local optima, barycenter and centralized Gram, without their explanation. */
export function findLimit(moments, penalty, previous) {
  const size = moments.targets.length;
  const pooled = pool(moments);
  const clients = moments.clients.map((client) => localOptimum(client.covariance, penalty, size));
  const pooledOptimum = localOptimum(pooled.covariance, penalty, size);
  const result = {
    size,
    pooled,
    clients,
    pooledOptimum,
    within: localOptimum(pooled.within, penalty, size).gram,
    centralized: pooledOptimum.gram,
    arithmetic: average(pooled.weights, clients.map((client) => client.gram)),
    fullyActive: clients.every((client) => client.active),
    barycenter: null,
  };
  result.error = undefinedLimit(moments, result, penalty);
  if (result.error) return result;
  // When no client is fully active the limit may depend on the start, so that it starts as in Python.
  const isWarm = previous?.barycenter && previous.size === size && clients.some((client) => client.active);
  const roots = clients.map((client) => client.root);
  result.barycenter = barycenter(roots, pooled.weights, size, isWarm ? previous.barycenter.factor : null);
  return result;
}

/** The terms M_μ, M_Σ and M_A of the gap, eq. (11). */
export function gapTerms({ centralized, within, arithmetic, barycenter: limit }) {
  return {
    mean: combine(1, centralized, -1, within),
    covariance: combine(1, within, -1, arithmetic),
    averaging: combine(1, arithmetic, -1, limit.gram),
  };
}

/** The gap G_cen - G_⋆ = M_μ + M_Σ + M_A, by cause and by client, as fedgram.theory.explain. */
function explain(result, moments, penalty) {
  const { size, barycenter: limit } = result;
  const terms = gapTerms(result);
  const traces = Object.values(terms).map((term) => trace(term, size));
  const scale = norm(result.centralized);
  const total = combine(1, result.centralized, -1, limit.gram);
  const rounding = roundingOf(result, moments, penalty, scale);
  const sum = traces[0] + traces[1] + traces[2];
  const isOneSided = traces.every((value) => value >= -rounding);
  const share = (part) => (!isOneSided ? NaN : norm(total) <= rounding || sum <= 0 ? 0 : part / sum);
  const byClient = clientParts(result, moments, penalty, traces[0]);
  return {
    terms,
    total,
    traces,
    relative: norm(total) / scale,
    isNegligible: norm(total) <= rounding,
    isOneSided,
    shares: traces.map(share),
    byClient,
    clientShares: byClient.map((parts) => share(parts[0] + parts[1] + parts[2])),
  };
}

/** Largest size of the terms due to rounding alone. */
function roundingOf(result, moments, penalty, scale) {
  const operations = moments.clients.length + 4 * result.size;
  const variance = operations * EPS * norm(result.pooled.covariance);
  const smallest = Math.min(...result.clients.map((client) => client.eigenvalue));
  const least = Math.max(smallest, thresholdOf(penalty));
  const moved = scaleOf(penalty) * Math.min((0.5 * variance) / Math.sqrt(least), Math.sqrt(variance));
  return Math.max(Math.max(1e-12, operations * EPS) * scale, moved);
}

/** Parts [mean, covariance, averaging] of the three traces due to each client; see explain.py. */
function clientParts(result, moments, penalty, meanTrace) {
  const { size, pooled, clients, barycenter: limit } = result;
  const slope = meanSlope(pooled, penalty, size);
  const mean = pooled.offsets.map((offset, m) => pooled.weights[m] * quadratic(slope, offset));
  const sum = mean.reduce((total, part) => total + part, 0);
  const tangent = traceSlope(pooled.within, penalty, size);
  const base = trace(result.within, size);
  return clients.map((client, m) => {
    const step = dot(tangent, combine(1, moments.clients[m].covariance, -1, pooled.within));
    const jump = trace(client.gram, size) - base;
    const displaced = combine(1, client.selected, -1, limit.factor);
    const weight = pooled.weights[m];
    return [sum > 0 ? (meanTrace * mean[m]) / sum : 0, weight * (step - jump), weight * dot(displaced, displaced)];
  });
}

/** ∫₀¹ (tr φ)'(Σ_within + s Σ_μ) ds by Gauss–Legendre. */
function meanSlope(pooled, penalty, size) {
  const sum = new Float64Array(size * size);
  for (const [node, mass] of LEGENDRE) {
    const slope = traceSlope(combine(1, pooled.within, 0.5 * (1 + node), pooled.between), penalty, size);
    for (let i = 0; i < sum.length; i++) sum[i] += 0.5 * mass * slope[i];
  }
  return sum;
}

/** (tr φ)'(T) = (α/2) T^(-1/2) on the active directions of T, zero on the others. */
function traceSlope(covariance, penalty, size) {
  const half = 0.5 * scaleOf(penalty);
  const threshold = thresholdOf(penalty);
  return spectral((value) => (value > threshold ? half / Math.sqrt(value) : 0), covariance, size);
}

/** Nodes and masses of Gauss–Legendre quadrature on [-1, 1]. */
function legendre(count) {
  return Array.from({ length: count }, (_, k) => {
    let x = Math.cos((Math.PI * (k + 0.75)) / (count + 0.5));
    let slope = 1;
    for (let step = 0; step < 10; step++) {
      let [before, value] = [1, x];
      for (let j = 2; j <= count; j++) [before, value] = [value, ((2 * j - 1) * x * value - (j - 1) * before) / j];
      slope = (count * (x * value - before)) / (x * x - 1);
      x -= value / slope;
    }
    return [x, 2 / ((1 - x * x) * slope * slope)];
  });
}

const LEGENDRE = legendre(16);

/**
 * Effects on predictions in the targets' units, as fedgram.theory.effects: per client, and for each way to set
 * the constant, `error`, the mean of prediction minus target, and `difference`, the root mean square of the
 * difference from centralized predictions, C numbers each. Federated predictions are b + K_m (y - μ_m) with
 * K_m = W_⋆ Ŵ_mᵀ A_m⁻¹ and a shared or a private bias b; centralized ones μ_g + K_cen (y - μ_g). `corrected`
 * has the full correction and the feature offset, and equals centralized training. Null without a limit.
 */
export function siteEffects(moments, result, penalty) {
  if (!result.barycenter) return null;
  const { size, clients, barycenter: limit } = result;
  const central = shrink(result.centralized, result.centralized, penalty, size);
  const { offsets } = pool(moments);
  return offsets.map((offset, m) => {
    const { gram: own, selected } = clients[m];
    const overlap = multiply(selected, transpose(limit.factor, size), size);
    const slope = transpose(shrink(own, overlap, penalty, size), size);
    const change = combine(1, slope, -1, central);
    const variance = congruent(change, moments.clients[m].covariance, size);
    const shift = multiply(central, offset, size, size, 1); // K_cen d_m
    const effect = (bias, isSpread) => ({
      error: combine(1, bias, -1, offset),
      difference: shift.map((value, i) =>
        Math.sqrt((isSpread ? Math.max(variance[i * size + i], 0) : 0) + (bias[i] - value) ** 2),
      ),
    });
    return {
      shared: effect(new Float64Array(size), true),
      private: effect(offset, true),
      corrected: effect(shift, false),
    };
  });
}

/** (G + λ_H I)⁻¹ B for matrices C x C. */
function shrink(matrix, right, penalty, size) {
  const solved = new Float64Array(size * size);
  for (let k = 0; k < size; k++) {
    const regularized = combine(1, matrix, penalty.features, identity(size));
    const side = column(right, k, size);
    solveDefinite(regularized, side, size);
    for (let i = 0; i < size; i++) solved[i * size + k] = side[i];
  }
  return solved;
}
