// Rounds of federated averaging and their limit, the barycenter, as fedgram.theory.geometry in Python.
//
// With G = A Aᵀ and G_m = B_m B_mᵀ, one round is A⁺ = Σ p_m B_m O_m, where O_m is the polar factor of B_mᵀ A.

import {
  combine, decompose, dot, EPS, gram, multiply, norm, solveDefinite, squareRoot, symmetric, transpose,
} from "./matrices.mjs";

// As in fedgram.theory.geometry.newton: a residual below FLOOR is rounding; one below CONVERGED is, too, if two
// steps did not lower it. DAMPING acts along directions in which the barycenter is not unique.
const FLOOR = 16 * EPS;
const CONVERGED = 1e-12;
const LIMIT = 100;
const DAMPING = 1e-9;

/** Rounds of federated averaging with roots B_m (C x C), which include the client weights. */
class Rounds {
  constructor(roots, size) {
    this.size = size;
    this.square = size * size;
    this.roots = [new Float64Array(this.square), ...roots]; // client 0 is the head itself
    const arrays = (length) => this.roots.map(() => new Float64Array(length));
    [this.left, this.right, this.moved] = [1, 2, 3].map(() => arrays(this.square));
    this.singular = arrays(size);
    this.turn = new Float64Array(this.square);
  }

  /** One round from a head A: A⁺ = Σ B_m O_m, where O_m is the polar factor of B_mᵀ A. */
  play(head) {
    const { size, square } = this;
    this.roots[0].set(head);
    const next = new Float64Array(square);
    for (let m = 0; m < this.roots.length; m++) {
      const root = this.roots[m];
      const left = this.left[m];
      for (let i = 0; i < size; i++) {
        for (let j = 0; j < size; j++) {
          let sum = 0;
          for (let k = 0; k < size; k++) sum += root[k * size + i] * head[k * size + j];
          left[j * size + i] = sum; // row j is column j of B_mᵀ A
        }
      }
      decompose(left, this.right[m], this.singular[m], size);
      const moved = this.moved[m]; // row j is column j of F_m = B_m U_m
      for (let j = 0; j < size; j++) {
        for (let i = 0; i < size; i++) {
          let sum = 0;
          for (let k = 0; k < size; k++) sum += root[i * size + k] * left[j * size + k];
          moved[j * size + i] = sum;
        }
      }
      if (m === 0) continue;
      const right = this.right[m];
      for (let k = 0; k < size; k++) {
        for (let i = 0; i < size; i++) {
          for (let j = 0; j < size; j++) next[i * size + j] += moved[k * size + i] * right[k * size + j];
        }
      }
    }
    this.gap = combine(1, next, -1, head);
    // ‖A⁺A⁺ᵀ - AAᵀ‖ / ‖AAᵀ‖ without the difference of two close Grams
    const half = multiply(combine(1, head, 0.5, this.gap), transpose(this.gap, size), size);
    const change = combine(1, half, 1, transpose(half, size));
    return { head, gap: this.gap, residual: norm(change) / (norm(gram(head, size)) || 1) };
  }

  /** Newton step from the last head, or its gap where the Hessian is not positive. */
  step() {
    const { size, square, turn } = this;
    const hessian = (this.hessian ??= new Float64Array(square ** 2)).fill(0);
    for (let i = 0; i < square; i++) hessian[i * square + i] = 1 + DAMPING;
    for (let m = 0; m < this.roots.length; m++) {
      const [moved, right, singular] = [this.moved[m], this.right[m], this.singular[m]];
      for (let p = 0; p < size; p++) {
        for (let q = p + 1; q < size; q++) {
          for (let i = 0; i < size; i++) {
            const fp = moved[p * size + i];
            const fq = moved[q * size + i];
            for (let j = 0; j < size; j++) {
              turn[i * size + j] = fp * right[q * size + j] - fq * right[p * size + j];
            }
          }
          const weight = (m === 0 ? -1 : 1) / (singular[p] + singular[q] + EPS);
          for (let i = 0; i < square; i++) {
            const scaled = weight * turn[i];
            for (let j = 0; j <= i; j++) hessian[i * square + j] -= scaled * turn[j];
          }
        }
      }
    }
    const step = Float64Array.from(this.gap);
    return solveDefinite(hessian, step, square) ? step : Float64Array.from(this.gap);
  }
}

/** f(A) = ½‖A‖² - Σ ‖B_mᵀA‖_*, with Σ ‖B_mᵀA‖_* = tr(AᵀA⁺). */
function objective(point) {
  return -(0.5 * dot(point.head, point.head) + dot(point.head, point.gap));
}

/**
 * Barycenter of Grams with roots B_m (M of C x C) and weights that sum to one, by Newton's method on factors.
 * A start, the head of a nearby problem, saves rounds.
 */
export function barycenter(roots, weights, size, start = null) {
  const scaled = roots.map((root, m) => root.map((value) => weights[m] * value));
  const unit = Math.sqrt(scaled.reduce((sum, root) => sum + dot(root, root), 0)) || 1;
  const problem = new Rounds(scaled.map((root) => root.map((value) => value / unit)), size);
  const head = start ? start.map((value) => value / unit) : sumOfSquareRoots(roots, weights, unit, size);
  const point = minimize(problem, head);
  const factor = point.head.map((value) => unit * value);
  return { gram: symmetric(gram(factor, size), size), factor, converged: point.residual <= CONVERGED };
}

/** Σ p_m G_m^(1/2), one round from the identity. */
function sumOfSquareRoots(roots, weights, unit, size) {
  const head = new Float64Array(size * size);
  roots.forEach((root, m) => {
    const part = squareRoot(gram(root, size), size);
    for (let i = 0; i < head.length; i++) head[i] += (weights[m] / unit) * part[i];
  });
  return head;
}

/** Point of least residual; a step is quartered until it lowers f or the residual. */
function minimize(problem, head) {
  let base = problem.play(head);
  let best = base;
  let step = base.gap;
  let lower = true;
  let [older, old] = [Infinity, Infinity];
  const settled = () => best.residual <= FLOOR || (best.residual <= CONVERGED && best.residual === older);
  for (let rounds = 1; rounds < LIMIT && !settled(); rounds++) {
    [older, old] = [old, best.residual];
    step = lower ? problem.step() : step.map((value) => value / 4);
    const point = problem.play(combine(1, base.head, 1, step));
    if (point.residual < best.residual) best = point;
    lower = point.residual < base.residual || objective(point) < objective(base);
    if (lower) base = point;
  }
  return best;
}

/** Heads of rounds 0..T from an initial Gram (C x C), eq. (9). */
export function trajectory(initial, roots, weights, rounds) {
  const size = Math.round(Math.sqrt(initial.length));
  const scaled = roots.map((root, m) => root.map((value) => weights[m] * value));
  const problem = new Rounds(scaled, size);
  const heads = [squareRoot(initial, size)];
  for (let t = 0; t < rounds; t++) {
    const { head, gap } = problem.play(heads[t]);
    heads.push(combine(1, head, 1, gap));
  }
  return heads;
}

/** B times the polar factor of Bᵀ W: the U with U Uᵀ = B Bᵀ closest to a head W, eq. (8). */
export function closestFactor(head, root, size) {
  const left = multiply(transpose(head, size), root, size); // (Bᵀ W)ᵀ, as `decompose` expects it
  const right = new Float64Array(size * size);
  decompose(left, right, new Float64Array(size), size);
  return multiply(root, multiply(transpose(left, size), right, size), size);
}
