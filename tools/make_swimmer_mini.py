"""Train a Swimmer policy of our own and roll it out: the embedded dataset swimmer-mini.

    pip install "gymnasium[mujoco]"
    python tools/make_swimmer_mini.py src/fedgram/data/datasets/embedded/swimmer_mini.npz

The policy is tanh(K o), with K found by Augmented Random Search (Mania, Guy and Recht 2018, version V1) on
Gymnasium's Swimmer-v5. It is then rolled out, softened and with Gaussian noise on its actions, for five
episodes of 1,000 transitions, each from a reset of its own; the actions kept are those sent, noise included.
Every random number comes from SEED, but another version of MuJoCo may step differently and so find another
policy.

The embedded file was made so with gymnasium 1.4.0 and mujoco 4.0.0 in 62 s of one core: the policy as found
returns 354, softened 324, softened and with noise 319 to 322.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np

Array = np.ndarray[Any, Any]

SEED = 0
ITERATIONS = 100
DIRECTIONS = 2  # each tried forwards and backwards: four episodes per iteration
STEP = 0.02
SPREAD = 0.05  # size of the perturbations that the search tries
SOFTENING = 0.6  # of K: the policy as found is nearly bang-bang, which leaves outer clients noise to learn
NOISE = 0.1  # of the recorded actions; gives their covariance full rank in every client
EPISODES = 5  # four to train on, one to test on


def command(policy: Array, observation: Array) -> Array:
    """The policy's action (2,) for an observation (8,): linear, then bent into the actuators' range."""
    return np.tanh(policy @ observation)


def rollout(
    env: gymnasium.Env[Any, Any], policy: Array, seed: int, noise: float = 0.0
) -> tuple[Array, Array, float]:
    """One episode: observations (T, 8), the actions sent (T, 2) and the return."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, over = [], [], [], False
    while not over:
        action = command(policy, observation) + noise * rng.standard_normal(2)
        observations.append(observation)
        actions.append(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        over = terminated or truncated
    return np.array(observations), np.array(actions), sum(rewards)


def improved(env: gymnasium.Env[Any, Any], policy: Array, rng: np.random.Generator) -> Array:
    """One iteration of the search: a step along the tried directions, each by how much it helped."""
    directions = rng.standard_normal((DIRECTIONS, *policy.shape))
    seed = int(rng.integers(2**31))  # forwards and backwards start alike, so that they can be compared
    returns = np.array(
        [[rollout(env, policy + s * SPREAD * d, seed)[2] for s in (1, -1)] for d in directions]
    )
    slope = np.tensordot(returns[:, 0] - returns[:, 1], directions, axes=1)
    return policy + STEP / (DIRECTIONS * returns.std()) * slope


def trained(env: gymnasium.Env[Any, Any]) -> Array:
    """A linear policy (2, 8), from zero."""
    rng = np.random.default_rng(SEED)
    policy = np.zeros((2, 8))
    for iteration in range(ITERATIONS):
        policy = improved(env, policy, rng)
        if (iteration + 1) % 10 == 0:
            print(f"iteration {iteration + 1}: return {rollout(env, policy, seed=0)[2]:.1f}", flush=True)
    return policy


def main() -> None:
    """Train, roll out, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    start = time.process_time()
    env = gymnasium.make("Swimmer-v5")
    found = trained(env)
    policy = SOFTENING * found
    episodes = [rollout(env, policy, seed=SEED + 1 + e, noise=NOISE) for e in range(EPISODES)]
    observations, actions, returns = (np.array(part, np.float32) for part in zip(*episodes, strict=True))
    np.savez_compressed(file, observations=observations, actions=actions, returns=returns)
    plain = [rollout(env, gain, seed=SEED + 1)[2] for gain in (found, policy)]
    print(
        f"gymnasium {gymnasium.__version__}, mujoco {mujoco.__version__}, "
        f"{time.process_time() - start:.0f} s of one core; returns: as found {plain[0]:.0f}, softened "
        f"{plain[1]:.0f}, with noise {', '.join(f'{value:.0f}' for value in returns)}"
    )


if __name__ == "__main__":
    main()
