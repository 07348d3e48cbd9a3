// Sentences on clients that are not fully active and on limits that do not exist, word for word as in Python.

import { average, column, eigen, EPS, quadratic } from "./matrices.mjs";
import { thresholdOf } from "./local_optimum.mjs";

/** Six significant digits, as Python's format '.6g'. */
function formatNumber(value, digits = 6) {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const power = Number(exponent);
  const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (power < -4 || power >= digits) {
    const padded = String(Math.abs(power)).padStart(2, "0");
    return `${trim(mantissa)}e${power < 0 ? "-" : "+"}${padded}`;
  }
  return trim(value.toFixed(digits - 1 - power));
}

/** A target direction (C) as its leading targets with their loadings. */
export function describeDirection(direction, targets) {
  const order = targets.map((_, i) => i).sort((i, j) => Math.abs(direction[j]) - Math.abs(direction[i]));
  const lead = direction[order[0]];
  if (Math.abs(lead) > 0.99) return `target '${targets[order[0]]}'`;
  const parts = order
    .slice(0, 3)
    .filter((i) => Math.abs(direction[i]) > 0.05)
    .map((i) => {
      const loading = Math.sign(lead) * direction[i];
      return `${loading < 0 ? "-" : "+"}${Math.abs(loading).toFixed(2)} ${targets[i]}`;
    });
  return `direction (${parts.join(", ")})`;
}

/** Sentences on clients that are not fully active, as fedgram's Prediction.notes and Correction.notes. */
export function notes(moments, result, penalty) {
  const { clients, strength } = result;
  if (strength === 1) return activityNotes(["The pooled data are"], [result.pooledOptimum], moments.targets, penalty);
  const names = moments.clients.map((client) => `lient '${client.name}' is`);
  const subjects = names.map((name) => (strength > 0 ? `With the correction c${name}` : `C${name}`));
  const about = activityNotes(subjects, clients, moments.targets, penalty);
  if (about.length > 0 && strength === 0 && !result.error) {
    about.push("Inactive directions were clipped: the three terms of the gap need not be positive.");
    if (!clients.some((client) => client.active)) {
      about.push("No client is active in every direction, so the limit may depend on the start.");
    }
  }
  return about;
}

function activityNotes(subjects, optima, targets, penalty) {
  const smallest = Math.min(...optima.map((each) => each.eigenvalue));
  const remedy = smallest > 0 ? `A product below ${formatNumber(smallest)}` : "No positive product";
  const whom = optima.length > 1 ? "every client" : "them";
  return subjects.flatMap((subject, m) =>
    optima[m].active
      ? []
      : `${subject} not fully active: along ${describeDirection(optima[m].direction, targets)} the target variance ` +
        `${formatNumber(Math.max(optima[m].eigenvalue, 0))} does not exceed lambda_h * lambda_w = ` +
        `${formatNumber(thresholdOf(penalty))}. ${remedy} would make ${whom} active.`,
  );
}

/** Why the limit or the gap is not defined, as fedgram's predict() says it; empty if both are. */
export function undefinedLimit(moments, result, penalty) {
  const { size, pooled, clients } = result;
  const threshold = formatNumber(thresholdOf(penalty));
  if (!isDefinite(result.arithmetic, size)) {
    const direction = column(eigen(result.arithmetic, size).basis, 0, size);
    const where = describeDirection(direction, moments.targets);
    const variances = moments.clients.map((client) => quadratic(client.covariance, direction));
    const best = variances.indexOf(Math.max(...variances));
    const name = moments.clients[best].name;
    const equal = clients.map(() => 1 / clients.length);
    if (isDefinite(average(equal, clients.map((client) => client.gram)), size)) {
      return (
        `Along ${where} only clients of negligible weight are active, such as '${name}' with ` +
        `${formatNumber(pooled.weights[best], 3)}. Increase their weights, or drop the target.`
      );
    }
    const largest = Math.max(...moments.clients.flatMap((client) => Array.from(client.covariance, Math.abs)));
    const hint =
      variances[best] <= 1e-13 * largest
        ? `is rounding relative to the largest covariance, ${formatNumber(largest)}. Drop a target that others ` +
          "determine, or give all targets a common scale."
        : `does not exceed lambda_h * lambda_w = ${threshold}. Standardize the targets ` +
          "(--standardize), use smaller penalties, or drop the target.";
    return (
      `No client is active along ${where}: the largest target variance there, ${formatNumber(variances[best])} ` +
      `at client '${name}', ${hint}`
    );
  }
  if (result.centralized.every((value) => value === 0)) {
    const values = eigen(pooled.covariance, size).values;
    return (
      `The pooled data are active in no direction: their largest variance, ${formatNumber(values[size - 1])}, does ` +
      `not exceed lambda_h * lambda_w = ${threshold}. Use smaller penalties.`
    );
  }
  return "";
}

/** Whether a Gram is definite by more than rounding. */
function isDefinite(matrix, size) {
  const { values } = eigen(matrix, size);
  return values[0] > 4 * size * EPS * values[size - 1];
}
