// What one client learns alone: the Gram φ(Σ_m), eq. (7), and whether it is active in every direction.

import { assemble, column, eigen } from "./matrices.mjs";

/** α = sqrt(λ_H / λ_W). */
export function scaleOf(penalty) {
  return Math.sqrt(penalty.features / penalty.head);
}

export function thresholdOf(penalty) {
  return penalty.features * penalty.head;
}

/** Eigenvalue of φ(T), eq. (7), without the cancellation of α √s - λ_H near the threshold. */
function optimum(variance, penalty) {
  const scale = scaleOf(penalty);
  const root = scale * Math.sqrt(Math.max(variance, 0));
  return (Math.max(variance - thresholdOf(penalty), 0) * scale ** 2) / (root + penalty.features);
}

/** Optimal head Gram φ(T) of a covariance T, with its root and the smallest eigenvalue of T. */
export function localOptimum(covariance, penalty, size) {
  const { values, basis } = eigen(covariance, size);
  const optima = values.map((value) => optimum(value, penalty));
  const root = new Float64Array(size * size);
  for (let i = 0; i < size; i++) {
    for (let k = 0; k < size; k++) root[i * size + k] = basis[i * size + k] * Math.sqrt(optima[k]);
  }
  return {
    gram: assemble(basis, optima, size),
    root,
    eigenvalue: values[0],
    direction: column(basis, 0, size),
    margin: values[0] - thresholdOf(penalty),
    active: values[0] - thresholdOf(penalty) > 0,
  };
}
