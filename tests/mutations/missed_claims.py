"""Print the claims that an experiment on the exact model misses at quick scale: its name is the argument."""

import sys

from fedgram.paper.claims import judge_all, load_claims
from fedgram.paper.registry import load_experiment


def missed_claims(name):
    experiment = load_experiment(name)
    results = {part: make() for part, make in experiment.parts("quick").items()}
    judged = judge_all(load_claims(name), experiment.measure(results))
    return [each.claim.id for each in judged if each.verdict == "miss"]


if __name__ == "__main__":
    print(*missed_claims(sys.argv[1]))
