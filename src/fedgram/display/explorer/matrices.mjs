// Small dense matrices: products, eigenvalues, singular values, definite systems.
//
// Matrices are Float64Arrays, row by row.

export const EPS = 2 ** -52;

export function identity(size, scale = 1) {
  const matrix = new Float64Array(size * size);
  for (let i = 0; i < size; i++) matrix[i * size + i] = scale;
  return matrix;
}

/** a b: (n x k) (k x p). */
export function multiply(a, b, n, k = n, p = n) {
  const product = new Float64Array(n * p);
  for (let i = 0; i < n; i++) {
    for (let l = 0; l < k; l++) {
      const factor = a[i * k + l];
      for (let j = 0; j < p; j++) product[i * p + j] += factor * b[l * p + j];
    }
  }
  return product;
}

/** (n x p) -> (p x n). */
export function transpose(a, n, p = n) {
  const turned = new Float64Array(n * p);
  for (let i = 0; i < n; i++) for (let j = 0; j < p; j++) turned[j * n + i] = a[i * p + j];
  return turned;
}

/** W Wᵀ of a head (n x n). */
export function gram(head, n) {
  return multiply(head, transpose(head, n), n);
}

/** K S Kᵀ, symmetric to the last bit. */
export function congruent(map, matrix, n) {
  const product = multiply(multiply(map, matrix, n), transpose(map, n), n);
  return symmetric(product, n);
}

export function symmetric(matrix, n) {
  const part = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) part[i * n + j] = 0.5 * (matrix[i * n + j] + matrix[j * n + i]);
  }
  return part;
}

export function combine(a, first, b, second) {
  return first.map((value, i) => a * value + b * second[i]);
}

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export function norm(a) {
  return Math.sqrt(dot(a, a));
}

export function trace(matrix, n) {
  let sum = 0;
  for (let i = 0; i < n; i++) sum += matrix[i * n + i];
  return sum;
}

/** vᵀ A v. */
export function quadratic(matrix, vector) {
  const n = vector.length;
  let sum = 0;
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) sum += vector[i] * matrix[i * n + j] * vector[j];
  return sum;
}

/** Eigenvalues, ascending, and eigenvectors (columns of basis) of a symmetric matrix, by Jacobi rotations. */
export function eigen(matrix, n) {
  const a = Float64Array.from(matrix);
  const v = identity(n);
  for (let sweep = 0; sweep < 30; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) off += a[p * n + q] ** 2;
    if (off === 0) break;
    for (let p = 0; p < n - 1; p++) for (let q = p + 1; q < n; q++) rotate(a, v, n, p, q);
  }
  const order = Array.from({ length: n }, (_, i) => i).sort((i, j) => a[i * n + i] - a[j * n + j]);
  const values = Float64Array.from(order, (i) => a[i * n + i]);
  const basis = new Float64Array(n * n);
  for (let k = 0; k < n; k++) for (let i = 0; i < n; i++) basis[i * n + k] = v[i * n + order[k]];
  return { values, basis };
}

function rotate(a, v, n, p, q) {
  const apq = a[p * n + q];
  const app = a[p * n + p];
  const aqq = a[q * n + q];
  if (Math.abs(apq) <= 0.25 * EPS * Math.sqrt(Math.abs(app * aqq)) || apq === 0) {
    a[p * n + q] = a[q * n + p] = 0;
    return;
  }
  const theta = (aqq - app) / (2 * apq);
  const t = Math.sign(theta || 1) / (Math.abs(theta) + Math.sqrt(1 + theta * theta));
  const c = 1 / Math.sqrt(1 + t * t);
  const s = t * c;
  for (let k = 0; k < n; k++) {
    const kp = a[k * n + p];
    const kq = a[k * n + q];
    a[k * n + p] = c * kp - s * kq;
    a[k * n + q] = s * kp + c * kq;
  }
  for (let k = 0; k < n; k++) {
    const pk = a[p * n + k];
    const qk = a[q * n + k];
    a[p * n + k] = c * pk - s * qk;
    a[q * n + k] = s * pk + c * qk;
    const kp = v[k * n + p];
    const kq = v[k * n + q];
    v[k * n + p] = c * kp - s * kq;
    v[k * n + q] = s * kp + c * kq;
  }
  a[p * n + p] = app - t * apq;
  a[q * n + q] = aqq + t * apq;
  a[p * n + q] = a[q * n + p] = 0;
}

