"""Evaluates on a schedule, on actors of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, Literal

from flowrl.errors import ActorDied, PayloadLost
from flowrl.failures import FailurePolicy, Restart
from flowrl.handles import ActorGroup, ActorHandle, Pending
from flowrl.numbers import check_whole
from flowrl.operator import Context, Operator, Replaced
from flowrl.ref import Ref
from flowrl.rl.evaluation import Evaluation


@dataclass
class EvaluateEvery(Operator[Any, Any]):
    """Hands each item on, and every `env_steps` of training has evaluators play `episodes` with the newest weights.

    Training's items, weights and random streams are the same with and without it. The evaluators work beside the graph:
    of a deterministic graph an evaluation is waited for with the next item, so that its metrics come at the same item
    in every run; of any other it is taken in with the first item after its answers. One evaluation is out at a time;
    where the next one is due before, it begins afterwards.

    Metrics: return_mean, return_ci95 (half the width of the mean's 95% interval), length_mean, version and env_steps
    (when it began) of the newest; evaluations and evaluated_episodes so far. Of deaths: evaluations_restarted, how
    often what an evaluator had was begun again; evaluations_dropped, of which nothing is reported.

    evaluators: a group of `flowrl.rl.Evaluator`, which share the episodes. Those of a class of your own are asked
        evaluate(episodes, number, deterministic, weights, version), and with Ignore() also share=(which, of how many)
        once one of them has died.
    learner: whose published weights are evaluated.
    env_steps: of training, from one evaluation to the next; the first comes after as many.
    episodes: of one evaluation. deterministic: whether the most probable actions are taken, or sampled ones.
    on_failure: what the death of an evaluator means. Restart(n) starts it again, up to n times in a row, and it begins
        again what it had, with the same weights and seeds: nothing else comes out than without the death. Ignore()
        drops the evaluation, and the living share the next ones; with the last one the run stops. Raise() stops it.

    Raises:
        ValueError: a number below 1, a group that cannot evaluate, or no failure policy.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    evaluators: ActorGroup[Any]
    learner: ActorGroup[Any]
    env_steps: int
    episodes: int = 20
    deterministic: bool = True
    on_failure: FailurePolicy = Restart(3)  # noqa: RUF009  (frozen)

    def __post_init__(self) -> None:
        for name in ("env_steps", "episodes"):
            check_whole(name, getattr(self, name))
        if not hasattr(self.evaluators.actor_class, "evaluate"):
            raise ValueError(f"EvaluateEvery needs a group of evaluators, {self.evaluators!r} cannot evaluate")
        if not isinstance(self.on_failure, FailurePolicy):
            raise ValueError(
                f"EvaluateEvery: on_failure must be Restart(...), Ignore() or Raise(), got {self.on_failure!r}"
            )

    @property
    def replaced(self) -> Replaced:
        return Replaced(self.evaluators, self.on_failure)

    def open(self) -> None:
        self._begun = 0  # evaluations so far, which is also the seed of the next
        self._periods = 0  # whole periods of env_steps at the last one
        self._out: _Out | None = None

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        if self._out is not None:
            self._look(self._out, ctx, wait=ctx.deterministic)
        if self._out is None and ctx.env_steps // self.env_steps > self._periods:
            self._begin(ctx)
        yield value

    def finish(self, ctx: Context) -> Iterable[Any]:
        if self._out is not None:
            self._look(self._out, ctx, wait=True)
        return ()

    def _begin(self, ctx: Context) -> None:
        newest = ctx.published(self.learner)
        if newest is None:
            return
        version, weights = newest
        self._periods = ctx.env_steps // self.env_steps
        self._out = _Out(version, ctx.env_steps, weights)
        self._begun += 1
        self._share_out(self._out, ctx)

    def _share_out(self, out: _Out, ctx: Context) -> None:
        """Asks each evaluator for its share; with Restart one that is away is asked when it is up."""
        up = {one: ctx.up(one, wait=ctx.deterministic) for one in ctx.actors(self.evaluators)}
        crew = [one for one in up if up[one] or isinstance(self.on_failure, Restart)]
        whole = len(crew) == len(up)
        out.shares = [_Share(one, {} if whole else {"share": (k, len(crew))}) for k, one in enumerate(crew)]
        for share in out.shares:
            if up[share.evaluator]:
                self._ask(share, out)

    def _ask(self, share: _Share, out: _Out) -> None:
        number = self._begun - 1
        share.asked = share.evaluator.ask(
            "evaluate", self.episodes, number, self.deterministic, out.weights, out.version, **share.given
        )

    def _look(self, out: _Out, ctx: Context, *, wait: bool) -> None:
        """Begins again what was lost, and takes the evaluation in if it is whole; waits for that, if asked to."""
        if out.shares is None:  # resumed
            self._share_out(out, ctx)
        for share in out.shares or ():
            while share.lacks(wait=wait):
                up = ctx.up(share.evaluator, wait=wait)  # or the run stops
                lost, share.asked = share.asked, None
                if not isinstance(self.on_failure, Restart) or (lost is not None and lost.undelivered):
                    self._out = None
                    ctx.metrics.add("evaluations_dropped")
                    return
                if lost is not None:
                    ctx.metrics.add("evaluations_restarted")
                if not up:
                    break
                self._ask(share, out)
        whole = out.whole()
        if whole is not None:
            self._take(out, whole, ctx)

    def _take(self, out: _Out, whole: Evaluation, ctx: Context) -> None:
        self._out = None
        figures = {
            "return_mean": whole.mean,
            "return_ci95": whole.ci95,
            "length_mean": fmean(whole.lengths),
            "version": out.version,
            "env_steps": out.env_steps,
        }
        for name, figure in figures.items():
            ctx.metrics.last(name, figure)
        ctx.metrics.add("evaluated_episodes", whole.episodes)  # "episodes" are those of training
        ctx.metrics.add("evaluations")

    def get_state(self) -> dict[str, Any]:
        return {
            "begun": self._begun,
            "periods": self._periods,
            "out": None if self._out is None else self._out.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._begun, self._periods = state["begun"], state["periods"]
        self._out = None if state["out"] is None else _Out.from_state(*state["out"])


@dataclass
class _Share:
    """What one evaluator plays of an evaluation; `asked` is None while it is away."""

    evaluator: ActorHandle[Any]
    given: dict[str, Any]
    asked: Pending[Any] | None = None
    part: Evaluation | None = None
    there: bool = False

    def lacks(self, *, wait: bool) -> bool:
        """Whether it is to be asked (again); whatever else it is, its part is there or on its way."""
        if self.there or self.asked is None:
            return not self.there
        try:
            if wait or self.asked.done:
                self.part, self.there = self.asked.result(), True
        except ActorDied:
            if not self.asked.lost:  # the evaluator has raised it
                raise
        except PayloadLost:
            return True
        return self.asked.lost


@dataclass
class _Out:
    """An evaluation that is out: its shares, or (resumed) None of them yet, or all that was found."""

    version: int
    env_steps: int
    weights: Ref[Any] | None
    shares: Sequence[_Share] | None = None
    found: Evaluation | None = None

    def whole(self) -> Evaluation | None:
        """All episodes, once all are there."""
        if self.found is None and self.shares and all(share.there for share in self.shares):
            self.found = Evaluation.concat([share.part for share in self.shares if share.part is not None])
        return self.found

    def get_state(self) -> tuple[Any, ...]:
        """What was found; where a part is lost the weights, with which all of it is begun again."""
        for share in self.shares or ():
            share.lacks(wait=True)
        whole = self.whole()
        if whole is None:
            return self.version, self.env_steps, None, self.weights
        return self.version, self.env_steps, (whole.returns, whole.lengths)

    @staticmethod
    def from_state(version: int, env_steps: int, found: Any, weights: Ref[Any] | None = None) -> _Out:
        """The same again."""
        if found is not None:
            return _Out(version, env_steps, None, (), Evaluation(*found))
        return _Out(version, env_steps, weights)
