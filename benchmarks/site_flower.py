"""Flower's own FedAvg and FedProx on its simulation engine, with the network of our full-model training.

From fedgram come the initial weights and the row order, so that both see the same start and minibatches. The
network, loss and optimizer are plain PyTorch, and Flower's strategies average:

x -> Linear -> blocks PReLU(h + Linear(PReLU(Linear(h)))) -> feature Linear (P) -> head Linear (C)
L = 1/(2B) Σ ‖prediction - y‖² + λ_H/(2B) Σ ‖feature‖² + λ_W/2 ‖head‖² + μ/2 ‖w - w_t‖²

FedProx's last term covers all parameters w, as its authors define it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fedgram.nets.backbones import ResMLP
from fedgram.nets.batches import Batches
from fedgram.nets.model import Model, draw
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.penalty import Penalty
from site_problems import Rows, SiteProblem
from site_results import FLOWER_FEDAVG, FLOWER_FEDPROX, Result

ROW_NAMES = {"FedAvg": FLOWER_FEDAVG, "FedProx": FLOWER_FEDPROX}


@dataclass(frozen=True)
class FlowerConfig:
    """Width and number of blocks of the network, fedgram's training configuration, and μ of FedProx."""

    width: int = 64
    blocks: int = 2
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            rounds=30,
            epochs=2,
            batch=64,
            features=64,
            penalty=Penalty(features=1e-4, head=1e-4),
            learning_rate=2e-3,
            decay="run",
        )
    )
    proximal: float = 1e-2


CONFIG = FlowerConfig()


class Block(nn.Module):
    """h ↦ PReLU(h + Linear(PReLU(Linear(h))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.Linear(width, width), nn.PReLU(), nn.Linear(width, width))
        self.activation = nn.PReLU()

    def forward(self, h: Tensor) -> Tensor:
        """h (B, width) -> (B, width)."""
        return self.activation(h + self.change(h))


class Network(nn.Module):
    """Inputs (B, D) to features (B, P) and predictions (B, C)."""

    def __init__(self, inputs: int, targets: int, config: FlowerConfig) -> None:
        super().__init__()
        blocks = (Block(config.width) for _ in range(config.blocks))
        self.backbone = nn.Sequential(nn.Linear(inputs, config.width), *blocks)
        self.feature = nn.Linear(config.width, config.train.features)
        self.head = nn.Linear(config.train.features, targets)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, D) -> features (B, P), predictions (B, C)."""
        features = self.feature(self.backbone(x))
        return features, self.head(features)


def draw_network(problem: SiteProblem, seed: int, config: FlowerConfig) -> Network:
    """Build the network with the initial weights that fedgram draws for this seed."""
    rows = next(iter(problem.sites.values())).train
    inputs, targets = rows.inputs.shape[1], rows.targets.shape[1]
    drawn = draw(
        lambda: ResMLP(inputs, config.width, config.blocks),
        torch.zeros(2, inputs),
        config.train.features,
        targets,
        seed,
        None,
    )
    network = Network(inputs, targets, config)
    with torch.no_grad():
        for own, theirs in zip(network.parameters(), drawn.parameters(), strict=True):
            own.copy_(theirs)
    return network


def train_round(
    network: Network | Model,
    rows: Rows,
    site: str,
    seed: int,
    number: int,
    config: FlowerConfig,
    proximal: float,
) -> None:
    """Train a received network for one round (numbered from 1) on a site's rows."""
    inputs, targets = to_tensors(rows)
    train, count = config.train, len(targets)
    received = [value.detach().clone() for value in network.parameters()]
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.0)
    batches = Batches(inputs, targets, {site: count}, [seed], torch.zeros(1, 1), train.batch)
    steps, step = train.epochs * math.ceil(count / train.batch), 0
    for epoch in range(train.epochs):
        batches.shuffle(number, epoch)
        for batch in batches.order[0, 0, :count].split(train.batch):
            optimizer.param_groups[0]["lr"] = learning_rate(train, number, step / steps)
            optimizer.zero_grad()
            loss = compute_loss(network, inputs[batch], targets[batch], train.penalty)
            if proximal:
                pairs = zip(network.parameters(), received, strict=True)
                loss = loss + proximal / 2 * sum((own - start).square().sum() for own, start in pairs)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), train.clip)
            optimizer.step()
            step += 1


