// The result in two sentences.

import { percent } from "./plots.mjs";
import { DECIDES } from "./privacy.mjs";

const REASONS = ["the clients' means differ", "their covariances differ", "heads are averaged instead of Grams"];

/** How far federated averaging ends from centralized training, or why that is not defined. */
export function headline({ error, gap, strength }) {
  if (error) return error;
  const subject = strength > 0 ? "With this correction, federated averaging" : "Federated averaging";
  if (gap.isNegligible) return `${subject} ends where centralized training ends.`;
  return `${subject} ends ${percent(gap.relative)} away from centralized training.`;
}

function describeInterval({ relative, isNoise }) {
  const [low, high] = relative.map(percent);
  if (!isNoise) return ` With these row counts, the 95% sampling interval is ${low} to ${high}.`;
  const noise = ` Privacy noise alone leaves it between ${low} and ${high} (95% interval).`;
  return `${noise} Sampling and clipping at the bounds add to this.`;
}

/** The main cause of the gap, and how sure its size is. */
export function summary({ error, gap }, intervals) {
  if (error.startsWith(DECIDES)) return "The page does not answer from these moments.";
  if (error) return "The limit is not defined here.";
  if (gap.isNegligible) return "There is no gap to explain.";
  const span = intervals ? describeInterval(intervals) : "";
  if (!gap.isOneSided) return `Some terms are negative, because a client is not fully active.${span}`;
  const main = gap.shares.indexOf(Math.max(...gap.shares));
  return `Main cause, ${percent(gap.shares[main])} of the gap: ${REASONS[main]}.${span}`;
}
