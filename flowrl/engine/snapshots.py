"""The newest states of an actor, and which of them outlive the node that it lives on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowrl.backends.protocol import Backend, Copy
    from flowrl.engine.call import Call


MOST = 4  # that are kept


class Snapshots:
    """Answers to `get_state()`, newest first: the newest, and those behind it as far as one that has a copy.

    An answer lies on the node of the actor that gave it. A copy of it is brought to the driver's node, where the loss
    of the actor's node does not reach it.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self._kept: list[tuple[Call, Copy]] = []

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, call: Call) -> None:
        """A new one has come."""
        self._kept.insert(0, (call, self._backend.copy(call.payload)))
        safe = next((place for place, (_, copy) in enumerate(self._kept) if copy.there), len(self._kept))
        del self._kept[safe + 1 :]
        del self._kept[1 : -MOST + 1]  # where copies are slow to come, the oldest is the next to

    @property
    def newest(self) -> Call:
        """The one to go on from."""
        return self._kept[0][0]

    def drop_newest(self) -> None:
        """It was lost with the node that held it."""
        del self._kept[0]
