"""fedgram: federated regression whose outcome is known before it is trained."""

__version__ = "0.1.0"
