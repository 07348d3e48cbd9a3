"""Training federations of networks, with everything kept on disk (needs the extra `train`)."""

from fedgram._util.errors import InputError

try:
    import torch  # noqa: F401
except ImportError:
    raise InputError('Training needs PyTorch: pip install "fedgram[train]".', field="torch") from None

from fedgram.train.everything import train
from fedgram.train.stack import Status
from fedgram.train.trained import predictions

__all__ = ["Status", "predictions", "train"]
