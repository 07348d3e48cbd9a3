"""Cost of a secure sum: CPU seconds per site and at the server, and bytes, in one process.

    python benchmarks/secure_sums.py [--sites 4,16] [--numbers 17,1000,20000]

A session prepares 32 sums. One site drops out of the sum, so that the server restores its masks.
"""

from __future__ import annotations

import argparse
import time
from secrets import token_bytes

import numpy as np

from fedgram.federation.secure_sums import Participant, default_threshold, open_sum

SUMS, WORD, WORD_ARRAY = 32, 4, 8


def measure(sites: int, size: int) -> str:
    names = [f"site {m:02d}" for m in range(sites)]
    threshold, values = default_threshold(sites), np.random.default_rng(0).standard_normal(size).tolist()
    members = {name: Participant(name, "s", token_bytes(32)) for name in names}
    keys = {name: each.public_keys(SUMS) for name, each in members.items()}
    started = time.process_time()
    members[names[0]].public_keys(SUMS)
    members[names[0]].share_secrets(keys, threshold)
    prepared = time.process_time() - started
    # Opening takes the shares of `threshold` sites; the others' bundles are the same size and need no split.
    sealed = {name: each.share_secrets(keys, threshold) for name, each in members.items()}
    *sent, gone = names
    started = time.process_time()
    masked = {names[0]: members[names[0]].mask(1, values, keys, names)}
    masking = time.process_time() - started
    masked |= {name: members[name].mask(1, values, keys, names) for name in sent[1:]}
    shares = {
        name: members[name].reveal(1, sent, [gone], keys, {each: sealed[each][name] for each in names})
        for name in sent[:threshold]
    }
    started = time.process_time()
    open_sum("s", 1, keys, masked, [gone], shares, threshold)
    opening = time.process_time() - started
    # Every 32-bit word of keys, shares and numbers travels as a float64.
    factor = WORD_ARRAY // WORD
    setup_bytes = factor * (32 * (SUMS + 1) * (sites + 1) + sites * (32 * SUMS + 16))
    sum_bytes = factor * (16 * size + 16 * sites + sites * (32 * SUMS + 16))
    return (
        f"| {sites} | {size:,} | {prepared:.3f} | {masking:.3f} | {opening:.3f} | {setup_bytes / 1e3:,.0f} | "
        f"{sum_bytes / 1e3:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sites", default="4,16")
    parser.add_argument("--numbers", default="17,1000,20000")
    given = parser.parse_args()
    print("| sites | numbers | setup, s | mask, s | open, s | setup, kB per site | sum, kB per site |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for sites in map(int, given.sites.split(",")):
        for size in map(int, given.numbers.split(",")):
            print(measure(sites, size), flush=True)


if __name__ == "__main__":
    main()
