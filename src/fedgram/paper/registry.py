"""All experiments by name: the paper's on the unconstrained feature model and with networks, and ours."""

from __future__ import annotations

from importlib import import_module

from fedgram._util.errors import InputError
from fedgram._util.text import suggest
from fedgram.paper.networks.studies.registry import STUDIES
from fedgram.paper.ufm.experiment import Experiment

MODULES = {
    "ufm-instance": "fedgram.paper.ufm.instance",
    "ufm-selection": "fedgram.paper.ufm.selection",
    "ufm-barycenter": "fedgram.paper.ufm.barycenter",
    "ufm-gap": "fedgram.paper.ufm.gap",
    "ufm-correction": "fedgram.paper.ufm.correction",
    "ufm-finite": "fedgram.paper.ufm.finite",
}
GROUPS = {
    "ufm": tuple(MODULES),
    "dnn": tuple(name for name in STUDIES if name.startswith("dnn-")),
    "beyond": tuple(name for name in STUDIES if name.startswith("beyond-")),
    "all": (*MODULES, *STUDIES),
}


def names_of(name: str) -> tuple[str, ...]:
    """Names of the experiments that a name or the name of a group stands for."""
    if name in GROUPS:
        return GROUPS[name]
    if name in GROUPS["all"]:
        return (name,)
    meant = suggest(name, [*GROUPS, *GROUPS["all"]])
    raise InputError(
        f"There is no experiment '{name}'{meant} 'fedgram reproduce --list' names them all.", field="name"
    )


def experiment(name: str) -> Experiment:
    """The experiment on the unconstrained feature model of that name; its module is imported only now."""
    found: Experiment = import_module(MODULES[name]).EXPERIMENT
    return found
