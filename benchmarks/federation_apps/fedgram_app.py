"""fedgram's apps, with a server that also writes what the run cost."""

import logging

from counted_grid import CountedGrid
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgram.flower import client_app
from fedgram.flower.app import STARTED
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import GridTransport
from fedgram.flower.secure_server import run_secure_server
from fedgram.flower.server import run_server

server = ServerApp()
client = client_app()


class RoundMarker(logging.Handler):
    """Marks the end of a round when the server logs it."""

    def __init__(self, grid: CountedGrid) -> None:
        super().__init__()
        self.grid = grid

    def emit(self, record: logging.LogRecord) -> None:
        """Mark a round."""
        if record.getMessage().startswith("Round "):
            self.grid.mark()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the server, and write the seconds and bytes of every round after the first."""
    logging.getLogger("flwr").info(STARTED)  # only lines after this one are passed on
    counted, config = CountedGrid(grid), FederationConfig.from_run_config(context.run_config)
    logging.getLogger("flwr").addHandler(RoundMarker(counted))
    run = run_secure_server if config.secure else run_server
    run(GridTransport(counted, config.reply_timeout), config)
    counted.write(str(context.run_config["result"]))
