"""Evaluates on a schedule, on actors of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple

from flowrl.handles import ActorGroup, Pending
from flowrl.numbers import check_whole
from flowrl.operator import Context, Operator
from flowrl.rl.evaluation import Evaluation


@dataclass
class EvaluateEvery(Operator[Any, Any]):
    """Hands each item on, and every `env_steps` of training has evaluators play `episodes` with the newest weights.

    Training's items, weights and random streams are the same with and without it. The evaluators work beside the graph:
    of a deterministic graph an evaluation is waited for with the next item, so that its metrics come at the same item
    in every run; of any other it is taken in with the first item after its answers. One evaluation is out at a time;
    where the next one is due before, it begins afterwards.

    Metrics: return_mean, return_ci95 (half the width of the mean's 95% interval), length_mean, version and env_steps
    (when it began) of the newest; evaluations and evaluated_episodes so far.

    evaluators: a group of `flowrl.rl.Evaluator`, which share the episodes.
    learner: whose published weights are evaluated.
    env_steps: of training, from one evaluation to the next; the first comes after as many.
    episodes: of one evaluation. deterministic: whether the most probable actions are taken, or sampled ones.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    evaluators: ActorGroup[Any]
    learner: ActorGroup[Any]
    env_steps: int
    episodes: int = 20
    deterministic: bool = True

    def __post_init__(self) -> None:
        for name in ("env_steps", "episodes"):
            check_whole(name, getattr(self, name))
        if not hasattr(self.evaluators.actor_class, "evaluate"):
            raise ValueError(f"EvaluateEvery needs a group of evaluators, {self.evaluators!r} cannot evaluate")

    def open(self) -> None:
        self._begun = 0  # evaluations so far, which is also the seed of the next
        self._periods = 0  # whole periods of env_steps at the last one
        self._out: _Out | None = None

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        if self._out is not None and (ctx.deterministic or self._out.done):
            self._take(ctx)
        if self._out is None and ctx.env_steps // self.env_steps > self._periods:
            self._begin(ctx)
        yield value

    def finish(self, ctx: Context) -> Iterable[Any]:
        if self._out is not None:
            self._take(ctx)
        return ()

    def _begin(self, ctx: Context) -> None:
        newest = ctx.published(self.learner)
        if newest is None:
            return
        version, weights = newest
        self._periods = ctx.env_steps // self.env_steps
        asked = tuple(
            handle.ask("evaluate", self.episodes, self._begun, self.deterministic, weights, version)
            for handle in ctx.actors(self.evaluators)
        )
        self._out = _Out(asked, version, ctx.env_steps)
        self._begun += 1

    def _take(self, ctx: Context) -> None:
        assert self._out is not None
        out, self._out = self._out, None
        whole = out.evaluation()
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
        out = self._out
        if out is not None:
            whole = out.evaluation()
            out = _Out((), out.version, out.env_steps, (whole.returns, whole.lengths))
        return {"begun": self._begun, "periods": self._periods, "out": None if out is None else out[1:]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._begun, self._periods = state["begun"], state["periods"]
        self._out = None if state["out"] is None else _Out((), *state["out"])


class _Out(NamedTuple):
    """An evaluation that is out, or (resumed) one that was."""

    asked: tuple[Pending[Any], ...]
    version: int
    env_steps: int
    answered: tuple[tuple[float, ...], tuple[int, ...]] | None = None

    @property
    def done(self) -> bool:
        return all(pending.done for pending in self.asked)

    def evaluation(self) -> Evaluation:
        """All evaluators' episodes, awaited."""
        if self.answered is not None:
            return Evaluation(*self.answered)
        return Evaluation.concat([part for part in (pending.result() for pending in self.asked) if part is not None])
