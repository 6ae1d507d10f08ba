"""Messages that an actor did not get, because a payload that went along was lost with the node that held it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowrl.engine.tells import Tell
from flowrl.metrics import Delta

REASON = "what it was sent was lost with the node that held it"


class Parcel(NamedTuple):
    """A message with tells that bring payloads: what is to be sent again where one of these is lost."""

    kind: str
    body: Any
    payloads: list[Any]  # of the body
    mail: Sequence[Tell]

    @property
    def rest(self) -> list[Tell]:
        """The tells that bring no payload. Weights that are lost were their learner's, which will publish others."""
        return [tell for tell in self.mail if not tell.payloads]


def parcel_of(kind: str, body: Any, payloads: list[Any], mail: Sequence[Tell]) -> Parcel | None:
    """What to keep until a message is answered; None where nothing would be sent again."""
    return Parcel(kind, body, payloads, mail) if mail and (payloads or any(tell.payloads for tell in mail)) else None


def missed_tell(node: str) -> Delta:
    """The metric of a tell that its actor did not get, for an argument of it was lost."""
    return node, None, "tells_lost", "sum", 1.0, 1.0
