"""All experiments by name: on the unconstrained feature model and with networks."""

from __future__ import annotations

from importlib import import_module

from fedgram._util.errors import InputError
from fedgram._util.text import suggest
from fedgram.paper.networks.studies.registry import STUDIES
from fedgram.paper.ufm.experiment import Experiment

MODULES = {
    f"ufm-{name}": f"fedgram.paper.ufm.{name}"
    for name in ("instance", "selection", "barycenter", "gap", "correction", "finite")
}
GROUPS = {
    "ufm": tuple(MODULES),
    "dnn": tuple(name for name in STUDIES if name.startswith("dnn-")),
    "beyond": tuple(name for name in STUDIES if name.startswith("beyond-")),
    "all": (*MODULES, *STUDIES),
}


def expand_name(name: str) -> tuple[str, ...]:
    """Expand the name of a group to those of its experiments; keep the name of an experiment."""
    if name in GROUPS:
        return GROUPS[name]
    if name in GROUPS["all"]:
        return (name,)
    meant = suggest(name, [*GROUPS, *GROUPS["all"]])
    raise InputError(
        f"There is no experiment '{name}'{meant} Run 'fedgram reproduce list' to see all names.", field="name"
    )


def load_experiment(name: str) -> Experiment:
    """Import the module of an experiment on the unconstrained feature model."""
    found: Experiment = import_module(MODULES[name]).EXPERIMENT
    return found
