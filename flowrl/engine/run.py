"""A running graph, as users hold it: iterate, step, look, message its actors, stop."""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import get_ident
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from flowrl.backends.protocol import Backend
from flowrl.checkpoint import Checkpoints
from flowrl.engine.background import Handle
from flowrl.engine.build import build
from flowrl.engine.core import CLOSED_MEANWHILE, Engine
from flowrl.engine.cursors import END
from flowrl.engine.interrupts import MAIN
from flowrl.engine.learned import Learned
from flowrl.engine.stats import Stats, snapshot
from flowrl.engine.token import Token
from flowrl.errors import FlowError, GraphError
from flowrl.flow import Flow, ParallelFlow
from flowrl.given import short, whole
from flowrl.handles import ActorHandle

if TYPE_CHECKING:
    from flowrl.engine.resizing import Resized

T = TypeVar("T")
_log = logging.getLogger("flowrl")
LETTING_S = 0.5  # how long another thread that moves the run may take to notice that it is being closed
CLOSING_S = 2.0  # how long the background thread may wait for an answer, before it looks whether to go on
SEEDS = 2**63  # as many as there are
INTERRUPTED_S = 0.5  # how long actors may take to finish what they do, where a user waits for the prompt


def run(
    flow: Flow[T],
    backend: Backend | None = None,
    *,
    seed: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    trust_pickles: bool = False,
    checkpoint: Checkpoints | None = None,
) -> Run[T]:
    """Starts the actors of a graph and returns the run, an iterator over the flow's items.

    backend: `Ray()` by default (joins a running Ray, otherwise starts a local one), or `Local()`.
    seed: of every random stream in the run; drawn where none is given (`run.seed` says which).
    resume: a checkpoint (of `run.save`) of the same graph to go on from, on this or another backend and with as many or
        other numbers of actors; settings may differ, which goes to the log. The seed is that of the checkpoint.
    trust_pickles: whether environments go on in the middle of their episodes: their states are pickles, and to load one
        runs code in it. Without them episodes begin anew.
    checkpoint: where and how often the run saves itself, between two items; `flowrl.checkpoint.newest(directory)` is
        what to resume.

    Raises:
        TypeError: the backend is none, such as a name or a class; `checkpoint` is no Checkpoints.
        GraphError: the graph is not whole (columns that nobody adds, names used twice).
        StartError: something cannot be pickled, or resources are missing.
        CheckpointError: the checkpoint is damaged, or of another graph; names what differs.
        ValueError: a seed, and not that of the checkpoint.
    """
    if isinstance(flow, ParallelFlow):
        raise GraphError("a ParallelFlow lives in its shards; gather it (gather_sync, gather_async) before running it")
    if not isinstance(flow, Flow):
        raise GraphError(f"run needs a Flow, got {type(flow).__name__}")
    if backend is not None and (isinstance(backend, type) or not callable(getattr(backend, "open", None))):
        raise TypeError(f"run needs a backend, flowrl.Local() or flowrl.Ray(), got {backend!r}")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoints):
        raise TypeError(f"checkpoint must be flowrl.checkpoint.Checkpoints(directory, ...), got {checkpoint!r}")
    number = None if seed is None else whole(seed)
    if seed is not None and (number is None or not 0 <= number < SEEDS):
        raise ValueError(f"seed must be an integer of at least 0 and below 2**63, got {short(seed)}")
    if resume is not None:
        from flowrl.engine.resuming import Resumption
        from flowrl.engine.turns import take_up

        resumed = Resumption(resume, trust=trust_pickles)
        if number not in (None, resumed.seed):
            raise ValueError(f"the checkpoint goes on with its seed, {resumed.seed}: leave seed={number} out")
        number = resumed.seed
    if backend is None:
        from flowrl.backends.ray import Ray

        backend = Ray()
    session = getattr(backend, "for_one_run", None)  # of a backend whose object may serve several runs
    here = backend if session is None else session()
    engine = build(flow.node, here, number) if resume is None else build(flow.node, here, number, resumed=resumed)
    run: Run[T] = Run(engine) if checkpoint is None else _saving(engine, checkpoint)
    if resume is not None:
        take_up(run, resumed)
    return run


def _saving(engine: Engine, checkpoint: Checkpoints) -> Run[Any]:
    from flowrl.engine.saving_run import SavingRun

    return SavingRun(engine, checkpoint)


