"""For tests of operators and graphs: the operator contract, and two backends that decide when answers come.

`check_operator` runs an operator through all that an engine expects of it. `Delayed` and `Virtual` run a graph in this
process like `Local`; on `Delayed` answers become visible late and in a random order, and actors may die; on `Virtual`
messages take as long as a test says, on a clock of its own. Nothing here sleeps or needs Ray.
"""

from __future__ import annotations

import pickle
import pickletools
import random
from collections.abc import Callable, Sequence
from typing import Any

from flowrl.backends.local import Local, Stored
from flowrl.backends.protocol import Died, GroupPlan, Sent
from flowrl.contract import check_operator
from flowrl.difference import difference
from flowrl.engine.record import Record
from flowrl.engine.transport import Gone
from flowrl.handles import ActorHandle

__all__ = ["Delayed", "Virtual", "check_operator", "difference"]

_ROUND_S = 0.01  # of Delayed's clock, between two chances of an answer to be seen


class Delayed(Local):
    """Like Local, but an answer becomes visible at a random later poll: the schedule of a busy cluster, by a seed.

    An actor works on a message as it is sent, so the order of messages is as anywhere; only who looks sees it late.
    Time is the backend's own: each round of a wait takes 0.01 s, in which each awaited answer is seen with probability
    `likely`.

    in_order: answers of one actor are seen in the order in which it gave them, as from any real actor; False lets
        chance mix them, which is harder on a graph than a cluster can be.
    die: called as die(actor, n) before an actor works on its n-th message, counted from 0 over all its incarnations,
        with its name (`workers[0]`); where it is true the actor dies instead. See `kill`.

    Raises:
        ValueError: `likely` is not in (0, 1].
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        likely: float = 0.5,
        in_order: bool = True,
        die: Callable[[str, int], bool] | None = None,
        isolate: bool = True,
    ):
        super().__init__(isolate)
        if not 0 < likely <= 1:
            raise ValueError(f"likely must be a probability above 0, got {likely!r}")
        self._seed, self._likely, self._in_order, self._die = seed, likely, in_order, die
        self._random = random.Random(seed)
        self._clock = 0.0
        self._hidden: dict[Sent, tuple[str, int, bytes | Record | Died]] = {}  # actor, number of the message, answer
        self._answered: dict[str, int] = {}  # by actor: the number of the last message whose answer was seen
        self._actors: dict[str, Any] = {}  # the living ones
        self._messages: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Delayed({self._seed})"

    def create(self, plan: GroupPlan, index: int) -> Any:
        """A host in this process."""
        actor = super().create(plan, index)
        self._actors[actor.host.me.name] = actor
        return actor

    def restart(self, actor: Any, plan: GroupPlan, index: int) -> Any:
        """A new host in this process, in place of one that died."""
        return self.create(plan, index)

    def send(self, actor: Any, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        """Works on the message now; the answer is not seen yet."""
        name = actor.host.me.name
        number = self._messages.get(name, 0)
        self._messages[name] = number + 1
        alive = self._actors.get(name) is actor
        if alive and self._die is not None and self._die(name, number):
            self.kill(actor.host.me)
            alive = False
        if alive:
            sent = super().send(actor, message, payloads, start=start)
            assert sent.record is not None
            self._hidden[sent], sent.record = (name, number, sent.record), None
        else:
            died = Died(f"the process of {name} has ended")
            sent = Sent(None, _lost(died))
            self._hidden[sent] = (name, number, died)
        return sent

    def pull(self, actor: Any) -> Sent:
        """As any other message."""
        return self.send(actor, _pull_message(actor), ())

    def poll(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        """Those that chance shows; at least one where the wait has no end."""
        until = None if timeout_s is None else self._clock + timeout_s
        while True:
            seen = [one for one in sent if one.record is not None]
            waiting = [one for one in sent if one in self._hidden]
            seen += self._shown(waiting)
            if seen or (until is None and not waiting):
                return seen
            if until is not None and (not waiting or self._clock + _ROUND_S >= until):
                self._clock = max(self._clock, until)
                return []
            self._clock += _ROUND_S

    def _shown(self, waiting: Sequence[Sent]) -> list[Sent]:
        shown: list[Sent] = []
        late: set[str] = set()  # actors whose next answer is not seen in this round
        for one in sorted(waiting, key=lambda one: self._hidden[one][1]):
            name, number, record = self._hidden[one]
            known = self._in_order and number <= self._answered.get(name, -1)
            if known or (name not in late and self._random.random() < self._likely):
                one.record = record
                del self._hidden[one]
                self._answered[name] = max(number, self._answered.get(name, -1))
                shown.append(one)
            elif self._in_order:
                late.add(name)
        return shown

    def kill(self, actor: Any) -> None:
        """Ends the process of an actor. Of a handle (`run.actors["workers"][0]`) as a crash would: what is out is
        answered by its death, and so is what comes later, until the run starts it again.

        Raises:
            ValueError: a handle of an actor that is not alive here.
        """
        if not isinstance(actor, ActorHandle):
            super().kill(actor)
            return
        if actor.name not in self._actors:
            raise ValueError(f"{actor.name} is not alive; alive are {', '.join(sorted(self._actors)) or 'none'}")
        super().kill(self._actors.pop(actor.name))
        died = Died(f"the process of {actor.name} was killed")
        for sent, (name, number, _) in list(self._hidden.items()):
            if name == actor.name:
                self._hidden[sent] = (name, number, died)
                sent.payload = _lost(died)

    def now(self) -> float:
        """Seconds of the backend's own clock."""
        return self._clock

    def close(self) -> None:
        """Forgets what was not seen."""
        self._hidden.clear()
        self._actors.clear()


