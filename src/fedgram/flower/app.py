"""The server app and the client app of a Flower federation."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedgram._util.errors import InputError
from fedgram._util.text import escape_text
from fedgram.flower.client import Client
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import GridTransport, Payload
from fedgram.flower.server import run_server
from fedgram.flower.site import Site

LONGEST_LOG = 5000
"""Characters of the longest message in a log."""

log = logging.getLogger("flwr")  # `flwr run --stream` shows this logger


def server_app() -> ServerApp:
    """Create the server app, which reads its settings from the run config and stores the run."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            config = FederationConfig.from_run_config(context.run_config)
            run = run_server(GridTransport(grid, config.reply_timeout), config)
        except InputError as error:
            log.error(escape_text(error.message, LONGEST_LOG))
            raise error.with_traceback(None) from None  # Flower marks the run as failed
        log.info("Run finished. Show all rounds with 'fedgram runs show %s'.", run.folder)

    return app


def client_app(site: Callable[[Context], Site] | None = None) -> ClientApp:
    """Create the client app.

    Parameters
    ----------
    site : callable, optional
        Returns the `Site` of a node, given its Flower context. By default the node config names a table.

    Examples
    --------
    >>> from fedgram.flower import client_app
    >>> client = client_app()
    """
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        try:
            own = site(context) if site else Site.from_config(context.node_config, context.run_config)
            client = Client(own, FederationConfig.from_run_config(context.run_config))
            kind, request = message.metadata.message_type, Payload.from_records(message.content)
            payload = client.reply(kind, request)
        except InputError as error:
            log.error(escape_text(error.message, LONGEST_LOG))
            payload = _error_reply(context, has_site=site is not None or "site" in context.node_config)
        except Exception:
            log.exception("The client failed.")
            payload = _error_reply(context, has_site=True)
        return Message(payload.to_records(), reply_to=message)

    app.query()(reply)
    app.train()(reply)
    app.evaluate()(reply)
    return app


def _error_reply(context: Context, has_site: bool) -> Payload:
    """Name the site only: the reason may contain row values, so it stays in the client's log."""
    if not has_site:
        return Payload.from_error(
            f"node {context.node_id} has no 'site' and 'table' in its node config. Set them with "
            "'flower-supernode --node-config'; a simulation has no node config."
        )
    name = context.node_config.get("site", f"at node {context.node_id}")
    return Payload.from_error(f"see the log of site '{name}'.")
