"""Every operator of the library keeps the operator contract; one that nobody checks here fails the test."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowrl
import flowrl.operators
from flowrl import Batch, Context, Local, MultiAgentBatch, Operator, functions
from flowrl.engine.view import NodeView
from flowrl.operators import (
    AddAdvantages,
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    EvaluateEvery,
    InitialPriorities,
    JoinAgents,
    MixInReplay,
    NStep,
    PlayAgainst,
    RelabelGoals,
    ReportMetrics,
    SelectPolicies,
    SendWeights,
    SetEpsilon,
    ShareRewardMoments,
    SnapshotToLeague,
    Standardize,
    StoreToReplay,
    TrainOneStep,
    UpdatePriorities,
    UpdateTarget,
    WaitUntil,
)
from flowrl.operators.policies import _Kept
from flowrl.operators.training import TrainInfo
from flowrl.rl import MultiAgentWorker, PolicySpec, RolloutWorker, losses
from flowrl.rl.gradient_batch import Gradients
from flowrl.rl.league import Verdict
from flowrl.testing import check_operator
from tests.rl.team_envs import Falling


class Learner:
    """Enough of a learner to be described, asked for weights and told of."""

    def build(self) -> flowrl.Answer[None]:
        return flowrl.Answer(None, policy_version=3, published=np.zeros(2, np.float32))

    def set_weights(self, flat: Any, version: int) -> None: ...

    def train(self, batch: Any, **options: Any) -> None: ...

    def apply_gradients(self, gradients: Any, **options: Any) -> None: ...

    def set_target_update(self, *, every_updates: int | None, tau: float | None) -> None: ...

    def evaluate(self) -> None: ...

    def set_reward_moments(self, count: float, mean: float, m2: float) -> None: ...

    def set_epsilon(self, value: Any) -> None: ...

    def store(self, batch: Batch) -> None: ...

    def freeze(self, player: str, flat: Any, version: int) -> None: ...

    def judge(self, player: str, flat: Any, version: int, updates: int, at_most: int) -> Verdict:
        return Verdict("main:1", begins_again=True)

    def begin_again(self) -> flowrl.Answer[None]:
        return self.build()

    def match_report(self) -> None: ...

    def lineup(self, report: Any, count: int) -> None: ...

    def set_lineup(self, lineup: Any) -> None: ...


class PlayersLearner(Learner):
    """One of a player in a league."""

    def __init__(self, policy_id: str) -> None: ...


def distance(achieved: Any, desired: Any) -> Any:
    """A reward."""
    return -np.abs(achieved - desired).sum(axis=1)


def fragment(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    shape = (4, 2)
    names = ("rewards", "values", "next_values", "next_obs", "discounts", "q_taken")
    columns = {name: rng.normal(size=shape).astype(np.float32) for name in names}
    goals = ("obs/achieved_goal", "obs/desired_goal", "next_obs/achieved_goal", "next_obs/desired_goal")
    columns |= {name: rng.normal(size=(*shape, 3)).astype(np.float32) for name in goals}
    ends = rng.random(shape) < 0.3
    return Batch({**columns, "terminated": ends, "truncated": ~ends & (rng.random(shape) < 0.2)}, time_major=True)


def parts(seed: int) -> MultiAgentBatch:
    names = ("a", "b") if seed % 2 else ("b", "c")
    return MultiAgentBatch({name: Batch({"x": np.arange(seed + 1)}) for name in names}, env_steps=seed + 1)


FRAGMENTS = [fragment(seed) for seed in range(5)]
PARTS = [parts(seed) for seed in range(4)]
NUMBERS = [3, 1, 4, 1, 5]
LEARNER = flowrl.actor(Learner, name="learner")
PLAYER = flowrl.actor(PlayersLearner, policy_id="main", name="learner")

SPEC = PolicySpec(hidden=(4,))
WORKER = RolloutWorker("CartPole-v1", SPEC, steps=6, num_envs=2, next_obs=True, seed=0)
ACTED = [WORKER.sample().payload for _ in range(3)]

TEAM = MultiAgentWorker(Falling, {"one": SPEC}, steps=3, num_envs=2, joint=True, next_obs=True, seed=0)
JOINT = [TEAM.sample().payload for _ in range(3)]

CASES: list[tuple[Operator[Any, Any], list[Any]]] = [
    (AddAdvantages(0.9, 0.8), FRAGMENTS),
    (Standardize(("rewards", "values")), FRAGMENTS),
    (ConcatBatches(min_steps=17), FRAGMENTS),
    (TrainOneStep(LEARNER, epochs=2, minibatch=3, in_flight=2), []),
    (SendWeights(LEARNER, to=LEARNER, every_updates=2), FRAGMENTS),
    (ReportMetrics(), FRAGMENTS),
    (EvaluateEvery(LEARNER, LEARNER, env_steps=10, episodes=3), FRAGMENTS),
    (ShareRewardMoments(LEARNER), FRAGMENTS),
    (NStep(3, 0.9), FRAGMENTS),
    (NStep(6, 0.5), FRAGMENTS),
    (InitialPriorities(), FRAGMENTS),
    (RelabelGoals(distance, copies=2, terminated=lambda achieved, desired: achieved[:, 0] > 0), FRAGMENTS),
    (RelabelGoals(distance, "final", copies=1), FRAGMENTS),
    (MixInReplay(slots=2, proportion=1.5), FRAGMENTS),
    (SetEpsilon(LEARNER, lambda steps: 0.5), FRAGMENTS),
    (SnapshotToLeague(PLAYER, PLAYER, every_updates=3), FRAGMENTS),
    (SnapshotToLeague(PLAYER, PLAYER, every_updates=3, exploiter=True), FRAGMENTS),
    (PlayAgainst(LEARNER, LEARNER), FRAGMENTS),
    (UpdateTarget(LEARNER, tau=0.1), FRAGMENTS),
    (UpdatePriorities(), [TrainInfo("learner[0]", version, 0) for version in range(3)]),
    (WaitUntil(env_steps=1), FRAGMENTS),
    (StoreToReplay(LEARNER, in_flight=3), []),
    (JoinAgents(), JOINT),
    (SelectPolicies(("a", "c")), PARTS),
    (_Kept(("b",)), PARTS),
    (ComputeGradients(SPEC, losses.VTraceLoss()), ACTED),
    (AverageGradients(2), [Gradients.of([1.0, 2.0], rows) for rows in (1, 0, 3)]),
    (ApplyGradients(LEARNER, in_flight=2), []),
    (functions.Function(abs), NUMBERS),
    (functions.Filter(lambda x: x > 2), NUMBERS),
    (functions.Tap(lambda x, ctx: None), NUMBERS),
    (functions.Gathered(2), NUMBERS),
    (functions.Flatten(), [[1, 2], (), [3]]),
    (functions.ZipWithSourceActor(), NUMBERS),
    (functions.PolicyPart("a"), PARTS),
    (functions.Part("b"), PARTS),
]


@pytest.fixture
def context() -> Iterator[Callable[[], Context]]:
    """The context of a node in a run that has a learner, on a clock that stands still: reports can be compared."""
    flow = flowrl.from_items([0], num_shards=1).gather_sync().for_each(SendWeights(LEARNER, to=LEARNER))
    with flowrl.run(flow, Local()) as running:
        running.actors["learner"][0].ask("build").result()
        engine = running._engine
        engine.accounts.clock = lambda: engine.accounts.started + 5.0
        yield lambda: Context("node", NodeView(engine, "node", ""))


@pytest.mark.parametrize(("op", "items"), CASES, ids=[type(op).__name__ for op, _ in CASES])
def test_the_contract(op, items, context):
    if isinstance(op, ComputeGradients):
        return check_operator(op, items, ctx=Context("node", actor=WORKER))
    needs_a_run = isinstance(
        op,
        SendWeights | ReportMetrics | ShareRewardMoments | SetEpsilon | MixInReplay | SnapshotToLeague | PlayAgainst,
    )
    return check_operator(op, items, ctx=context() if needs_a_run else None)


def test_every_operator_is_checked():
    modules = [functions]
    for found in pkgutil.iter_modules(flowrl.operators.__path__):
        modules.append(importlib.import_module(f"flowrl.operators.{found.name}"))
    classes = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Operator) and kind.__module__ == module.__name__
    }
    assert classes == {type(op) for op, _ in CASES}
