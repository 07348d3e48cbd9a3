"""Run fedgram's training procedures as a Flower federation."""

from fedgram._util.errors import InputError

try:
    import flwr  # noqa: F401
except ImportError:
    raise InputError('Flower is not installed. Run: pip install "fedgram[flower]".', field="flwr") from None

from fedgram.flower.app import client_app, server_app
from fedgram.flower.predict_at_site import predict_at_site
from fedgram.flower.site import Site

__all__ = ["Site", "client_app", "predict_at_site", "server_app"]
