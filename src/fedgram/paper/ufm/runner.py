"""Run UFM experiments: parts on all cores, finished ones skipped."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import remove_temporary_files, write_bytes, write_json
from fedgram._util.locks import lock_folders
from fedgram.display.plotting import pyplot, render
from fedgram.paper.claims import Judged, judge_all, load_claims
from fedgram.paper.plots import SETTINGS, label_powers
from fedgram.paper.storage import Table, digest, read_table, write_table
from fedgram.paper.ufm.experiment import Experiment, Results, Scale

SCALES: tuple[Scale, ...] = ("full", "quick")
FIGURES = ("figure.svg", "figure.pdf")
LIBRARIES = ("numpy", "scipy", "pyarrow", "matplotlib")
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """Verdicts and files of a finished experiment."""

    experiment: Experiment
    scale: Scale
    judged: list[Judged]
    files: list[Path]

    def document(self) -> dict[str, Any]:
        """Entry of `fedgram reproduce --json`."""
        return {
            "experiment": self.experiment.name,
            "scale": self.scale,
            "claims": [judged.document() for judged in self.judged],
            "files": [str(path) for path in self.files],
        }


@dataclass(frozen=True)
class PartJob:
    """One part of an experiment and its file."""

    experiment: Experiment
    name: str
    part: partial[Table]
    path: Path

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the file must have been made by."""
        return self.experiment.settings_of(self.part)


def run(
    experiments: list[Experiment],
    out: Path,
    scale: Scale,
    *,
    fresh: bool = False,
    on_start: Callable[[int, int], None] = lambda finished, total: None,
    on_part: Callable[[str], None] = lambda name: None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> list[Outcome]:
    """Run unfinished parts, then measure, judge and draw every experiment.

    Parameters
    ----------
    fresh
        Run finished parts again.
    on_start
        Called with the number of finished parts and of all parts.
    on_part
        Called with the name of each part that ends.
    on_warning
        Called with a sentence about each damaged file.
    """
    pyplot()  # a missing matplotlib should fail now, not after minutes of work
    with lock_folders(folder_of(experiment, out, scale) for experiment in experiments):
        jobs = [job for experiment in experiments for job in _jobs(experiment, out, scale)]
        waiting = [job for job in jobs if fresh or not _finished(job, on_warning)]
        on_start(len(jobs) - len(waiting), len(jobs))
        for job in _run_all(waiting):
            on_part(f"{job.experiment.name} {job.name}")
        return [finish(experiment, out, scale) for experiment in experiments]


def folder_of(experiment: Experiment, out: Path, scale: Scale) -> Path:
    """Folder of an experiment's tables, figure and manifest."""
    return out / scale / experiment.name


def finish(experiment: Experiment, out: Path, scale: Scale) -> Outcome:
    """Measure, judge and draw an experiment whose parts are all on disk."""
    jobs, folder = _jobs(experiment, out, scale), folder_of(experiment, out, scale)
    results: Results = {job.name: _table_of(job) for job in jobs}
    judged = judge_all(load_claims(experiment.name), experiment.measure(results))
    files = [job.path for job in jobs] + _draw(experiment, results, folder, scale)
    outcome = Outcome(experiment, scale, judged, [*files, folder / "claims.json", folder / "manifest.json"])
    write_json(folder / "claims.json", outcome.document())
    write_json(folder / "manifest.json", _manifest(experiment, scale, jobs, results))
    return outcome


def _jobs(experiment: Experiment, out: Path, scale: Scale) -> list[PartJob]:
    folder = folder_of(experiment, out, scale)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(folder)
    except OSError as error:
        raise InputError(f"Cannot write to '{folder}': {error.strerror}.", field="out") from None
    return [
        PartJob(experiment, name, part, folder / f"{name}.parquet")
        for name, part in experiment.parts(scale).items()
    ]


def _finished(job: PartJob, on_warning: Callable[[str], None]) -> bool:
    try:
        return read_table(job.path, job.settings) is not None
    except InputError:
        on_warning(f"The result file '{job.path}' is damaged. Its part runs again.")
        return False


def _table_of(job: PartJob) -> Table:
    table = read_table(job.path, job.settings)
    if table is None:
        name = job.experiment.name
        raise InputError(f"'{name}' is not finished. Run 'fedgram reproduce {name}' first.", field=job.name)
    return table


def _run_all(jobs: list[PartJob]) -> Iterable[PartJob]:
    """Run jobs on all cores and yield each as it ends; after an interrupt finished ones are on disk."""
    if not jobs:
        return
    pool = ProcessPoolExecutor(
        max_workers=min(len(jobs), os.cpu_count() or 1),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # only the parent handles Ctrl-C
    )
    try:
        with _one_thread():  # processes start when work is submitted
            running = {pool.submit(_run_one, job.part, job.path, job.settings): job for job in jobs}
        for future in as_completed(running):
            future.result()
            yield running[future]
    except BaseException:
        for process in (pool._processes or {}).values():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Give processes that start in here one BLAS thread each: matrices are small and parts fill the cores.

    Restores the environment, because networks that are trained next read it too.
    """
    before = {name: os.environ[name] for name in THREADS if name in os.environ}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name in THREADS:
            del os.environ[name]
        os.environ.update(before)


def _run_one(part: partial[Table], path: Path, settings: dict[str, Any]) -> None:
    write_table(path, part(), settings)


def _draw(experiment: Experiment, results: Results, folder: Path, scale: Scale) -> list[Path]:
    paths = [folder / name for name in FIGURES]
    with pyplot().rc_context(SETTINGS):
        figure = experiment.draw(results)
        for axis in figure.axes:
            label_powers(axis)
        figure.supxlabel(f"GENERATED data, {scale} scale", x=0.99, ha="right", fontsize=6, color="0.4")
    with pyplot().rc_context(SETTINGS | {"figure.constrained_layout.use": False}):  # lay out once
        for path in paths:
            write_bytes(path, render(figure, path.suffix[1:]))
    return paths


def _manifest(experiment: Experiment, scale: Scale, jobs: list[PartJob], results: Results) -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "where": experiment.where,
        "scale": scale,
        "data": "GENERATED",
        "parts": {
            job.name: {
                "settings": job.settings,
                "sha256": digest(results[job.name]),
            }
            for job in jobs
        },
        "figure": {"files": list(FIGURES), "drawn_from": [job.path.name for job in jobs]},
        "versions": {"fedgram": version("fedgram"), "python": platform.python_version()}
        | {name: version(name) for name in LIBRARIES},
    }
