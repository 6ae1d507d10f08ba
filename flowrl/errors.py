"""The exception tree: what can go wrong with a graph, its run, and what came back from an actor.

FlowError
├── GraphError          the description is wrong; raised while composing or checking, before anything starts
├── StartError          the run cannot start: something cannot be pickled, resources are missing
├── FlowStalled         no branch can move and nothing is pending
├── OperatorError       code of the user raised something that may not travel through a stream
├── RemoteError         an exception of an actor that cannot be pickled; names its type
├── CheckpointError     what was to be saved or loaded cannot be: damaged, foreign, newer, no place for a value
├── ActorDied           the process of an actor ended
└── PayloadLost         a value was lost with the node that held it
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


class CheckpointError(FlowError, ValueError):
    """A checkpoint is damaged, foreign or of a newer format, or holds no place for a value; nothing was changed."""


class ActorDied(FlowError):  # noqa: N818
    """The process of an actor ended, and the failure policy of its group does not go on."""


class PayloadLost(FlowError):  # noqa: N818
    """A value cannot be had any more: the node that held it was lost. A run counts such an item and goes on."""


class EndOfStream(Exception):  # noqa: N818  (a signal, like StopIteration)
    """Raised by a source's method: this shard has no further items."""


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an exception of any class; to be called before it is raised again.

    Raises:
        OperatorError: the class has no place for notes; tells both, and the exception is its cause.
    """
    try:
        BaseException.add_note(error, note)  # not the class's own, which may do anything
        return
    except Exception:
        notes = error.__dict__.get("__notes__", ())
    try:  # a frozen dataclass refuses new attributes, and `__notes__` may be anything
        kept = [*notes] if isinstance(notes, list | tuple) else [str(notes)]
        BaseException.__setattr__(error, "__notes__", [*kept, note])
    except Exception:
        raise OperatorError(f"{type(error).__name__}: {text_of(error)}; {note}") from error


def text_of(error: BaseException) -> str:
    """What an exception says: its text, else its repr."""
    try:
        return str(error) or repr(error)
    except BaseException:  # a __str__ may raise even SystemExit, which must not end the process that tells of it
        return "<its text cannot be made>"


class RemoteTraceback(Exception):  # noqa: N818  (only ever a cause)
    """The traceback of an exception as it stood in the actor; the cause of the re-raised exception."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text
