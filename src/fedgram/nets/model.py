"""One client's model: backbone, feature layer, head; and how it is drawn.

x -> u = backbone(x) (B, D) -> h = feature(u) (B, P) -> W h + b (B, C)
"""

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
from fedgram.data.split import Split
from fedgram.nets.backbones import BACKBONES

Backbone = str | nn.Module | Callable[[], nn.Module]
"""A name from BACKBONES, a function that draws a new module, or a module with its initial weights."""


class Model(nn.Module):
    """Backbone, feature layer u -> h in R^P, and head W (C, P), b (C,)."""

    def __init__(self, backbone: nn.Module, width: int, features: int, targets: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature = nn.Linear(width, features)
        self.head = nn.Linear(features, targets)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map inputs (B, ...) to features (B, P) and predictions (B, C)."""
        h = self.feature(self.backbone(x))
        return h, self.head(h)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(value.numel() for value in self.parameters())


def to_model_input(inputs: Tensor, dtype: torch.dtype, leading: int = 1) -> Tensor:
    """Convert to model input: uint8 images (..., H, W, channels) become (..., channels, H, W) in [0, 1].

    `leading` counts the axes before those of a row: 1 for rows (N, ...), 2 for minibatches (K, B, ...).
    uint8 rows with fewer than three axes are ordinary numbers.
    """
    is_image = inputs.dtype == torch.uint8 and inputs.ndim - leading >= 3
    return inputs.movedim(-1, -3).to(dtype) / 255 if is_image else inputs.to(dtype)


def to_device_dtype(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to the dtype of the networks; uint8 stays uint8, which saves memory."""
    return inputs if inputs.dtype == torch.uint8 else inputs.to(dtype)


def draw(
    backbone: Backbone, inputs: Tensor, features: int, targets: int, seed: int, client: str | None
) -> Model:
    """Draw the initial model of a seed; clients share the head, and the backbone if `client` is None.

    inputs (B, ...) are a few model inputs. The global generator is restored.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(hash_key("backbone", seed, client))
        module = build_backbone(backbone, inputs.shape[1:])
        model = Model(module, output_width(module, inputs), features, targets)
        torch.default_generator.manual_seed(hash_key("head", seed))
        model.head.reset_parameters()
    _check_names(model)
    return model


def _check_names(model: Model) -> None:
    """Reject a layer with two names next to a parameter in two layers: torch.func.functional_call fails."""
    names = len(list(model.named_parameters(remove_duplicate=False)))
    places = sum(len(list(layer.parameters(recurse=False))) for layer in model.modules())
    if names > places > len(list(model.parameters())):
        raise InputError(
            "The backbone has both a layer with two names and a parameter in two layers. Call one layer "
            "twice instead.",
            field="backbone",
        )


def draw_example(backbone: Backbone, split: Split, features: int) -> tuple[Model, Tensor]:
    """Draw a model for rows like these, for inspection only; return it and two model inputs."""
    inputs = to_model_input(torch.tensor(split.inputs[:2]), torch.float32)
    return draw(backbone, inputs, features, split.targets.shape[1], 0, None), inputs


def fingerprint(model: Model, inputs: Tensor) -> str:
    """Hash layer types, parameter shapes, frozen parameters, and the rounded output for inputs of ones.

    Outputs for real rows would leak data, and the repr of layers depends on the version of torch.
    """
    layers = [type(layer).__name__ for layer in model.modules()]
    shapes = [(name, *value.shape, value.requires_grad) for name, value in model.named_parameters()]
    with torch.no_grad():
        output = deepcopy(model).eval()(torch.ones_like(inputs))[1].abs().sum()
    return f"{hash_key(layers, shapes, f'{output:.3g}'):016x}"


def operations_per_row(model: Model, inputs: Tensor) -> float:
    """Count the operations of matrix products and convolutions for one row of inputs (B, ...)."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        deepcopy(model).eval()(inputs)
    return counter.get_total_flops() / len(inputs)


def hash_key(*parts: object) -> int:
    """Hash parts to a seed of 63 bits."""
    text = "\0".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def default_name(backbone: Backbone) -> str:
    """Return the name under which runs with this backbone are stored."""
    if isinstance(backbone, str):
        return backbone
    return str(getattr(backbone, "__name__", type(backbone).__name__))


def build_backbone(backbone: Backbone, shape: Sequence[int]) -> nn.Module:
    """Build a new module for inputs of this shape."""
    if isinstance(backbone, str):
        return _build_named(backbone, shape)
    is_function = callable(backbone) and not isinstance(backbone, nn.Module)
    module = _call(backbone) if is_function else deepcopy(backbone)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"A backbone is a name, a module, or a function that returns one, not {type(module).__name__}.",
            field="backbone",
        )
    return module


def _call(function: Callable[[], nn.Module]) -> nn.Module:
    try:
        return function()
    except TypeError as error:  # most likely a class or function that needs arguments
        raise InputError(
            f"The backbone function fails: {_first_line(error)}. Pass a function without arguments that "
            "returns a new module.",
            field="backbone",
        ) from error


def _build_named(name: str, shape: Sequence[int]) -> nn.Module:
    if name not in BACKBONES:
        raise InputError(
            f"Unknown backbone '{name}'{suggest(name, BACKBONES)} Choose from {', '.join(BACKBONES)}.",
            field="backbone",
        )
    takes_images = not name.startswith(("resmlp", "wide-deep"))
    if takes_images != (len(shape) == 3):
        raise InputError(
            f"The backbone '{name}' takes {'images' if takes_images else 'rows of numbers'}, "
            f"but inputs have shape {tuple(shape)}. Choose another backbone.",
            field="backbone",
        )
    return BACKBONES[name](shape)


def output_width(backbone: nn.Module, inputs: Tensor) -> int:
    """Return the width D of the backbone's output; reject an output that is not (B, D)."""
    rows = f"{len(inputs)} rows of shape {tuple(inputs.shape[1:])}"
    try:
        with torch.no_grad():
            output = backbone.to(inputs.dtype).eval()(inputs)  # lazy layers learn their shape here
    except Exception as error:  # a user's module may raise anything
        raise InputError(f"The backbone fails on {rows}: {_first_line(error)}", field="backbone") from error
    backbone.train()
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(inputs):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(
            f"The backbone must return shape (batch, features); for {rows} it returned {shape}.",
            field="backbone",
        )
    return int(output.shape[1])


@contextmanager
def translate_errors(rows: int) -> Iterator[None]:
    """Turn errors of a stack of backbones, on minibatches of this size, into InputError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        remedy = (
            "Choose a batch size that leaves no client a minibatch of one row"
            if rows == 1
            else "Replace operations whose result decides what is computed, such as `if x.sum() > 0`"
        )
        raise InputError(
            f"The backbone cannot be trained as a stack (torch.func.vmap) in minibatches of {rows}: "
            f"{_first_line(error).rstrip('.')}. {remedy}.",
            field="backbone",
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
