"""Run experiments: parts over all cores, finished ones skipped, everything written whole or not at all."""

from __future__ import annotations

import json
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
from fedgram.paper.plots import SETTINGS
from fedgram.paper.storage import Table, digest, read_table, write_table
from fedgram.paper.ufm.experiment import Experiment, Results, Scale, settings_of

SCALES: tuple[Scale, ...] = ("full", "quick")
LIBRARIES = ("numpy", "scipy", "duckdb", "matplotlib")
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """A finished experiment: its verdicts and the files it wrote."""

    experiment: Experiment
    scale: Scale
    judged: list[Judged]
    files: list[Path]

    def document(self) -> dict[str, Any]:
        """What `fedgram reproduce --json` prints for one experiment."""
        return {
            "experiment": self.experiment.name,
            "scale": self.scale,
            "claims": [judged.document() for judged in self.judged],
            "files": [str(path) for path in self.files],
        }


@dataclass(frozen=True)
class PartJob:
    """One part of an experiment and the file it fills."""

    experiment: Experiment
    name: str
    part: partial[Table]
    path: Path


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
    """Run what is not finished, then measure, judge and draw every experiment.

    `started` hears how many parts are finished already and how many there are, `advanced` each part that
    ends, `warned` each result file that had to be redone.
    """
    pyplot()  # better to miss matplotlib now than after minutes of work
    with lock_folders(folder_of(experiment, out, scale) for experiment in experiments):
        jobs = [job for experiment in experiments for job in _jobs(experiment, out, scale)]
        waiting = [job for job in jobs if fresh or not _finished(job, on_warning)]
        on_start(len(jobs) - len(waiting), len(jobs))
        for job in _run_all(waiting):
            on_part(f"{job.experiment.name} {job.name}")
        return [finish(experiment, out, scale) for experiment in experiments]


def folder_of(experiment: Experiment, out: Path, scale: Scale) -> Path:
    """Where an experiment keeps its tables, figure and manifest."""
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
        return read_table(job.path, settings_of(job.part)) is not None
    except InputError as error:
        on_warning(error.message)
        return False


def _table_of(job: PartJob) -> Table:
    table = read_table(job.path, settings_of(job.part))
    if table is None:
        raise InputError(
            f"'{job.experiment.name}' is not finished: run 'fedgram reproduce {job.experiment.name}' first.",
            field=job.name,
        )
    return table


def _run_all(jobs: list[PartJob]) -> Iterable[PartJob]:
    """Run jobs on all cores and yield each as it ends; an interrupt leaves finished ones on disk."""
    if not jobs:
        return
    pool = ProcessPoolExecutor(
        max_workers=min(len(jobs), os.cpu_count() or 1),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # the parent alone answers Ctrl-C
    )
    try:
        with _one_thread():  # processes start as work is submitted
            running = {pool.submit(_run_one, job.part, job.path): job for job in jobs}
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
    """Processes that start in here have one BLAS thread each: matrices are small, and parts fill the cores.

    Afterwards the environment is the user's own again, since networks that are trained next heed it too.
    """
    before = {name: os.environ[name] for name in THREADS if name in os.environ}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name in THREADS:
            del os.environ[name]
        os.environ.update(before)


def _run_one(part: partial[Table], path: Path) -> None:
    write_table(path, part(), settings_of(part))


def _draw(experiment: Experiment, results: Results, folder: Path, scale: Scale) -> list[Path]:
    paths = [folder / "figure.png", folder / "figure.pdf"]
    with pyplot().rc_context(SETTINGS):
        figure = experiment.draw(results)
        figure.text(1, 0, f"GENERATED data, {scale} scale", ha="right", va="top", fontsize=6, color="0.4")
        for path in paths:
            write_bytes(path, render(figure, path.suffix[1:], bbox_inches="tight"))
    return paths


def _manifest(experiment: Experiment, scale: Scale, jobs: list[PartJob], results: Results) -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "where": experiment.where,
        "scale": scale,
        "data": "GENERATED",
        "parts": {
            job.name: {
                "settings": json.loads(json.dumps(settings_of(job.part))),
                "sha256": digest(results[job.name]),
            }
            for job in jobs
        },
        "figure": {"files": ["figure.png", "figure.pdf"], "drawn_from": [job.path.name for job in jobs]},
        "versions": {"fedgram": version("fedgram"), "python": platform.python_version()}
        | {name: version(name) for name in LIBRARIES},
    }