def learning_rate(train: TrainConfig, number: int, progress: float) -> float:
    """Half-cosine over a round or over the run; progress is the finished share of the round."""
    if train.decay == "run":
        progress = (number - 1 + progress) / train.rounds
    low, high = train.final_learning_rate, train.learning_rate
    return low + (high - low) * (1 + math.cos(math.pi * progress)) / 2


def compute_loss(network: Network | Model, inputs: Tensor, targets: Tensor, penalty: Penalty) -> Tensor:
    features, predictions = network(inputs)
    fit = (predictions - targets).square().sum(dim=1).mean()
    size = features.square().sum(dim=1).mean()
    return (fit + penalty.features * size + penalty.head * network.head.weight.square().sum()) / 2


def to_tensors(rows: Rows) -> tuple[Tensor, Tensor]:
    return torch.tensor(rows.inputs, dtype=torch.float32), torch.tensor(rows.targets, dtype=torch.float32)


def mean_squared_error(network: Network | Model, problem: SiteProblem, part: str) -> float:
    """Error over all sites' rows: the mean of the sites' own errors, weighted by their rows."""
    parts = [to_tensors(getattr(site, part)) for site in problem.sites.values()]
    inputs, targets = map(torch.cat, zip(*parts, strict=True))
    with torch.no_grad():
        return float((network(inputs)[1] - targets).double().square().mean())


def flower_rows(
    strategy: str, problem: SiteProblem, seed: int, config: FlowerConfig = CONFIG
) -> Mapping[str, Result]:
    """Run a strategy; return the round of least validation error, and the last round."""
    errors, seconds = simulate(strategy, problem, seed, config)
    size = 4 * sum(value.numel() for value in draw_network(problem, seed, config).parameters())
    sent = float(size * config.train.rounds)
    best = min(errors, key=lambda number: errors[number]["validation"])
    last = max(errors)
    name = ROW_NAMES[strategy]
    return {
        name: Result(errors[best]["test"], sent, seconds),
        f"{name}, last round": Result(errors[last]["test"], sent, seconds),
    }


def simulate(
    strategy: str, problem: SiteProblem, seed: int, config: FlowerConfig
) -> tuple[dict[int, dict[str, float]], float]:
    """Run the federation on Flower's simulation engine; return errors by round and part, and seconds.

    The seconds are those of the strategy: the engine's own start is left out.
    """
    # Read when the libraries are imported and Ray starts.
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg, FedProx
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    sites, errors, seconds = list(problem.sites), {}, []
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        site = sites[int(context.node_config["partition-id"])]
        network, settings = draw_network(problem, seed, config), message.content["config"]
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        rows, number = problem.sites[site].train, int(settings["server-round"])
        train_round(network, rows, site, seed, number, config, float(settings.get("proximal-mu", 0.0)))
        metrics = MetricRecord({"num-examples": len(rows.targets)})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        network = draw_network(problem, seed, config)

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
            network.load_state_dict(arrays.to_torch_state_dict())
            parts = ("validation", "test")
            found = {part: mean_squared_error(network, problem, part) for part in parts}
            if number:  # round 0 is the initial network
                errors[number] = found
            return MetricRecord(found)

        everyone = {"min_train_nodes": len(sites), "min_available_nodes": len(sites)}
        chosen = {
            "FedAvg": lambda: FedAvg(fraction_evaluate=0.0, **everyone),
            "FedProx": lambda: FedProx(fraction_evaluate=0.0, proximal_mu=config.proximal, **everyone),
        }[strategy]()
        initial = ArrayRecord(network.state_dict())
        begin = time.perf_counter()
        chosen.start(grid, initial, num_rounds=config.train.rounds, evaluate_fn=evaluate)
        seconds.append(time.perf_counter() - begin)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=len(sites), backend_config=resources)
    check_rounds(errors, config.train.rounds)
    return errors, seconds[0]


def check_rounds(errors: Mapping[int, Mapping[str, float]], rounds: int) -> None:
    """Raise unless every round was evaluated: the engine logs errors of clients and goes on."""
    if list(errors) != list(range(1, rounds + 1)) or not np.isfinite(errors[rounds]["test"]):
        raise RuntimeError(f"Flower finished {len(errors)} of {rounds} rounds. Rerun with its log at INFO.")
