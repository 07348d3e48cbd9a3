"""Read and compare what clients report before training: rows, targets and network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.version import __version__
from fedgram.flower.messages import Payload, RejectedReplyError
from fedgram.flower.scaling import ColumnMoments, Scaling
from fedgram.theory.moments import Moments

# A column's mean or deviation is in doubt at this multiple of the median site's deviation, which units such
# as meters and millimeters exceed.
DISTANT_MULTIPLE = 300.0


@dataclass(frozen=True, eq=False)
class ClientInfo:
    """A client's description of itself.

    own_mean μ_m (C,) and own_covariance Σ_m (C, C) of its targets; `network` is a fingerprint; width D of the
    backbone's output; backbone_size S: its trained parameters. input_mean and input_variance (I,) are empty
    unless columns are standardized.
    """

    client: str
    rows: int
    test_rows: int
    validation_rows: int
    targets: tuple[str, ...]
    parameters: int
    network: str
    width: int
    backbone_size: int
    own_mean: Array
    own_covariance: Array
    input_mean: Array = field(default_factory=lambda: np.empty(0))
    input_variance: Array = field(default_factory=lambda: np.empty(0))

    @property
    def inputs(self) -> int:
        """Number of input columns that are standardized."""
        return len(self.input_mean)

    @property
    def columns(self) -> ColumnMoments:
        """Moments of all columns."""
        mean = np.concatenate([self.input_mean, self.own_mean])
        variance = np.concatenate([self.input_variance, np.diagonal(self.own_covariance)])
        return ColumnMoments(self.rows, mean, variance)

    def standardize(self, scaling: Scaling) -> ClientInfo:
        """Convert the targets' moments to standardized units."""
        mean, covariance = scaling.encode_moments(self.own_mean, self.own_covariance)
        return replace(self, own_mean=mean, own_covariance=covariance)

    def find_change(self, other: ClientInfo) -> str | None:
        """Return what differs in a later description: rows, targets or network; None if nothing does."""
        same_mean = np.array_equal(self.own_mean, other.own_mean)
        if self.rows != other.rows or not same_mean or (self.own_covariance != other.own_covariance).any():
            return "rows"
        if self.targets != other.targets:
            return "targets"
        network = ("parameters", "network", "width", "backbone_size")
        is_same = all(getattr(self, field) == getattr(other, field) for field in network)
        return None if is_same else "network"


def read_introduction(payload: Payload, features: int) -> ClientInfo:
    """Check a client's description of itself."""
    given = payload.metadata
    if given["version"] != __version__:
        raise RejectedReplyError(
            f"it runs fedgram {given['version']}, but the server runs {__version__}. Install the same version"
        )
    values = {**given, **payload.arrays, "targets": tuple(given["targets"])}
    info = ClientInfo(**{each.name: values[each.name] for each in fields(ClientInfo) if each.name in values})
    if (info.input_variance < 0).any():
        raise RejectedReplyError("'input_variance' is negative")
    if not 1 <= info.width <= info.parameters or info.backbone_size > info.parameters:
        raise RejectedReplyError("the sizes of its network do not fit each other")
    if not 1 <= len(info.targets) <= features:
        raise RejectedReplyError(
            f"features={features} is too small for its {len(info.targets)} targets. Use at least as many"
        )
    try:
        Moments(
            np.array([info.rows]),
            info.own_mean[None],
            info.own_covariance[None],
            (info.client,),
            info.targets,
        )
    except InputError as error:
        raise RejectedReplyError(error.message.rstrip(".")) from None
    return info


def find_distant_columns(clients: Mapping[str, ClientInfo]) -> dict[str, str]:
    """Find clients with a column in other units than most clients have, which would decide its scale."""
    mean, variance = (
        np.stack([getattr(each.columns, name) for each in clients.values()]) for name in ("mean", "variance")
    )
    unit = np.median(np.sqrt(variance), axis=0)
    distance = np.maximum(np.abs(mean - np.median(mean, axis=0)), np.sqrt(variance))
    is_distant = (distance > DISTANT_MULTIPLE * unit) & (unit > 0)
    return {
        client: f"its column {int(np.argmax(columns)) + 1} is not in the units of the others"
        for client, columns in zip(clients, is_distant, strict=True)
        if columns.any()
    }
