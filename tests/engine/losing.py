"""A backend in which nodes are lost: with their actors, and with the payloads that those answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrl.backends.protocol import Copy, GroupPlan, Sent
from flowrl.engine.record import UNDELIVERED, Record
from flowrl.errors import PayloadLost
from flowrl.testing import Delayed


class Placed:
    """A payload on a node."""

    def __init__(self, stored: Any, node: str, lost: set[int]):
        self.stored, self.node, self.lost = stored, node, lost

    def load(self) -> Any:
        """The value.

        Raises:
            PayloadLost: its node is.
        """
        if id(self) in self.lost:
            raise PayloadLost(f"a value was lost with node {self.node}")
        return self.stored.load()


class Nodes(Delayed):
    """Actors live on nodes, a name by `node_of(actor)`; `lose(node)` ends them and what they answered.

    copies: whether a copy that is asked for comes, at once.
    """

    def __init__(self, node_of: Callable[[str], str], *, copies: bool = True, likely: float = 0.5):
        super().__init__(0, likely=likely)
        self.node_of, self.copies = node_of, copies
        self._placed: list[Placed] = []
        self._lost: set[int] = set()
        self._homes: dict[str, str] = {}  # an actor that was on a lost node comes up elsewhere

    def create(self, plan: GroupPlan, index: int) -> Any:
        actor = super().create(plan, index)
        name = actor.host.me.name
        self._homes[name] = "elsewhere" if name in self._homes else self.node_of(name)
        return actor

    def send(self, actor: Any, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        name = actor.host.me.name
        if self._actors.get(name) is actor and any(id(payload) in self._lost for payload in payloads):
            number = self._messages[name] = self._messages[name] + 1
            sent = Sent(None, None)
            self._hidden[sent] = (name, number, Record(UNDELIVERED))
            return sent
        sent = super().send(actor, message, payloads, start=start)
        sent.payload = Placed(sent.payload, self._homes[name], self._lost)
        self._placed.append(sent.payload)
        return sent

    def copy(self, payload: Any) -> Copy:
        if self.copies:
            payload.node = "driver"
        return Copy(there=self.copies)

    def lose(self, node: str) -> list[str]:
        """The node is gone; returns the names of its actors."""
        gone = [name for name, home in self._homes.items() if home == node]
        for name in gone:
            self.kill(self._actors[name].host.me)
        self.lose_payloads(node)
        return gone

    def lose_payloads(self, node: str) -> None:
        """What lies on the node is gone, and its actors live."""
        self._lost |= {id(payload) for payload in self._placed if payload.node == node}
