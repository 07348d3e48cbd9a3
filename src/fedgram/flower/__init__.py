"""The same procedures on a Flower federation: each site keeps its rows and backbone where they are."""

from fedgram._util.errors import InputError

try:
    import flwr  # noqa: F401
except ImportError:
    raise InputError(
        'A federation of sites needs Flower: install it with pip install "fedgram[flower]".', field="flwr"
    ) from None

from fedgram.flower.app import client_app, server_app
from fedgram.flower.site import Site

__all__ = ["Site", "client_app", "server_app"]