/** basis diag(values) basisᵀ. */
export function assemble(basis, values, n) {
  const matrix = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = 0;
      for (let k = 0; k < n; k++) sum += basis[i * n + k] * values[k] * basis[j * n + k];
      matrix[i * n + j] = matrix[j * n + i] = sum;
    }
  }
  return matrix;
}

/** Apply a function to the eigenvalues of a symmetric matrix. */
export function spectral(apply, matrix, n) {
  const { values, basis } = eigen(matrix, n);
  return assemble(basis, values.map(apply), n);
}

export function squareRoot(matrix, n) {
  return spectral((value) => Math.sqrt(Math.max(value, 0)), matrix, n);
}

/** Solve A x = b for a symmetric positive definite A, in place; false if it is not definite. */
export function solveDefinite(a, b, n) {
  for (let j = 0; j < n; j++) {
    let pivot = a[j * n + j];
    for (let k = 0; k < j; k++) pivot -= a[j * n + k] ** 2;
    if (!(pivot > 0)) return false;
    const root = Math.sqrt(pivot);
    a[j * n + j] = root;
    for (let i = j + 1; i < n; i++) {
      let sum = a[i * n + j];
      for (let k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
      a[i * n + j] = sum / root;
    }
  }
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < i; k++) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (let i = n - 1; i >= 0; i--) {
    for (let k = i + 1; k < n; k++) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
  return true;
}

/**
 * Singular values of X (n x n) by one-sided Jacobi rotations: X = U diag(s) Vᵀ. Column j of U and V is row j of
 * `left` and `right`; a singular value that is rounding has a zero column of U. `left` holds Xᵀ on entry.
 */
export function decompose(left, right, singular, n) {
  right.fill(0);
  for (let j = 0; j < n; j++) right[j * n + j] = 1;
  const negligible = (4 * n * EPS) ** 2 * dot(left, left);
  for (let sweep = 0, turned = true; turned && sweep < 30; sweep++) {
    turned = false;
    for (let p = 0; p < n - 1; p++) {
      for (let q = p + 1; q < n; q++) {
        const P = p * n;
        const Q = q * n;
        let pp = 0;
        let qq = 0;
        let pq = 0;
        for (let k = 0; k < n; k++) {
          const x = left[P + k];
          const y = left[Q + k];
          pp += x * x;
          qq += y * y;
          pq += x * y;
        }
        if (Math.abs(pq) <= EPS * Math.sqrt(pp * qq) || pp <= negligible || qq <= negligible) continue;
        turned = true;
        const zeta = (qq - pp) / (2 * pq);
        const t = (zeta < 0 ? -1 : 1) / (Math.abs(zeta) + Math.sqrt(1 + zeta * zeta));
        const c = 1 / Math.sqrt(1 + t * t);
        const s = c * t;
        for (let k = 0; k < n; k++) {
          const x = left[P + k];
          const y = left[Q + k];
          left[P + k] = c * x - s * y;
          left[Q + k] = s * x + c * y;
          const v = right[P + k];
          const w = right[Q + k];
          right[P + k] = c * v - s * w;
          right[Q + k] = s * v + c * w;
        }
      }
    }
  }
  for (let j = 0; j < n; j++) {
    let square = 0;
    for (let k = 0; k < n; k++) square += left[j * n + k] ** 2;
    const length = square > negligible ? Math.sqrt(square) : 0;
    singular[j] = length;
    for (let k = 0; k < n; k++) left[j * n + k] = length > 0 ? left[j * n + k] / length : 0;
  }
}

/** Column k of a matrix (n x n). */
export function column(matrix, k, n) {
  return Float64Array.from({ length: n }, (_, i) => matrix[i * n + k]);
}

/** Σ_m p_m X_m of vectors or matrices. */
export function average(weights, values) {
  const mean = new Float64Array(values[0].length);
  values.forEach((value, m) => {
    for (let i = 0; i < mean.length; i++) mean[i] += weights[m] * value[i];
  });
  return mean;
}
