"""One scale of rewards for all workers: merged exactly, told with the next message."""

from __future__ import annotations

from typing import Any

import numpy as np

import flowrl
from flowrl import Local
from flowrl.metrics import Moments
from flowrl.operators import ShareRewardMoments
from flowrl.rl import PolicySpec, RolloutWorker
from flowrl.rl.normalize import EPSILON, RunningMoments
from tests.rl.counting_envs import Counting


def discounted(rewards: Any, done: Any, valid: Any, discount: float) -> np.ndarray:
    """Every return under way, of one environment."""
    found, running = [], 0.0
    for reward, ended, real in zip(rewards, done, valid, strict=True):
        running = running * discount + (reward if real else 0.0)
        if real:
            found.append(running)
        if ended:
            running = 0.0
    return np.array(found)


def factory(ctx: Any) -> Counting:
    return Counting((3 + 4 * ctx.worker_index, 2))


def graph(shared: bool, **kwargs: Any) -> flowrl.Flow[Any]:
    workers = flowrl.actors(RolloutWorker, factory, PolicySpec(hidden=(4,)), steps=8, count=2, name="workers", **kwargs)
    flow = flowrl.from_actors(workers, "sample").gather_sync()
    return flow.for_each(ShareRewardMoments(workers)) if shared else flow


def columns(flow: flowrl.Flow[Any], n: int, seed: int = 0) -> list[Any]:
    with flowrl.run(flow, Local(), seed=seed) as running:
        return running.step(n)


def test_all_workers_scale_by_what_all_have_seen() -> None:
    discount = 0.5
    raw = columns(graph(False), 6)
    scaled = columns(graph(True, normalize_rewards=discount), 6)
    alone = columns(graph(False, normalize_rewards=discount), 6)
    by_worker = [raw[0::2], raw[1::2]]
    seen = [
        [
            discounted(
                np.concatenate([b["rewards"][:, 0] for b in batches[: k + 1]]),
                np.concatenate([(b["terminated"] | b["truncated"])[:, 0] for b in batches[: k + 1]]),
                np.concatenate([b["valid"][:, 0] for b in batches[: k + 1]]),
                discount,
            )
            for k in range(3)
        ]
        for batches in by_worker
    ]
    for k in range(3):
        for w in range(2):
            # Own fragments up to this one, and all of the others' that came before this round.
            others = [] if k == 0 else [seen[1 - w][k - 1]]
            know = np.concatenate([seen[w][k], *others])
            expected = by_worker[w][k]["rewards"] / np.sqrt(know.var() + EPSILON)
            np.testing.assert_allclose(scaled[2 * k + w]["rewards"], expected, rtol=1e-5)
            lonely = by_worker[w][k]["rewards"] / np.sqrt(seen[w][k].var() + EPSILON)
            np.testing.assert_allclose(alone[2 * k + w]["rewards"], lonely, rtol=1e-5)
    merged = RunningMoments.of(seen[0][2]).update(seen[1][2])
    with flowrl.run(graph(True, normalize_rewards=discount), Local(), seed=0) as running:
        running.step(6)
        table = running._engine.accounts.table.moments("reward_moments")
        assert table.count == merged.count
        np.testing.assert_allclose([table.mean, table.m2], [merged.mean, merged.m2], rtol=1e-12)
        # They ride on the next pull: no message of their own.
        assert running.stats().nodes["ShareRewardMoments"].messages == 0


def test_returns_stay_raw_though_rewards_are_clipped() -> None:
    with flowrl.run(graph(True, normalize_rewards=0.5, reward_clip=0.75), Local(), seed=0) as running:
        items = running.step(4)
        assert max(float(item["rewards"].max()) for item in items) == 0.75
        window = running._engine.accounts.table.window("episode_return")
    assert set(window) <= {6.0, 28.0, 3.0}


def test_a_worker_that_starts_anew_is_told() -> None:
    told: list[Any] = []

    class Handle:
        def tell(self, *args: Any) -> None:
            told.append(args)

    class Context:
        def __init__(self) -> None:
            self.report = self
            self.table = self

        def moments(self, name: str) -> Moments:
            return Moments(4.0, 1.0, 2.0)

        def actors(self, group: Any) -> list[Handle]:
            return [handle]

    handle = Handle()
    workers = flowrl.actor(lambda: None, name="workers")
    op, ctx = ShareRewardMoments(workers), Context()
    op.open()
    op.actor_started(handle, ctx)  # type: ignore[arg-type]
    assert told == []
    assert list(op.process("item", ctx)) == ["item"]  # type: ignore[arg-type]
    assert list(op.process("item", ctx)) == ["item"]  # type: ignore[arg-type]
    op.actor_started(handle, ctx)  # type: ignore[arg-type]
    assert told == [("set_reward_moments", 4.0, 1.0, 2.0)] * 2
