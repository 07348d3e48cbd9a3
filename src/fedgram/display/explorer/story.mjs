// The result in two sentences.

import { percent } from "./plots.mjs";

const REASONS = ["the clients' means differ", "their covariances differ", "heads are averaged instead of Grams"];

/** How far federated averaging ends from centralized training, or why that is not defined. */
export function headline({ error, gap, strength }) {
  if (error) return error;
  const subject = strength > 0 ? "With this correction, federated averaging" : "Federated averaging";
  if (gap.isNegligible) return `${subject} ends where centralized training ends.`;
  return `${subject} ends ${percent(gap.relative)} away from centralized training.`;
}

/** The main cause of the gap, and how sure its size is. */
export function summary({ error, gap }, intervals) {
  if (error) return "The limit is not defined here.";
  if (gap.isNegligible) return "There is no gap to explain.";
  const span = intervals
    ? ` With these row counts, the 95% sampling interval is ${intervals.relative.map(percent).join(" to ")}.`
    : "";
  if (!gap.isOneSided) return `Some terms are negative, because a client is not fully active.${span}`;
  const main = gap.shares.indexOf(Math.max(...gap.shares));
  return `Main cause, ${percent(gap.shares[main])} of the gap: ${REASONS[main]}.${span}`;
}
