"""What an experiment asks for, what of it is finished, what is left to train, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram.data.datasets.dataset import data_directory
from fedgram.paper.launch.costs import cost_of
from fedgram.paper.launch.jobs import Job
from fedgram.paper.networks.results import Results, RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import SETTINGS, AtHand, Source, Variety, at_hand, check_names
from fedgram.paper.networks.studies.registry import Study
from fedgram.runs.procedure import Procedure


@dataclass(frozen=True)
class Request:
    """Which part of the experiments to run, and how; an empty tuple narrows nothing.

    Runs go to `<out>/<scale>/runs`, what they found to `<out>/<scale>/results`, and claims and figure of each
    experiment to `<out>/<scale>/<name>`.
    """

    out: Path
    scale: Scale
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    procedures: tuple[str, ...] = ()
    device: str = "auto"
    engine: str = "local"
    data_dir: Path | None = None

    @property
    def folder(self) -> Path:
        """Where all of this scale lies."""
        return self.out / self.scale.name

    @property
    def runs_folder(self) -> Path:
        """Where runs lie."""
        return self.folder / "runs"

    @property
    def results_folder(self) -> Path:
        """Where results lie, for `Results.load`."""
        return self.folder / "results"

    @property
    def data_folder(self) -> Path:
        """Where datasets lie."""
        return data_directory(self.data_dir)

    def narrowed(self, keys: Sequence[RunKey]) -> list[RunKey]:
        """Those of the runs that are asked for."""
        procedures = {Procedure.parse(words) for words in self.procedures}
        return [
            key
            for key in keys
            if (not self.settings or key.setting in self.settings)
            and (not self.seeds or key.seed in self.seeds)
            and (not procedures or key.procedure in procedures)
        ]


@dataclass(frozen=True)
class ExperimentPlan:
    """An experiment at a scale.

    keys: all its runs that have data or results; wanted: those that are asked for; missing: those of them to
    train now; in_all: how many runs it would have if every setting were at hand; not_run: why some are not;
    sources: what each is trained on; asked_for: settings that it was narrowed to, if any.
    """

    study: Study
    scale: Scale
    keys: tuple[RunKey, ...]
    wanted: tuple[RunKey, ...]
    missing: tuple[RunKey, ...]
    in_all: int
    not_run: Mapping[Variety, str]
    sources: Mapping[Variety, Source]
    asked_for: tuple[str, ...] = ()

    @property
    def left(self) -> str:
        """What is left to train, in words."""
        return str(cost_of(self.missing)) if self.keys else "no data at hand"

    def refused(self, job: Job, reason: str) -> ExperimentPlan:
        """The plan without the settings of a job whose data cannot be used; an error if one was asked for."""
        if not set(self.asked_for).isdisjoint(job.settings):
            raise InputError(reason, field="setting")
        varieties = [(name, job.larger) for name in job.settings if (name, job.larger) in self.sources]
        return replace(self, not_run={**self.not_run, **dict.fromkeys(varieties, reason)})

    @property
    def reasons(self) -> list[str]:
        """A sentence for each setting that was asked for and is not run."""
        return [
            f"{SETTINGS[name].title}{', larger,' if larger else ''} is not run: {reason}"
            for (name, larger), reason in self.not_run.items()
            if not self.asked_for or name in self.asked_for
        ]


def plan_experiments(studies: Sequence[Study], request: Request, results: Results) -> list[ExperimentPlan]:
    """Plan experiments; refuses names that do not exist, and settings without data that were asked for."""
    check_names(request.settings)
    plans = [_plan(study, request, results) for study in studies]
    for plan in plans:
        for (name, _), reason in plan.not_run.items():
            if name in request.settings:
                raise InputError(reason, field="setting")
    if not any(request.narrowed(_everything(study, request.scale)) for study in studies):
        names = ", ".join(study.name for study in studies)
        raise InputError(
            f"No run of {names} at the {request.scale.name} scale has these settings, seeds and procedures.",
            field="setting",
        )
    return plans


def _plan(study: Study, request: Request, results: Results) -> ExperimentPlan:
    scale = request.scale
    found = _at_hand(study, request, results)
    keys = study.keys(scale, found.sources)
    finished = {run.key for run in results if run.scale == scale.name}
    wanted = request.narrowed(keys)
    missing = [key for key in wanted if key not in finished]
    runs = tuple(keys), tuple(wanted), tuple(missing)
    in_all = len(_everything(study, scale))
    return ExperimentPlan(study, scale, *runs, in_all, found.missing, found.sources, request.settings)


def _everything(study: Study, scale: Scale) -> list[RunKey]:
    """The runs of a study if all data were at hand."""
    return study.keys(scale, {(name, larger): SETTINGS[name].sources[0] for name, larger in study.varieties})


def _at_hand(study: Study, request: Request, results: Results) -> AtHand:
    if request.scale.embedded:
        return AtHand({(name, larger): request.scale.source(name) for name, larger in study.varieties}, {})
    finished = [(run.setting, run.dataset, run.larger) for run in results]
    return at_hand(study.varieties, request.data_folder, finished)