class Run(Learned, Iterator[T], Generic[T]):
    """An iterator over a running graph's items; a context manager that leaves no actor behind.

    Ctrl-C during a pull raises KeyboardInterrupt between two items: the run is paused, not closed, and nothing is lost.
    An exception of the graph stops the run.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self._turn = Token()  # the thread that has it moves the run
        self._background: Handle[T] | None = None
        self._evaluations = 0
        self._finished = False
        self._stopped_by = ""
        self._kept: deque[T] = deque()  # items pulled, but not handed out before an interrupt
        # The engine does not know the Run, so an abandoned Run is collected at once and its actors end.
        self._finalizer = weakref.finalize(self, _close, engine)

    @property
    def closed(self) -> bool:
        """Whether the run has been closed, by close() or by an error."""
        return not self._finalizer.alive

    @property
    def seed(self) -> int:
        """The seed of every random stream in this run."""
        return self._engine.seed

    @property
    def actors(self) -> Mapping[str, tuple[ActorHandle[Any], ...]]:
        """Live handles by group; what they are asked or told goes at once, also from another thread."""
        engine = self._engine
        found = _Groups()
        for group, states in engine.states.items():
            found[group] = tuple(engine.handle(state, "run.actors", held=False) for state in states)
        return MappingProxyType(found)

    @property
    def kept(self) -> int:
        """How many items came before an interrupt and were not handed out: the next ones, which come at once."""
        return len(self._kept)

    def __iter__(self) -> Run[T]:
        return self

    def __next__(self) -> T:
        return self.advance(self._background)

    def advance(self, background: Handle[T] | None = None) -> T:
        """The next item; what iteration and the background thread call, which must not move it at once."""
        if background is not None and background.driving:
            raise FlowError(
                "this run moves on in the background; pause or stop that first (handle.pause(), handle.stop())"
            )
        engine, thread = self._engine, get_ident()
        if engine.driver == thread:
            raise FlowError("an operator of this run cannot move it: the item at hand is not done; let it return first")
        interrupts, main = engine.interrupts, thread == MAIN
        if main:
            interrupts.enter()  # before anything that an interrupt could tear; from its end on the item is the caller's
        try:
            if not self._turn.take_at_once():
                self._turn.take(interrupts.waiting)
            try:
                if self._kept:
                    value = self._kept.popleft()
                else:
                    if self._finished or engine.closed:
                        self._refuse()
                    interrupts.safe = False
                    try:
                        value = engine.next_value(thread)
                    except BaseException as error:
                        self._stop(error)
                        raise
                    if value is END:
                        self._finished = True
                        interrupts.check()
                        raise StopIteration
            finally:
                self._turn.give()
            if main and interrupts.noted:  # while this item was made; it is kept
                self._kept.appendleft(value)
                interrupts.check()
            return value
        finally:
            if main:
                interrupts.depth -= 1

    def _refuse(self) -> NoReturn:
        if self._finished:
            raise StopIteration
        raise FlowError(f"this run is closed{self._stopped_by}; start another with flowrl.run(flow)")

    def _stop(self, error: BaseException) -> None:
        """What an exception of the graph means for the run."""
        engine = self._engine
        if engine.closing and isinstance(error, Exception):  # by another thread, whatever it made of the item
            self._finalizer()
            raise FlowError(CLOSED_MEANWHILE) from (None if isinstance(error, FlowError) else error)
        if isinstance(error, KeyboardInterrupt):
            engine.patience_s = INTERRUPTED_S
        if not (isinstance(error, KeyboardInterrupt) and engine.interrupts.safe):
            self._stopped_by = f" (it was stopped by {type(error).__name__})"
            self._finalizer()

    def step(self, n: int = 1) -> list[T]:
        """The next n items; fewer where the flow ends. Interrupted, it keeps what has come for the next step."""
        count = whole(n)
        if count is None or count < 0:
            raise ValueError(f"step needs n >= 0, got {n!r}")
        items: list[T] = []
        try:
            with self._engine.interrupts:  # no interrupt may fall between an item and its place in the list
                while len(items) < count:
                    items.append(next(self))
        except StopIteration:
            pass
        except KeyboardInterrupt:
            if not self.closed:
                self._kept.extendleft(reversed(items))
            raise
        return items

    def background(self) -> Handle[T]:
        """Moves the run on in a thread while other code goes on; the handle pauses, resumes and stops it."""
        if self._background is not None and self._background.driving:
            raise FlowError("this run moves on in the background already")
        if self._background is not None:
            self._background.stop()  # it rests: its thread ends
        self._background = Handle(self)
        return self._background

    def evaluate(self, episodes: int = 20, *, deterministic: bool = True) -> Any:
        """Plays whole episodes with the newest weights, on environments of their own with their own seeds.

        The run's evaluators share the episodes, where it has some; otherwise a rollout worker plays them between two
        pulls. Training's random streams are not touched. Returns an `Evaluation` (returns, lengths, mean, interval).
        Where one of those that play dies, its failure policy has the say, and the evaluation is begun again.

        Raises:
            LookupError: no actor of this run can evaluate (evaluators and rollout workers can).
            ActorDied: one has died and its policy does not go on; the run has stopped.
        """
        from flowrl.engine.evaluating import evaluate_run

        return evaluate_run(self, episodes, deterministic)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        environments: bool = True,
        timeout_s: float | None = 300.0,
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> Path | str:
        """Writes all that the run is to a new directory (or in place of the checkpoint there), and returns its path.

        `run(flow, resume=path)` goes on from it. It is there whole or not at all, whenever this process ends. May be
        called between items, also from another thread; the run goes on as if it had not been saved.

        environments: whether those that can be pickled are saved, so that episodes go on in the middle. They lie in
            files of their own, which only `run(..., trust_pickles=True)` reads.
        timeout_s: how long actors may take to answer what they were asked before, and to give their states; None: as
            long as it takes.
        about: what else the manifest is to say, as JSON can say it.

        Raises:
            TimeoutError: an actor did not answer in time; nothing was saved.
            CheckpointError: something cannot be saved without pickle; names where it stands.
            FileExistsError: something else lies there. OSError: it cannot be written.
        """
        from flowrl.engine.turns import save_run

        return save_run(self, path, about, environments, timeout_s)

    def resize(self, group: str, count: int, *, timeout_s: float | None = 60.0) -> Resized:
        """Gives a group of rollout workers, of other sources or of replay shards another number of actors; what became.

        May be called between items, also from another thread; not by an operator. New actors come up beside the run,
        which then stands still for a moment: they have seeds that none had, are greeted as at a start (workers get the
        newest weights), and are asked from the next round or pull on. Those that leave are the last ones: they finish
        what they were asked, their operators give what they hold, and all that comes out as any items. Replay shards
        take their rows with them. The same calls between the same items give the same numbers, where the graph is
        deterministic.

        timeout_s: how long new ones may take to come up, and leaving ones to finish; None: as long as it takes. What
            those have not done by then is lost and counted.

        Raises:
            ValueError: no such group or number. GraphError: its number is fixed; says why and what to do instead.
            StartError, TimeoutError, ActorDied, or what a constructor raised: there are no more; the run goes on as
            before. FlowError: the run is closed or at its end, or an operator of it calls this.
        """
        from flowrl.engine.turns import resize_run

        return resize_run(self, group, count, timeout_s)

    def explain(self) -> str:
        """What runs, as `flow.explain()` tells it, on this backend and with as many actors as there are now."""
        from flowrl.draw import explain

        engine = self._engine
        return explain(engine.described[0], engine.backend, {name: len(of) for name, of in engine.states.items()})

    def stats(self) -> Stats:
        """Figures per node and group since the run began, and what limits it."""
        engine = self._engine
        busy = sum(stage.busy_s for stage in engine.stages)
        return snapshot(engine.accounts, engine.backend.now(), engine.calls.lost, busy)

    def close(self) -> None:
        """Ends the run and its actors. Closing again does nothing."""
        background, self._background = self._background, None
        if background is not None:
            background.stop(0.0)
            self._engine.closing = self._engine.alarm.on = True  # its item may never come: a filter may drop them all
        if background is not None and not background.stop(CLOSING_S):
            # It waits for an answer: that of an actor whose process ends is known at once.
            if self._finalizer.detach() is not None:
                _close(self._engine, wait_s=0.0)
            background.stop(CLOSING_S)
        self._engine.closing = self._engine.alarm.on = True
        taken = False
        if self._engine.driver != get_ident():  # else one of its operators closes it
            taken = self._turn.take(timeout_s=LETTING_S)  # from another thread, which stops at its next poll
        try:
            self._finalizer()
        finally:
            if taken:
                self._turn.give()
        if self._engine.interrupts.release():  # again: the thread that moved it may have closed it
            raise KeyboardInterrupt

    def __enter__(self) -> Run[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._engine.patience_s = INTERRUPTED_S
        self.close()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """How a notebook shows it: a table of where it stands now; of one in the background, `latest` too."""
        from flowrl.live import table

        return {"text/html": table(self, self._background), "text/plain": repr(self)}

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._engine.accounts.env_steps:,} env steps"
        return f"Run({state}, seed={self.seed}, {self._engine.backend!r})"


class _Groups(dict[str, tuple[ActorHandle[Any], ...]]):
    """By group, its handles; a wrong name is told which there are."""

    def __missing__(self, group: Any) -> NoReturn:
        raise KeyError(f"this run has no group {group!r}; it has {', '.join(self) or 'none'}")


def _close(engine: Engine, wait_s: float | None = None) -> None:
    for problem in engine.close(wait_s):
        _log.warning("while closing the run: %s", problem)
    if engine.interrupted:
        raise KeyboardInterrupt
