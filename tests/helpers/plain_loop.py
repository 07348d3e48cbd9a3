"""Federated training as one would write it by hand, which the stacked trainer must agree with.

One ordinary module at a time, PyTorch's own optimizer, schedule and clipping, automatic differentiation
through the inverse; what comes after training in NumPy. Shared with the trainer are only the initial draw,
the order of rows, and the completion of an alignment, which nothing determines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import torch
from torch import nn

from fedgram import Moments, align
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.federation.federation import Federation
from fedgram.federation.returns import WEAK, Layers, align_layers
from fedgram.nets.batches import Batches
from fedgram.nets.model import draw
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Round, Run
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.correct import correct
from tests.helpers.shrunk_layers import TrainedLayers, solve_shrunk

CPU = torch.device("cpu")


def tabular(rows=(40, 27, 17), columns=12, targets=2, seed=0):
    """A problem whose clients differ in size, mean and covariance; the second has no test rows."""
    rng = np.random.default_rng(seed)
    slope = rng.standard_normal((columns, targets))

    def split(client, count):
        inputs = rng.standard_normal((count, columns)) + 0.3 * client
        noise = 0.3 * rng.standard_normal((count, targets))
        return Split(inputs, (1 + 0.4 * client) * np.tanh(inputs @ slope) + noise + client)

    train = {f"site {m}": split(m, count) for m, count in enumerate(rows)}
    held_out = {f"site {m}": split(m, 0 if m == 1 else 11 + m) for m in range(len(rows))}
    return Problem("rows", "GENERATED", train, held_out)


def pictures(rows=(18, 12, 11), shape=(16, 16, 1), targets=2, seed=0):
    """Images in bytes, whose targets are contrasts of their halves."""
    rng = np.random.default_rng(seed)

    def split(client, count):
        inputs = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        means = inputs.reshape(count, 2, -1)[:, :, :: 3 + client].mean(axis=2) / 255
        noise = 0.3 * rng.standard_normal((count, targets))
        return Split(inputs, 5 * (1 + client) * (means - 0.5) @ np.ones((2, targets)) + noise + client)

    train = {f"site {m}": split(m, count) for m, count in enumerate(rows)}
    return Problem("pictures", "GENERATED", train, {f"site {m}": split(m, 5) for m in range(len(rows))})


class OwnNet(nn.Module):
    """What a user might bring, with or without BatchNorm: rows to 8 numbers."""

    def __init__(self, columns=12, norm=False):
        super().__init__()
        self.first = nn.Linear(columns, 10, bias=not norm)  # BatchNorm would leave it no gradient
        self.norm = nn.BatchNorm1d(10) if norm else nn.Identity()
        self.second = nn.Linear(10, 8)

    def forward(self, x):
        return torch.tanh(self.second(torch.tanh(self.norm(self.first(x)))))


class RecurrentNet(nn.Module):
    """Rows of 12 numbers as 4 steps of 3; torch.func.vmap has no rule for the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3, 6, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.layer(x.unflatten(1, (4, 3)))[0][:, -1]


def own_net():
    return OwnNet()


def own_net_with_norm():
    return OwnNet(norm=True)


def trained(problem, backbone, runs, settings):
    """A federation after all its rounds, and what every run recorded in each."""
    federation = Federation(problem, backbone, runs, settings, CPU)
    records = list(federation.rounds())
    return federation, {run: [record[run] for record in records if run in record] for run in runs}


def assert_same_round(ours: Round, theirs: Round, tolerance, names=None):
    """Everything recorded, or what is named, agrees to a relative and absolute tolerance."""
    for name in names or [each.name for each in fields(Round)]:
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), rtol=tolerance, atol=tolerance, err_msg=name
        )


@dataclass
class PlainClient:
    """One client: its module, rows, and what it knows of the others."""

    name: str
    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    test: tuple[torch.Tensor, torch.Tensor]
    deficit: np.ndarray
    distance: np.ndarray
    norms: list[float]
    kept: tuple[np.ndarray, ...] = ()
    biases: dict[str, np.ndarray] = field(default_factory=dict)
    center: np.ndarray | float = 0.0
    optimizer: torch.optim.Optimizer | None = None

    def layers(self):
        """Head, bias, and feature layer as arrays."""
        parts = (self.model.head, self.model.feature)
        return [value.detach().numpy().copy() for part in parts for value in (part.weight, part.bias)]

    def put(self, head, bias, weight, layer_bias):
        """Put arrays into the last layers."""
        new = (head, bias, weight, layer_bias)
        parts = (self.model.head, self.model.feature)
        with torch.no_grad():
            for value, array in zip([v for p in parts for v in (p.weight, p.bias)], new, strict=True):
                value.copy_(torch.as_tensor(array))

    def outputs(self, inputs):
        """The backbone's outputs in evaluation mode (N, D)."""
        self.model.eval()
        with torch.no_grad():
            given = self.model.backbone(inputs).numpy()
        self.model.train()
        return given


