"""Results while an experiment runs: read from its folder, joined with what is new, and written again."""

from __future__ import annotations

from collections.abc import Iterable

from fedgram._util.locks import in_turn
from fedgram.paper.networks.files import can_be_kept
from fedgram.paper.networks.jobs import Warned
from fedgram.paper.networks.plan import Request
from fedgram.paper.networks.results import Result, Results


class Keeper:
    """The results of a scale on disk, or in memory where they cannot be kept.

    A machine for training may lack DuckDB. Its runs are kept all the same, and the same command collects
    them where DuckDB is.
    """

    def __init__(self, request: Request, warned: Warned) -> None:
        self.request, self.kept, self.held = request, can_be_kept(), Results()
        if not self.kept:
            warned(
                "Results are not saved, which needs DuckDB; the runs are, and the same command collects them "
                "on a machine that has it."
            )

    def merged(self, new: Iterable[Result]) -> Results:
        """All results with new ones, saved; read anew, as another process may have added others meanwhile."""
        folder, found = self.request.results_folder, list(new)
        if not self.kept:
            self.held = self.held.merged(found)
        elif not found:
            self.held = Results.load(folder)
        else:
            with in_turn(folder):
                self.held = Results.load(folder).merged(found)
                self.held.save(folder)
        return self.held

    def collected(self) -> Results:
        """What complete runs found that is not among the results: they were stopped, or brought here."""
        if not self.request.runs_folder.exists():
            return Results()
        from fedgram.paper.networks.collection import collect  # needs safetensors

        scale = self.request.scale
        known = {run.key for run in self.merged(()) if run.scale == scale.name}
        return collect(self.request.runs_folder, scale, known)
