"""The two apps of a Flower federation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedgram._util.errors import InputError
from fedgram.flower.client import Client
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import Payload
from fedgram.flower.server import run_server
from fedgram.flower.site import Site

KINDS = {"introduce": "query", "train": "train", "evaluate": "evaluate"}
"""What the server asks, and the kind of Flower's message that asks it."""

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class GridTransport:
    """Letters by way of a Flower grid; answers that do not come within patience seconds are left out."""

    grid: Grid
    patience: float

    def nodes(self) -> Sequence[int]:
        """The nodes that are connected."""
        return list(self.grid.get_node_ids())

    def ask(self, what: str, letters: Mapping[int, Payload]) -> dict[int, Payload]:
        """Send letters to nodes; a node that fails is told of and left out."""
        messages = [
            Message(content=letter.records(), dst_node_id=node, message_type=KINDS[what], ttl=self.patience)
            for node, letter in letters.items()
        ]
        answers = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.patience) if messages else ():
            if reply.has_error():
                log.warning("A node did not answer: %s", reply.error.reason)
                continue
            answers[reply.metadata.src_node_id] = Payload.from_records(reply.content)
        return answers


def server_app() -> ServerApp:
    """The server: reads its plan from the run's configuration, and writes the run to its folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            plan = FederationConfig.from_run_config(context.run_config)
            run = run_server(GridTransport(grid, plan.patience), plan, told=log.info)
        except InputError as error:
            log.error(error.message)
            raise error.with_traceback(None) from None  # which marks the run as failed
        log.info("Finished: 'fedgram runs show %s' has every round beside the prediction.", run.folder)

    return app


def client_app(site: Callable[[Context], Site] | None = None) -> ClientApp:
    """A client: `site` gives its rows and network; without it the node's configuration names a table."""
    app = ClientApp()

    def answer(what: Callable[[Client, Payload], Payload], message: Message, context: Context) -> Message:
        try:
            here = site(context) if site else Site.configured(context.node_config, context.run_config)
            participant = Client(here, FederationConfig.from_run_config(context.run_config))
            letter = what(participant, Payload.from_records(message.content))
        except InputError as error:
            letter = _refusal(context, named=site is not None or "site" in context.node_config)
            log.error(error.message)
        except Exception:  # the server need not know more of a mistake in the program either
            letter = _refusal(context, named=True)
            log.exception("fedgram failed.")
        return Message(content=letter.records(), reply_to=message)

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        return answer(lambda participant, _: participant.introduce(), message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(Client.train, message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer(Client.evaluate, message, context)

    return app


def _refusal(context: Context, named: bool) -> Payload:
    """An answer that names the site and not the reason, which may hold values of its rows."""
    if not named:
        return Payload.refusing(
            f"the configuration of node {context.node_id} names no 'site' and 'table', as one of a SuperNode "
            "does (--node-config); a simulation has no such nodes."
        )
    name = context.node_config.get("site", f"at node {context.node_id}")
    return Payload.refusing(f"the log of site '{name}' says why.")
