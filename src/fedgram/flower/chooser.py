"""Choose round, strengths and shares from what clients report of their validation rows.

The server sees parameters, sums and squared errors. From the sums of all clients it chooses strengths and
solves the moment head. Clients compute site effects and mixtures, from their own rows and the totals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.federation.returns import Layers
from fedgram.federation.site_models import absorb
from fedgram.flower.checks import check_blend, check_finish
from fedgram.flower.introduction import ClientInfo
from fedgram.flower.messages import (
    ALONE_ERRORS,
    BLEND,
    BLENDS,
    FINISH,
    SUMS,
    TRIAL,
    Payload,
    name_sums,
    read_sums,
)
from fedgram.flower.roster import Roster
from fedgram.flower.secure_chooser import averaged_map, choose_blend, read_method, read_ratio, to_row
from fedgram.flower.server_state import BEST
from fedgram.runs.joining import JOINING
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.site_effects import Trial, choose_strengths

Arrays = dict[str, Array]
Send = Callable[..., dict[str, Payload]]
"""Sends a payload to clients and returns the accepted replies: `Server.send`."""


class Chooser:
    """The server's part of choosing models; what it chose so far is in `ServerState`."""

    def __init__(self, roster: Roster, send: Send) -> None:
        self.roster, self.state, self.send = roster, roster.state, send
        self.procedure = roster.config.run.procedure

    def choose_round(
        self, number: int, average: Arrays, replies: Mapping[str, Payload], measured: Mapping[str, Payload]
    ) -> Arrays:
        """Compare a round with the best so far; return arrays that replace the average in the next broadcast.

        A client that did not report counts with its last error.
        """
        procedure, state = self.procedure, self.state
        if procedure.trains_alone:
            alone = {client: float(reply.arrays["local_error"]) for client, reply in replies.items()}
            state.update_errors("local", alone)
            state.best_local.update(number, state.mean_error("local"))
        if procedure.local or not measured:
            return {}
        if procedure.moment_head:
            return self._choose_moment_head(number, average, measured)
        errors = {client: float(reply.arrays["validation_error"]) for client, reply in measured.items()}
        self._compare(number, errors, average)
        return {}

    def _choose_moment_head(self, number: int, average: Arrays, measured: Mapping[str, Payload]) -> Arrays:
        targets = len(average["bias"])
        measured = {client: measured[client] for client in self.roster.names if client in measured}
        triangles = {name: np.stack([reply.arrays[name] for reply in measured.values()]) for name in SUMS}
        training, validation = read_sums(triangles, targets)
        trial, errors = self._search(average, training, validation, deviations=False)
        self._compare(number, dict(zip(measured, errors / targets, strict=True)), average | triangles)
        every = self.procedure.moment_head
        if every == 1 or number % every:
            return {}
        return absorb_head(average, training.total(), trial.ridge)

    def _compare(self, number: int, errors: Mapping[str, float], arrays: Arrays) -> None:
        self.state.update_errors("shared", errors)
        if self.state.best.update(number, self.state.mean_error("shared")):
            self.state.keep_best(number, arrays)

    def _search(
        self, average: Arrays, training: FeatureSums, validation: FeatureSums, *, deviations: bool
    ) -> tuple[Trial, Array]:
        """Choose strengths for the features of a round; also return each client's error."""
        trial, errors = choose_strengths(
            training, validation, effects=self.procedure.site_effects, deviations=deviations,
            toward=averaged_map(average),
        )  # fmt: skip
        return trial, np.maximum(errors, 0.0)  # rounding

    def finish(self, rounds: int) -> dict[str, Any]:
        """Let clients keep the models of the best round; return what was chosen, for the account."""
        procedure, state = self.procedure, self.state
        best = state.best.round
        chosen: dict[str, Any] = {} if procedure.local else {"round": best}
        kept = state.own.get((BEST, best), {})
        if procedure.moment_head and not kept:
            raise InputError(
                "No client evaluated a round, so there is no head to solve. Start another run.",
                field="clients",
            )
        arrays = dict(kept)
        if procedure.moment_head:
            training, validation = read_sums(kept, len(kept["bias"]))
            trial, _ = self._search(kept, training, validation, deviations=True)
            arrays |= name_sums(training.total(), validation.total()) | {TRIAL: to_row(trial)}
            chosen |= {"ridge": trial.ridge, **trial.strengths.document()}
        if procedure.blended:
            arrays |= self._compare_alone(rounds, best, arrays)
            chosen["local_ridge"] = read_ratio(arrays)
        replies = self._ask(
            FINISH, rounds, best, arrays, lambda reply, info: check_finish(reply, info, rounds)
        )
        if procedure.local:
            chosen["round"] = self._by_client(
                {name: each.metadata["chosen"] for name, each in replies.items()}
            )
        for name in ("local_share", "test_mse", *JOINING) if procedure.blended else ("test_mse",):
            chosen[name] = self._by_client(
                {client: float(reply.arrays[name]) for client, reply in replies.items()}
            )
        return chosen | ({"alone": read_method(arrays)} if procedure.blended else {})

    def _compare_alone(self, rounds: int, best: int, arrays: Arrays) -> Arrays:
        """Choose how models trained alone are used: ratio of their heads, prior of shares, comparison."""
        replies = self._ask(BLEND, rounds, best, arrays, check_blend)
        rows = [float(self.roster.clients[client].validation_rows) for client in replies]
        names = (*BLENDS, ALONE_ERRORS)
        sums = (np.stack([each.arrays[name] for each in replies.values()], axis=1) for name in names)
        return choose_blend(np.array(rows), *sums)

    def _ask(
        self,
        kind: str,
        number: int,
        model: int,
        arrays: Arrays,
        check: Callable[[Payload, ClientInfo], None],
    ) -> dict[str, Payload]:
        """Ask all clients about their models of a round; stop if none replies."""
        clients, best_local = self.roster.clients, self.state.best_local.round
        replies = self.send(
            kind, number, arrays, self.roster.active, lambda client, reply: check(reply, clients[client]),
            model=model, best_local=best_local,
        )  # fmt: skip
        if not replies:
            raise InputError(
                f"No client replied to '{kind}' in round {number}. Run the same command again to resume. "
                f"{' '.join(self.roster.problems)}".rstrip(),
                field="clients",
            )
        return {client: replies[client] for client in self.roster.names if client in replies}

    def _by_client(self, values: Mapping[str, Any]) -> list[Any]:
        """List values in the order of clients; None for absent clients and for NaN."""
        found = (values.get(client) for client in self.roster.names)
        return [None if each is None or np.isnan(each) else each for each in found]


def absorb_head(average: Mapping[str, Array], sums: FeatureSums, ridge: float) -> Arrays:
    """Return the feature layer and bias with which the averaged head predicts as the moment head does."""
    names = ("head", "bias", "layer_weight", "layer_bias")
    layers = Layers(*(torch.from_numpy(average[name])[None] for name in names))
    moved = absorb(layers, sums.moment_head(ridge, averaged_map(average)))
    return {"layer_weight": moved.layer_weight[0].numpy(), "bias": moved.bias[0].numpy()}
