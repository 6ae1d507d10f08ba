"""What learners that train in step exchange where all live in one process, in which they take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from flowrl.errors import add_note
from flowrl.rl.peers import Meeting, PeerLost
from flowrl.rl.torch_state import one_thread

T = TypeVar("T")


class Table:
    """Where the members in this process meet. The first member's work does that of all, one thread a member.

    One thread runs at a time: a member goes on until it has to wait for what the others give, and then hands on to the
    next by rank. So chance has no part in the numbers, and torch's process-wide settings have one user at a time.
    """

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self.tasks: dict[int, Callable[[], Any]] = {}
        self._given: list[dict[int, Any]] = []  # by meeting, then by rank
        self._begin()

    def _begin(self) -> None:
        self._given.clear()
        self._turns = [threading.Semaphore(0) for _ in self.names]
        self._met = [0] * len(self.names)
        self._running = set(range(len(self.names)))
        self._failure: BaseException | None = None
        self._failed = -1

    def run(self, task: Callable[[], T]) -> T:
        """The first member's task in this thread, the others' beside it.

        Raises:
            PeerLost: a member was not asked.
            What a member's task raises, with its name as a note.
        """
        tasks, self.tasks = self.tasks, {}
        missing = [name for rank, name in enumerate(self.names) if rank and rank not in tasks]
        if missing:
            raise PeerLost(f"{self.names[0]} has lost {', '.join(missing)}")
        self._begin()
        threads = [
            threading.Thread(target=self._member, args=(rank, tasks[rank]), name=self.names[rank], daemon=True)
            for rank in sorted(tasks)
        ]
        drawn = torch.random.get_rng_state()
        result: Any = None
        with one_thread():
            for thread in threads:
                thread.start()
            try:
                result = self._done(0, task)
            finally:
                for thread in threads:
                    thread.join()
                torch.random.set_rng_state(drawn)
        if self._failure is not None:
            if self._failed:
                add_note(self._failure, f"in {self.names[self._failed]}")
            raise self._failure
        return result

    def _member(self, rank: int, task: Callable[[], Any]) -> None:
        self._turns[rank].acquire()
        self._done(rank, task)

    def _done(self, rank: int, task: Callable[[], Any]) -> Any:
        try:
            return task() if self._failure is None else None
        except BaseException as error:
            if self._failure is None:
                self._failure, self._failed = error, rank
        finally:
            self._running.discard(rank)
            self._hand_on(rank)
        return None

    def _hand_on(self, rank: int) -> None:
        size = len(self.names)
        following = next((r % size for r in range(rank + 1, rank + 1 + size) if r % size in self._running), None)
        if following is not None:
            self._turns[following].release()

    def meet(self, rank: int, thing: Any) -> list[Any]:
        """What every member gives at its meeting of this number, by rank."""
        at = self._met[rank]
        self._met[rank] += 1
        if at == len(self._given):
            self._given.append({})
        self._given[at][rank] = thing
        drawn = torch.random.get_rng_state()
        self._hand_on(rank)
        self._turns[rank].acquire()
        torch.random.set_rng_state(drawn)
        if self._failure is not None or len(self._given[at]) < len(self.names):
            raise PeerLost(f"{self.names[rank]} has lost {self.names[max(self._failed, 0)]}")
        if at:
            self._given[at - 1] = {}  # read by all, or they would not have come here
        return [self._given[at][other] for other in range(len(self.names))]


_tables: WeakValueDictionary[str, Table] = WeakValueDictionary()  # by the key of a meeting; its members keep it


class PeersHere:
    """The members of a meeting that is held in this process."""

    def __init__(self, meeting: Meeting, rank: int):
        self.rank, self.size = rank, len(meeting.members)
        self._names = meeting.names
        table = _tables.get(meeting.key)
        if table is None:
            table = _tables[meeting.key] = Table(meeting.names)
        self._table: Table | None = table

    def work(self, task: Callable[[], T]) -> T | None:
        """What the first member's task gives, beside which all the others' run; None of another, which waits."""
        if self._table is None:
            raise PeerLost(f"{self._names[self.rank]} has left its group")
        if self.rank:
            self._table.tasks[self.rank] = task
            return None
        try:
            return self._table.run(task)
        except BaseException:
            self.close()
            raise

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every member's tensor, added by rank."""
        first, *others = self.gather(tensor)
        total: Tensor = first.clone()
        for other in others:
            total += other
        return total

    def gather(self, thing: Any) -> list[Any]:
        """What every member gave, by rank."""
        if self._table is None:
            raise PeerLost(f"{self._names[self.rank]} has left its group")
        return self._table.meet(self.rank, thing)

    def share(self, thing: Any, source: int) -> Any:
        """What the member `source` gave."""
        return self.gather(thing)[source]

    def close(self) -> None:
        """Leaves the others; again does nothing."""
        self._table = None