def train_alone(problem: Problem, backbone, run: Run, settings: TrainConfig):
    """One run of a federation: what it records in each round, and its clients at the end."""
    clients, weights = start(problem, backbone, run, settings)
    head, bias = clients[0].layers()[:2]
    records = []
    for number in range(1, settings.rounds + 1):
        losses, clipped = [], []
        for client in clients:
            receive(client, run.procedure, head, bias, number, settings)
            losses.append(train(client, run, number, torch.as_tensor(head), settings))
            clipped.append(give_back(client, run.procedure, head, settings))
        returned = [client.layers() for client in clients]
        local = [objective(client, *client.layers(), settings) for client in clients]
        head = sum(w * layers[0] for w, layers in zip(weights, returned, strict=True))
        bias = sum(w * layers[1] for w, layers in zip(weights, returned, strict=True))
        if run.procedure.full_model:
            average_modules(clients, weights)
        shared = [objective(client, head, bias, *client.layers()[2:], settings) for client in clients]
        own = [layers[1] for layers in returned]
        plain, centered = ([client.biases[rule] for client in clients] for rule in ("plain", "centered"))
        averages = [sum(w * b for w, b in zip(weights, each, strict=True)) for each in (plain, centered)]
        mses = [errors(client, head, *averages, settings) for client in clients]
        if run.procedure.local:
            shared = local
            mses = [
                errors(client, layers[0], client.biases["plain"], client.biases["centered"], settings)
                for client, layers in zip(clients, returned, strict=True)
            ]
        records.append(
            Round(number, head, bias, np.array([layers[0] for layers in returned]), np.array(own),
                  np.array(local), np.array(shared), np.array([pair[0] for pair in mses]),
                  np.array([pair[1] for pair in mses]), np.array(clipped), np.array(losses))
        )  # fmt: skip
        if run.procedure.returned == "solved":  # which is not trained on
            for client in clients:
                client.put(*client.kept)
    return records, clients


def start(problem, backbone, run, settings):
    """The clients of a run before its first round, and their weights in the average."""
    procedure = run.procedure
    problem = problem.centered() if procedure.centered else problem
    moments, train_rows, test_rows = problem.moments, problem.train, problem.test
    deficit = procedure.corrected * correct(moments).deficit
    distance = moments.offset
    if procedure.centralized:
        train_rows, test_rows = pooled(train_rows), pooled(test_rows)
        deficit, distance = 0 * deficit[:1], 0 * distance[:1]

    def client(m, name):
        x, y = as_seen(train_rows[name])
        own = name if procedure.independent else None
        model = draw(backbone, x[:2].float(), settings.features, y.shape[1], run.seed, own).double()
        return PlainClient(name, model, x, y, as_seen(test_rows[name]), deficit[m], distance[m], [])

    counts = np.array([len(split) for split in train_rows.values()])
    return [client(m, name) for m, name in enumerate(train_rows)], counts / counts.sum()


def pooled(splits):
    """All rows as those of one client."""
    parts = list(splits.values())
    inputs, targets = ([getattr(part, name) for part in parts] for name in ("inputs", "targets"))
    return {"pooled": Split(np.concatenate(inputs), np.concatenate(targets))}


def as_seen(split):
    """Rows in double precision; images with channels first and values in [0, 1]."""
    inputs = torch.tensor(split.inputs)
    if inputs.dtype == torch.uint8:
        inputs = inputs.permute(0, 3, 1, 2).double() / 255
    return inputs.double(), torch.tensor(split.targets)


def receive(client, procedure: Procedure, head, bias, number, settings):
    """Take over what the server sent; a local model keeps its own layers."""
    if procedure.local and number > 1:
        return
    _, own_bias, weight, layer_bias = client.layers()
    if procedure.bias == "offset" and number > 1:
        layer_bias = layer_bias + feature_offset(head, client.distance, settings)
    client.put(head, own_bias if procedure.bias == "private" else bias, weight, layer_bias)


def train(client, run, number, broadcast, settings):
    """A round of minibatch training; the mean loss over the last epoch."""
    count, model = len(client.inputs), client.model
    steps = -(-count // settings.batch)
    if number == 1 or not run.procedure.local:
        client.optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=0.0)
    optimizer = client.optimizer
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = settings.learning_rate
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, settings.epochs * steps, settings.final_learning_rate
    )
    batches = Batches(
        client.inputs, client.targets, {client.name: count}, [run.seed], torch.zeros(1, 1), settings.batch
    )
    for epoch in range(settings.epochs):
        batches.shuffle(number, epoch)
        total = 0.0
        for rows in batches.order[0, 0, :count].split(settings.batch):
            optimizer.zero_grad()
            value = loss(client, rows, broadcast, run.procedure, settings.penalty)
            value.backward()
            client.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), settings.clip)))
            optimizer.step()
            schedule.step()
            total += len(rows) * value.item()
    return total / count


