"""Train federations of networks and predict with them (needs the extra `train`)."""

from fedgram._util.errors import InputError

try:
    import torch  # noqa: F401
except ImportError:
    raise InputError('Training needs PyTorch: pip install "fedgram[train]".', field="torch") from None

from fedgram.training.inference import predict_rows
from fedgram.training.stack_training import Status
from fedgram.training.trainer import train

__all__ = ["Status", "predict_rows", "train"]
