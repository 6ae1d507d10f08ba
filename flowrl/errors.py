"""The exception tree: what can go wrong with a graph, its run, and what came back from an actor.

FlowError
├── GraphError          the description is wrong; raised while composing or checking, before anything starts
├── StartError          the run cannot start: something cannot be pickled, resources are missing
├── FlowStalled         no branch can move and nothing is pending
├── OperatorError       code of the user raised something that may not travel through a stream
├── RemoteError         an exception of an actor that cannot be pickled; names its type
└── ActorDied           the process of an actor ended
EndOfStream             raised by a source's method to end its shard (not an error)
"""

from __future__ import annotations


class FlowError(Exception):
    """The root of what flowrl itself raises; exceptions of the user's code keep their own type."""


class GraphError(FlowError, ValueError):
    """The description of a graph is wrong. Raised while composing, checking or starting it."""


class StartError(FlowError):
    """A run cannot start: something cannot be pickled, or the resources are missing."""


class FlowStalled(FlowError):  # noqa: N818
    """No cursor can move an item and no call is pending; names the bound and the branch not drained."""


class OperatorError(FlowError):
    """User code raised StopIteration, SystemExit or the like, which must not end a stream silently."""


class RemoteError(FlowError):
    """An exception raised in an actor that cannot be pickled; the message names its type."""


class ActorDied(FlowError):  # noqa: N818
    """The process of an actor ended, and the failure policy of its group does not go on."""


class EndOfStream(Exception):  # noqa: N818  (a signal, like StopIteration)
    """Raised by a source's method: this shard has no further items."""


class RemoteTraceback(Exception):  # noqa: N818  (only ever a cause)
    """The traceback of an exception as it stood in the actor; the cause of the re-raised exception."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text
