"""Flower's FedAvg on the network of `resmlp-small`, written with Flower, NumPy and PyTorch alone."""

import logging
import time
from pathlib import Path

import numpy as np
import torch
from counted_grid import CountedGrid
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

WIDTH, BLOCKS = 64, 2
"""Of fedgram's backbone `resmlp-small`."""

server = ServerApp()
client = ClientApp()


class Block(nn.Module):
    """h ↦ PReLU(h + Linear(PReLU(Linear(h))))."""

    def __init__(self) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.PReLU(), nn.Linear(WIDTH, WIDTH))
        self.activation = nn.PReLU()

    def forward(self, h: Tensor) -> Tensor:
        """h (B, width) -> (B, width)."""
        return self.activation(h + self.change(h))


def build(inputs: int, features: int, targets: int) -> nn.Module:
    """Return inputs (B, D) -> predictions (B, C)."""
    torch.manual_seed(0)
    blocks = [Block() for _ in range(BLOCKS)]
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), *blocks, nn.Linear(WIDTH, features), nn.Linear(features, targets)
    )


def load(message: Message, context: Context) -> tuple[nn.Module, dict[str, Tensor]]:
    """Read the node's rows and the received network."""
    torch.set_num_threads(1)
    config = context.run_config
    with np.load(Path(str(config["rows"]), f"{context.node_config['partition-id']}.npz")) as arrays:
        rows = {name: torch.as_tensor(arrays[name], dtype=torch.float32) for name in arrays.files}
    network = build(rows["inputs"].shape[1], int(config["features"]), rows["targets"].shape[1])
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return network, rows


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train for the epochs of a round."""
    network, rows = load(message, context)
    inputs, targets, config = rows["inputs"], rows["targets"], context.run_config
    optimizer = torch.optim.AdamW(network.parameters(), lr=float(config["learning-rate"]), weight_decay=0.0)
    for _ in range(int(config["epochs"])):
        for batch in torch.randperm(len(inputs)).split(int(config["batch"])):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(inputs[batch]), targets[batch]).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(inputs)})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the averaged network on training and test rows."""
    network, rows = load(message, context)
    with torch.no_grad():
        errors = {
            name: float(nn.functional.mse_loss(network(rows[f"{part}inputs"]), rows[f"{part}targets"]))
            for name, part in (("train-mse", ""), ("test-mse", "test_"))
            if len(rows[f"{part}inputs"])
        }
    metrics = MetricRecord(errors | {"num-examples": len(rows["inputs"])})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg, and write the seconds and bytes of every round."""
    logging.getLogger("flwr").info("The server app has started.")  # only lines after this one are passed on
    config, counted = context.run_config, CountedGrid(grid)
    clients = int(config["clients"])
    while len(list(grid.get_node_ids())) < clients:
        time.sleep(0.1)
    network = build(int(config["inputs"]), int(config["features"]), int(config["targets"]))
    strategy = FedAvg(min_train_nodes=clients, min_evaluate_nodes=clients, min_available_nodes=clients)

    def mark_round(number: int, arrays: ArrayRecord) -> None:
        counted.mark()

    initial = ArrayRecord(network.state_dict())
    strategy.start(counted, initial, num_rounds=int(config["rounds"]), timeout=3600.0, evaluate_fn=mark_round)
    counted.write(str(config["result"]))
