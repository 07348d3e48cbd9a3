// Intervals of the gap: sampling, as fedgram.theory.intervals, or privacy noise, as fedgram.theory.noise.

import { combine, gram, multiply, norm, squareRoot, trace } from "./matrices.mjs";
import { correctedMoments, findLimit, gapTerms } from "./geometry.mjs";
import { drawNoise, isPrivate, noiseRefusal } from "./privacy.mjs";

/** Uniform numbers in (0, 1) from a seed (mulberry32); equal seeds give equal intervals. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return (((bits ^ (bits >>> 14)) >>> 0) + 0.5) / 2 ** 32;
  };
}

function drawNormal(uniform) {
  return Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** Chi-square with k degrees of freedom (Marsaglia and Tsang). */
function drawChiSquare(uniform, k) {
  if (k < 2) return k === 1 ? drawNormal(uniform) ** 2 : 0;
  const d = k / 2 - 1 / 3;
  for (;;) {
    const x = drawNormal(uniform);
    const v = (1 + x / Math.sqrt(9 * d)) ** 3;
    if (v > 0 && Math.log(uniform()) < 0.5 * x * x + d - d * v + d * Math.log(v)) return 2 * d * v;
  }
}

/** Draw the moments of as many rows from a normal distribution with these moments. */
function drawMoments(moments, roots, uniform) {
  const size = moments.targets.length;
  const clients = moments.clients.map((client, m) => {
    const bartlett = new Float64Array(size * size); // lower triangle of a Wishart factor
    for (let i = 0; i < size; i++) {
      bartlett[i * size + i] = Math.sqrt(drawChiSquare(uniform, client.count - 1 - i));
      for (let j = 0; j < i; j++) bartlett[i * size + j] = drawNormal(uniform);
    }
    const factor = multiply(roots[m], bartlett, size).map((value) => value / Math.sqrt(client.count));
    const normal = Float64Array.from({ length: size }, () => drawNormal(uniform) / Math.sqrt(client.count - 1));
    const mean = combine(1, client.mean, 1, multiply(roots[m], normal, size, size, 1));
    return { ...client, mean, covariance: gram(factor, size) };
  });
  return { ...moments, clients };
}

/**
 * A parametric bootstrap of the gap, in slices that leave time for drawing, as fedgram.theory.intervals. Private
 * moments get their noise drawn again instead.
 * `observe` maps a barycenter's Gram to further numbers that get intervals.
 */
export class Bootstrap {
  constructor(moments, penalty, result, observe, { draws = 400, seed = 1 } = {}) {
    Object.assign(this, { moments, penalty, result, draws });
    const gapOf = (drawn) => {
      const away = norm(combine(1, drawn.centralized, -1, drawn.barycenter.gram));
      const traces = Object.values(gapTerms(drawn)).map((term) => trace(term, drawn.size));
      return [away / norm(drawn.centralized), ...traces, ...observe(drawn.barycenter.gram)];
    };
    this.observe = gapOf;
    this.uniform = generator(seed);
    this.isNoise = isPrivate(moments);
    this.roots = moments.clients.map((client) => squareRoot(client.covariance, moments.targets.length));
    this.samples = [];
    this.tried = 0;
  }

  draw() {
    if (this.isNoise) return drawNoise(this.moments, () => drawNormal(this.uniform));
    return drawMoments(this.moments, this.roots, this.uniform);
  }

  /** Draw until all draws are done or the time, in milliseconds, is over; return whether all are done. */
  advance(milliseconds = Infinity) {
    const start = performance.now();
    while (this.tried < this.draws && performance.now() - start < milliseconds) {
      this.tried += 1;
      const drawn = correctedMoments(this.draw(), this.result.strength);
      const limit = findLimit(drawn, this.penalty, this.result);
      if (!limit.error) this.samples.push(this.observe(limit));
    }
    return this.tried >= this.draws;
  }

  /**
   * Symmetric basic intervals: 2θ̂ - avg θ* ± the quantile of |θ* - avg θ*|. No gap is negative, and no term is
   * while all clients are fully active.
   */
  intervals(level = 0.95) {
    const spans = this.observe(this.result).map((estimate, i) => {
      const values = this.samples.map((sample) => sample[i]);
      const center = values.reduce((sum, value) => sum + value, 0) / values.length;
      const half = quantile(values.map((value) => Math.abs(value - center)).sort((a, b) => a - b), level);
      return [2 * estimate - center - half, 2 * estimate - center + half];
    });
    const clip = (span) => span.map((end) => Math.max(end, 0));
    const [relative, mean, covariance, averaging, ...others] = spans;
    const terms = [mean, covariance, averaging];
    const traces = this.result.fullyActive ? terms.map(clip) : terms;
    const missing = this.tried - this.samples.length;
    const estimate = this.result.gap.relative;
    const refusal = this.isNoise ? noiseRefusal(estimate, clip(relative), missing, this.tried) : "";
    return { relative: clip(relative), traces, radii: others, isNoise: this.isNoise, refusal };
  }
}

/** Linear interpolation of ascending values, as numpy.quantile. */
function quantile(values, fraction) {
  const place = fraction * (values.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, values.length - 1);
  return values[below] + (place - below) * (values[above] - values[below]);
}
