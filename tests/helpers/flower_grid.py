"""An in-memory Flower grid: real apps and messages without processes."""

from collections.abc import Callable, Iterable
from itertools import count

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

Silent = Callable[[str, str, int], bool]


class MemoryGrid:
    """Nodes that reply at once, each with its node config.

    `silent(site, kind, n)` suppresses the reply to the n-th message of a kind, from 1. `asked` lists
    (site, kind) of all messages.
    """

    def __init__(self, app: ClientApp, config: dict, nodes: dict[int, dict], silent: Silent | None = None):
        self.app, self.config, self.configs = app, config, nodes
        self.silent = silent or (lambda site, kind, n: False)
        self.asked: list[tuple[str, str]] = []
        self.message_ids = count(1)
        self.replies: dict[str, Message | None] = {}
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # a server process has these

    def get_node_ids(self) -> list[int]:
        return list(self.configs)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = {str(next(self.message_ids)): message for message in messages}
        for number, message in sent.items():
            message.metadata.__dict__["_message_id"] = number
            self.replies[number] = self._reply(message)
        return list(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = (self.replies.pop(number, None) for number in message_ids)
        return [reply for reply in replies if reply is not None]

    def _reply(self, message: Message) -> Message | None:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        site = self.configs[node].get("site")
        self.asked.append((site, kind))
        if self.silent(site, kind, self.asked.count((site, kind))):
            return None
        return self.app(message, Context(1, node, self.configs[node], RecordDict(), self.config))