def loss(client, rows, broadcast, procedure, penalty):
    """Eq. (1) on some rows, with what the procedure adds."""
    features, predictions = client.model(client.inputs[rows])
    head = client.model.head.weight
    value = ((predictions - client.targets[rows]) ** 2).sum(dim=1).mean() / 2
    value = value + penalty.features / 2 * (features**2).sum(dim=1).mean()
    value = value + penalty.head / 2 * (head**2).sum()
    value = value + procedure.proximal / 2 * ((head - broadcast) ** 2).sum()
    inverse = torch.linalg.inv(head @ head.T + penalty.features * torch.eye(len(head)).double())
    return value + penalty.features / 2 * torch.trace(torch.as_tensor(client.deficit) @ inverse)


def give_back(client, procedure, broadcast, settings):
    """Change the last layers to what the procedure returns; how many directions were clipped."""
    head, bias, weight, layer_bias = client.layers()
    outputs, clipped = client.outputs(client.inputs), 0
    if procedure.returned != "trained":
        turn = rotation(head, broadcast)
        head, weight, layer_bias = head @ turn, turn.T @ weight, turn.T @ layer_bias
    kept = returned = (head, bias, weight, layer_bias)
    if procedure.returned == "solved":
        deficit = client.deficit if procedure.corrected else None
        rows = outputs, client.targets.numpy()
        solved = solve_shrunk(*rows, broadcast, settings.penalty, TrainedLayers(*kept), deficit, WEAK)
        returned = (solved.head, solved.bias, solved.layer_weight, solved.layer_bias)
        clipped = solved.clipped
    centered = recentered(returned, outputs)
    client.biases = {"plain": returned[1], "centered": centered[1]}
    client.center = returned[3] - centered[3] if procedure.bias == "offset" else 0.0
    if procedure.bias == "offset":
        kept, returned = recentered(kept, outputs), centered
    client.put(*returned)
    client.kept = kept
    return clipped


def recentered(layers, outputs):
    """The same predictions from features of mean 0."""
    head, bias, weight, layer_bias = layers
    mean = (outputs @ weight.T + layer_bias).mean(axis=0)
    return head, bias + head @ mean, weight, layer_bias - mean


def rotation(head, broadcast):
    """The Q of the trainer, which has to be orthogonal and to give the head that `select.align` gives."""
    one = [torch.as_tensor(each)[None] for each in (head, np.zeros(len(head)), np.eye(head.shape[1]))]
    turn = align_layers(
        Layers(*one, torch.zeros(1, head.shape[1]).double()), torch.as_tensor(broadcast)[None]
    )
    found = turn.layer_weight[0].numpy().T
    np.testing.assert_allclose(found.T @ found, np.eye(len(found)), atol=1e-13)
    np.testing.assert_allclose(head @ found, align(head, broadcast).head, atol=1e-12)
    return found


def average_modules(clients, weights):
    """Give every client the mean of all modules' parameters, but for the head, which it receives."""
    named = [dict(client.model.named_parameters()) for client in clients]
    with torch.no_grad():
        for name in named[0]:
            if name.startswith("head."):
                continue
            mean = sum(w * own[name] for w, own in zip(weights, named, strict=True))
            for own in named:
                own[name].copy_(mean)


def objective(client, head, bias, weight, layer_bias, settings):
    """Eq. (1) of these layers on the client's training rows."""
    features = client.outputs(client.inputs) @ weight.T + layer_bias
    residuals = features @ head.T + bias - client.targets.numpy()
    penalised = settings.penalty.features * (features**2).sum(axis=1)
    fit = ((residuals**2).sum(axis=1) + penalised).mean() / 2
    return fit + settings.penalty.head / 2 * np.sum(head**2)


def errors(client, head, plain_bias, centered_bias, settings):
    """MSE of training and of test rows under the shared bias, the private bias and the offset, (3,) each.

    The layers are those that features come from; a run with the offset has taken `client.center` out.
    """
    _, _, weight, layer_bias = client.layers()
    layer_bias = layer_bias + client.center
    center = (client.outputs(client.inputs) @ weight.T + layer_bias).mean(axis=0)
    offset = feature_offset(head, client.distance, settings)

    def mse(inputs, targets):
        if not len(inputs):
            return np.full(3, np.nan)
        features = client.outputs(inputs) @ weight.T + layer_bias
        rules = [
            (features, plain_bias),
            (features, client.biases["plain"]),
            (features - center + offset, centered_bias),
        ]
        return np.array([np.mean((h @ head.T + b - targets.numpy()) ** 2) for h, b in rules])

    return mse(client.inputs, client.targets), mse(*client.test)


def feature_offset(head, distance, settings):
    """Wᵀ A⁻¹ d of one client."""
    moments = Moments(np.full(2, 9), np.array([distance, -distance]), np.tile(np.eye(len(head)), (2, 1, 1)))
    return correct(moments, settings.penalty).feature_offset(head)[0]
