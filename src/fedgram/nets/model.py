"""One client's model: backbone, feature layer to P features, head; and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from hashlib import blake2b

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedgram._util.errors import InputError
from fedgram._util.text import suggest
from fedgram.data.problem import Split
from fedgram.nets.backbones import BACKBONES

Backbone = str | nn.Module | Callable[[], nn.Module]
"""A name from BACKBONES; a function that draws a new module; or a module to start from as it is."""


class Model(nn.Module):
    """x ↦ (h, W h + b): a backbone, the feature layer u ↦ h in R^P, and the shared head W (C, P), b (C,)."""

    def __init__(self, backbone: nn.Module, width: int, features: int, targets: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature = nn.Linear(width, features)
        self.head = nn.Linear(features, targets)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) -> features (B, P) and predictions (B, C)."""
        h = self.feature(self.backbone(x))
        return h, self.head(h)

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(value.numel() for value in self.parameters())


def to_model_input(inputs: Tensor, dtype: torch.dtype, leading: int = 1) -> Tensor:
    """What a backbone sees: images (..., H, W, channels) in bytes become (..., channels, H, W) in [0, 1].

    leading says how many axes stand before those of a row: 1 for rows (N, ...), 2 for stacked minibatches
    (K, B, ...). Bytes with fewer than three axes in a row are numbers like any other.
    """
    images = inputs.dtype == torch.uint8 and inputs.ndim - leading >= 3
    return inputs.movedim(-1, -3).to(dtype) / 255 if images else inputs.to(dtype)


def to_device_dtype(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs as they lie on a device: bytes stay bytes, other numbers are of the type of the networks."""
    return inputs if inputs.dtype == torch.uint8 else inputs.to(dtype)


def draw(
    backbone: Backbone, inputs: Tensor, features: int, targets: int, seed: int, client: str | None
) -> Model:
    """The initial model of a seed: the same head for all clients, and the same backbone if client is None.

    inputs (B, ...) are a few prepared rows. Nothing outside is seeded: the global generator is put back.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key("backbone", seed, client))
        module = new_backbone(backbone, inputs.shape[1:])
        model = Model(module, width(module, inputs), features, targets)
        torch.default_generator.manual_seed(key("head", seed))
        model.head.reset_parameters()
    _check_names(model)
    return model


def _check_names(model: Model) -> None:
    """Refuse what torch.func.functional_call loses: layers with two names beside tensors with two."""
    names = len(list(model.named_parameters(remove_duplicate=False)))
    places = sum(len(list(layer.parameters(recurse=False))) for layer in model.modules())
    if names > places > len(list(model.parameters())):
        raise InputError(
            "The backbone uses a layer under two names, and a parameter in two layers, which does not go "
            "together; do one of both by calling the layer twice.",
            field="backbone",
        )


def example(backbone: Backbone, split: Split, features: int) -> tuple[Model, Tensor]:
    """A model for rows like these, to be looked at rather than trained, and a few inputs that it takes."""
    inputs = to_model_input(torch.tensor(split.inputs[:2]), torch.float32)
    return draw(backbone, inputs, features, split.targets.shape[1], 0, None), inputs


def fingerprint(model: Model, inputs: Tensor) -> str:
    """Tells networks apart: layers, what is frozen, and roughly what they give for inputs of this shape.

    Of inputs that are all ones: what a network gives for rows would say something of them. And not of what
    layers print of themselves, which hangs on the release of torch.
    """
    layers = [type(layer).__name__ for layer in model.modules()]
    shapes = [(name, *value.shape, value.requires_grad) for name, value in model.named_parameters()]
    with torch.no_grad():
        given = deepcopy(model).eval()(torch.ones_like(inputs))[1].abs().sum()
    return f"{key(layers, shapes, f'{given:.3g}'):016x}"


def operations_per_row(model: Model, inputs: Tensor) -> float:
    """Multiplications and additions of matrix products and convolutions for one of the inputs (B, ...)."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        deepcopy(model).eval()(inputs)
    return counter.get_total_flops() / len(inputs)


def key(*parts: object) -> int:
    """A seed for these words and numbers, 63 bits."""
    words = "\0".join(map(str, parts))
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big") >> 1


def name_of(backbone: Backbone) -> str:
    """What results with this backbone are filed under."""
    if isinstance(backbone, str):
        return backbone
    return str(getattr(backbone, "__name__", type(backbone).__name__))


def new_backbone(backbone: Backbone, shape: Sequence[int]) -> nn.Module:
    """A fresh module for inputs of this shape."""
    if isinstance(backbone, str):
        return _named(backbone, shape)
    made = backbone() if callable(backbone) and not isinstance(backbone, nn.Module) else deepcopy(backbone)
    if not isinstance(made, nn.Module):
        raise InputError(
            f"A backbone is a name, a module, or a function that gives a module, not {type(made).__name__}.",
            field="backbone",
        )
    return made


def _named(name: str, shape: Sequence[int]) -> nn.Module:
    if name not in BACKBONES:
        raise InputError(
            f"There is no backbone '{name}'{suggest(name, BACKBONES)} There are {', '.join(BACKBONES)}.",
            field="backbone",
        )
    images = "resmlp" not in name
    if images != (len(shape) == 3):
        raise InputError(
            f"The backbone '{name}' takes {'images' if images else 'rows of numbers'}, "
            f"but inputs have shape {tuple(shape)}.",
            field="backbone",
        )
    return BACKBONES[name](shape)


def width(backbone: nn.Module, inputs: Tensor) -> int:
    """How many numbers the backbone gives per row; refuses one that does not give (batch, numbers)."""
    rows = f"{len(inputs)} rows of shape {tuple(inputs.shape[1:])}"
    try:
        with torch.no_grad():
            given = backbone.to(inputs.dtype).eval()(inputs)  # lazy layers learn their shape here
    except Exception as error:  # a module of the user's may raise anything
        raise InputError(f"The backbone fails on {rows}: {_line(error)}", field="backbone") from error
    backbone.train()
    if not isinstance(given, Tensor) or given.ndim != 2 or len(given) != len(inputs):
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise InputError(
            f"The backbone must map a batch to vectors, shape (batch, features); for {rows} it gave {shape}.",
            field="backbone",
        )
    return int(given.shape[1])


@contextmanager
def translate_errors(rows: int) -> Iterator[None]:
    """Turn what a stack of backbones raises in training, on minibatches of so many rows, into a sentence."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(
            f"The backbone cannot be trained as a stack (torch.func.vmap) in minibatches of {rows}: "
            f"{_line(error)}",
            field="backbone",
        ) from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
