"""All experiments of the paper by name: those that run here, and those that are still to come."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from fedgram.errors import InputError
from fedgram.paper.experiment import Experiment

MODULES = {
    "ufm-instance": "fedgram.paper.ufm_instance",
    "ufm-selection": "fedgram.paper.ufm_selection",
    "ufm-barycenter": "fedgram.paper.ufm_barycenter",
    "ufm-gap": "fedgram.paper.ufm_gap",
    "ufm-correction": "fedgram.paper.ufm_correction",
    "ufm-finite": "fedgram.paper.ufm_finite",
}
GROUPS = {"ufm": tuple(MODULES)}


@dataclass(frozen=True)
class Planned:
    """An experiment of the paper that needs trained networks and cannot be run yet."""

    name: str
    title: str
    where: str


PLANNED = (
    Planned("dnn-main", "Selection and moment correction in networks", "Sec. 5.2, App. F.1"),
    Planned("dnn-means", "Removing the mean contribution", "App. F.2"),
    Planned("dnn-epochs", "Local epochs and the endpoint", "App. F.3"),
    Planned("dnn-rho", "Dependence on the proximal weight", "App. F.4"),
    Planned("dnn-alignment", "Selection by alignment", "App. F.5"),
    Planned("dnn-architecture", "Architecture and data size", "App. F.6"),
    Planned("dnn-full-model", "Full-model averaging", "App. F.6"),
    Planned("dnn-prediction", "Test error", "App. F.7"),
)


def names_of(name: str) -> tuple[str, ...]:
    """Names of the experiments that a name or the name of a group stands for."""
    if name in GROUPS:
        return GROUPS[name]
    if name in MODULES:
        return (name,)
    if name in {planned.name for planned in PLANNED}:
        raise InputError(
            f"The experiment '{name}' cannot be run yet: it needs trained networks.", field="name"
        )
    near = get_close_matches(name, [*GROUPS, *MODULES], n=1, cutoff=0.0)
    raise InputError(
        f"There is no experiment '{name}'; did you mean '{near[0]}'? "
        "'fedgram reproduce --list' names them all.",
        field="name",
    )


def experiment(name: str) -> Experiment:
    """The experiment of that name; its module is imported only now."""
    found: Experiment = import_module(MODULES[name]).EXPERIMENT
    return found
