"""The server app and the client app of a Flower federation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedgram._util.errors import InputError
from fedgram._util.text import escape_text
from fedgram.flower.client import Client
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import KINDS, GridTransport, Payload, log
from fedgram.flower.secure_messages import SECURE_KINDS
from fedgram.flower.secure_server import run_secure_server
from fedgram.flower.server import run_server
from fedgram.flower.site import Site
from fedgram.flower.sites_file import PARTITION, read_site

DEFAULT_ACTION = "default"
"""Flower's name for the action of a message type without one."""
STARTED = "The server app has started."
"""First line of the server app's log; Flower's own lines end here."""
LONGEST_LOG = 5000
"""Characters of the longest message in a log."""


def server_app() -> ServerApp:
    """Create the server app, which reads its settings from the run config and stores the run."""
    app = ServerApp()
    log.addFilter(_shorten_input_error)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        log.info(STARTED)
        config = FederationConfig.from_run_config(context.run_config)
        if config.secure:
            record = run_secure_server(GridTransport(grid, config.reply_timeout), config)
            log.info("Run finished. The prediction and all rounds are in '%s'.", record.folder)
            return
        run = run_server(GridTransport(grid, config.reply_timeout), config)
        log.info("Run finished. Show all rounds with 'fedgram runs show %s'.", run.folder)

    return app


def _shorten_input_error(record: logging.LogRecord) -> bool:
    """Log an InputError as its sentence; Flower would log its traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, InputError):
        record.msg, record.args = escape_text(error.message, LONGEST_LOG), ()
        record.exc_info = record.exc_text = None
    return True


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
            own = site(context) if site else read_site(context.node_config, context.run_config)
            config = FederationConfig.from_run_config(context.run_config)
            check_secure_node(context.node_config, config)
            client = Client(own, config)
            kind, request = message.metadata.message_type, Payload.from_records(message.content)
            payload = client.reply(kind, request)
        except InputError as error:
            log.error(escape_text(error.message, LONGEST_LOG))
            payload = _error_reply(context, has_site=site is not None or _names_a_site(context))
        except Exception:
            log.exception("The client failed.")
            payload = _error_reply(context, has_site=True)
        return Message(payload.to_records(), reply_to=message)

    for kind in (*KINDS, *SECURE_KINDS):
        category, _, action = kind.partition(".")
        getattr(app, category)(action or DEFAULT_ACTION)(reply)
    return app


def _error_reply(context: Context, has_site: bool) -> Payload:
    """Name the site only: the reason may contain row values, so it stays in the client's log."""
    if not has_site:
        return Payload.from_error(
            f"node {context.node_id} has no 'site' and 'table' in its node config. Set them with "
            "'flower-supernode --node-config', or 'sites' in the run config of a simulation."
        )
    name = context.node_config.get("site", f"at node {context.node_id}")
    return Payload.from_error(f"see the log of site '{name}'.")


def check_secure_node(node_config: Mapping[str, Any], config: FederationConfig) -> None:
    """Refuse plain runs at a site whose node config has secure=true."""
    if node_config.get("secure") and not config.secure:
        raise InputError(
            "The node config has secure=true, but the run config has not. Set 'secure' in the run config.",
            field="secure",
        )


def _names_a_site(context: Context) -> bool:
    is_simulated = PARTITION in context.node_config
    has_sites = bool(context.run_config.get("sites") or context.run_config.get("dataset"))
    return "site" in context.node_config or (is_simulated and has_sites)