class Virtual(Local):
    """Like Local, on a clock of its own: an actor works on one message at a time, each for as long as a test says.

    takes: called as takes(group, index, kind, n) with the group's name, the actor's index, the message's kind ("start",
        "pull", "ask", "tell", "close") and how many of that kind the actor had before; gives seconds.

    A message begins when the one before it is done and the answers that it was sent are there. The driver takes no
    time, but for what `pass_time` adds. `now()` is the time.
    """

    def __init__(self, takes: Callable[[str, int, str, int], float], *, isolate: bool = True):
        super().__init__(isolate)
        self._takes = takes
        self._clock = 0.0
        self._free: dict[str, float] = {}  # when the actor's last message is done
        self._counts: dict[tuple[str, str], int] = {}
        self._done: dict[Sent, tuple[float, bytes | Record | Died]] = {}
        self._stored: dict[int, tuple[Any, float]] = {}  # by id, with the payload so that the id stays its own

    def __repr__(self) -> str:
        return f"Virtual({getattr(self._takes, '__name__', repr(self._takes))})"

    def send(self, actor: Any, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        """Works on the message now; the answer is there when its time has passed."""
        me = actor.host.me
        kind = _kind_of(message)
        number = self._counts.get((me.name, kind), 0)
        self._counts[me.name, kind] = number + 1
        seconds = self._takes(me.group, me.index, kind, number)
        if not seconds >= 0:
            raise ValueError(
                f"takes({me.group!r}, {me.index}, {kind!r}, {number}) must give seconds >= 0, got {seconds!r}"
            )
        begins = [self._clock, self._free.get(me.name, 0.0)]
        begins += [self._stored[id(payload)][1] for payload in payloads if id(payload) in self._stored]
        done = self._free[me.name] = max(begins) + seconds
        sent = super().send(actor, message, payloads, start=start)
        assert sent.record is not None
        self._done[sent], sent.record = (done, sent.record), None
        self._stored[id(sent.payload)] = (sent.payload, done)
        return sent

    def restart(self, actor: Any, plan: GroupPlan, index: int) -> Any:
        """A new host in this process; it has nothing to do yet."""
        made = self.create(plan, index)
        self._free.pop(made.host.me.name, None)
        return made

    def pull(self, actor: Any) -> Sent:
        """As any other message."""
        return self.send(actor, _pull_message(actor), ())

    def poll(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        """Moves the clock on to the first answer among these (or by timeout_s), and gives all that are there then."""
        seen = [one for one in sent if one.record is not None]
        times = [self._done[one][0] for one in sent if one in self._done]
        if not seen and (times or timeout_s):
            until = float("inf") if timeout_s is None else self._clock + timeout_s
            self._clock = max(self._clock, min([until, *times]))
        for one in sorted((one for one in sent if one in self._done), key=lambda one: self._done[one][0]):
            if self._done[one][0] <= self._clock:
                one.record = self._done.pop(one)[1]
                seen.append(one)
        return seen

    def pass_time(self, seconds: float) -> None:
        """The driver is busy for so long (call it from an operator); actors go on."""
        self._clock += seconds

    def now(self) -> float:
        """The time, in seconds since the backend was made."""
        return self._clock

    def close(self) -> None:
        """Forgets what was not seen."""
        self._done.clear()
        self._stored.clear()


def _kind_of(message: bytes) -> str:
    """The first word of a message; what is handed on inside it may be taken out only once, by the host."""
    return next(word for _, word, _ in pickletools.genops(message) if isinstance(word, str))


def _pull_message(actor: Any) -> bytes:
    shard = next(iter(actor.host.shards), "")  # none, where it is dead
    return pickle.dumps(("pull", actor.host.incarnation, (), shard), 5)


def _lost(died: Died) -> Stored:
    """The payload of an answer that never came: who was sent it misses it."""
    return Stored(Gone(died.reason))
