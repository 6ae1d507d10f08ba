"""Evaluators that die: what they had is begun again, or dropped and counted, or the run stops."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl import Ignore, Local, Raise, Restart
from flowrl.algorithms import PPOConfig
from flowrl.errors import ActorDied
from flowrl.failures import FailurePolicy
from flowrl.testing import Delayed
from tests.engine.losing import Nodes
from tests.operators.test_evaluation import Judge, Trainer, graph, training
from tests.rl.counting_envs import Walk

QUICK = Restart(3, backoff_s=0.02)


def dying(*deaths: tuple[str, int]) -> Callable[[str, int], bool]:
    """Each of these actors dies in place of its n-th message; message 0 starts it."""
    return lambda actor, n: (actor, n) in deaths


def told(backend: Any, items: int = 10, **kwargs: Any) -> tuple[list[dict[str, Any]], Any]:
    """What the summaries say of evaluations, and the figures at the end."""
    with flowrl.run(graph(**kwargs), backend, seed=2) as running:
        return [dict(item.nodes.get("EvaluateEvery", {})) for item in running.step(items)], running.stats()


def without(count: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: figure for name, figure in one.items() if name != count} for one in found]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("judges", [1, 3])
def test_a_restarted_one_begins_again_what_it_had(seed: int, judges: int) -> None:
    expected, _ = told(Local(), judges=judges)
    backend = Delayed(seed, die=dying((f"evaluators[{judges - 1}]", 1), ("evaluators[0]", 3)))
    found, stats = told(backend, judges=judges, on_failure=QUICK)
    assert without("evaluations_restarted", found) == expected  # at the same items, though it came later
    assert found[-1]["evaluations_restarted"] == 2
    assert stats.metrics["evaluators"]["restarts"] == 2


@pytest.mark.parametrize("seed", range(3))
def test_an_asynchronous_graph_does_not_wait_for_it(seed: int) -> None:
    backend = Delayed(seed, die=dying(("evaluators[0]", 1), ("evaluators[1]", 1)))
    found, _ = told(backend, 50, judges=2, gather="async", on_failure=Restart(3, backoff_s=0.2))
    news = [one for one, before in zip(found, [{}, *found], strict=False) if "version" in one and one != before]
    assert news[0]["version"] == 3  # with the weights that it was asked with
    assert found[-1]["evaluations_restarted"] == 2
    assert all(one["evaluated_episodes"] == 4 * one["evaluations"] for one in found if "version" in one)
    assert next(at for at, one in enumerate(found) if "version" in one) > 8  # items came meanwhile


def test_one_that_died_between_two_evaluations_is_waited_for() -> None:
    expected, _ = told(Local())
    backend = Delayed(0)
    with flowrl.run(graph(on_failure=QUICK), backend, seed=2) as running:
        found = [dict(item.nodes.get("EvaluateEvery", {})) for item in running.step(4)]
        backend.kill(running.actors["evaluators"][0])
        found += [dict(item.nodes.get("EvaluateEvery", {})) for item in running.step(6)]
    assert without("evaluations_restarted", found) == expected


@pytest.mark.parametrize("gather", ["sync", "async"])
def test_what_is_out_at_the_end_is_begun_again_too(gather: str) -> None:
    items = flowrl.from_iterators([lambda: iter([flowrl.Batch({"x": range(40)})])])
    learner, evaluators = flowrl.actor(Trainer, name="learner"), flowrl.actors(Judge, count=2, name="evaluators")
    gathered = items.gather_sync() if gather == "sync" else items.gather_async()
    flow = gathered.for_each(flowrl.operators.TrainOneStep(learner)).for_each(
        flowrl.operators.EvaluateEvery(evaluators, learner, env_steps=30, on_failure=QUICK)
    )
    with flowrl.run(flow, Delayed(0, die=dying(("evaluators[1]", 1))), seed=0) as running:
        list(running)
        figures = running.stats().metrics["EvaluateEvery"]
    assert (figures["evaluations"], figures["evaluated_episodes"], figures["evaluations_restarted"]) == (1, 20, 1)


class Sharing(Judge):
    """Says how many it played by the lengths."""

    def evaluate(self, *asked: Any, share: tuple[int, int] | None = None) -> Any:
        if share is not None:
            self.index, self.count = share
        return super().evaluate(*asked)


@pytest.mark.parametrize("seed", range(3))
def test_the_living_share_the_next_ones(seed: int) -> None:
    backend = Delayed(seed, die=dying(("evaluators[0]", 2)))
    found, stats = told(backend, 11, judges=3, kind=Sharing, on_failure=Ignore())
    # The first is whole, the second is dropped with its second share, the third is played by two: all four episodes.
    assert [one.get("evaluations") for one in found] == [None] * 3 + [1] * 6 + [2] * 2
    assert (found[-1]["evaluated_episodes"], found[-1]["evaluations_dropped"], found[-1]["version"]) == (8, 1, 9)
    assert stats.metrics["evaluators"]["actors_lost"] == 1
    assert stats.groups["evaluators"].deaths == 1


def test_with_the_last_one_the_run_stops() -> None:
    backend = Delayed(0, die=dying(("evaluators[0]", 1), ("evaluators[1]", 2)))
    with (
        flowrl.run(graph(judges=2, kind=Sharing, on_failure=Ignore()), backend, seed=0) as running,
        pytest.raises(
            ActorDied, match=r"every actor of evaluators has died; the last was evaluators\[1\]: .* node Eval"
        ),
    ):
        running.step(20)


@pytest.mark.parametrize("gather", ["sync", "async"])
@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (
            Raise(),
            r"evaluators\[0\] died: the process of .* node EvaluateEvery has on_failure=Raise\(\) \(Restart\(n\)",
        ),
        (Restart(2, 0.01), r"evaluators\[0\] died after 2 restarts: .* node EvaluateEvery has on_failure=Restart\("),
    ],
)
def test_it_stops_the_run(gather: str, policy: FailurePolicy, text: str) -> None:
    backend = Delayed(0, die=lambda actor, n: actor == "evaluators[0]" and n % 2 == 1)  # every evaluation kills it
    with (
        flowrl.run(graph(gather, on_failure=policy), backend, seed=0) as running,
        pytest.raises(ActorDied, match=text) as caught,
    ):
        running.step(200)
    assert "node 'EvaluateEvery'" in "".join(caught.value.__notes__)


def test_weights_that_were_lost_with_the_learners_node_are_not_evaluated() -> None:
    backend = Nodes(lambda name: "far" if name == "learner[0]" else "driver", likely=1.0)
    with flowrl.run(graph(on_failure=QUICK), backend, seed=0) as running:
        running.step(3)
        backend.kill(running.actors["evaluators"][0])  # in the middle of the first evaluation
        backend.lose_payloads("far")  # before it can be begun again
        found = running.step(4)[-1].nodes["EvaluateEvery"]
    assert (found["evaluations_dropped"], found["evaluations"], found["version"]) == (1, 1, 6)


def test_deaths_with_answers_between_them_are_not_in_a_row() -> None:
    # A life has one evaluation, then two, then one, ...; were they as many each time, the fourth death would stop it.
    deaths = [2, 6, 9, 13, 16]
    found, stats = told(Delayed(0, die=dying(*(("evaluators[0]", n) for n in deaths))), 40, on_failure=Restart(2, 0.01))
    assert stats.metrics["evaluators"]["restarts"] == len(deaths)
    assert found[-1]["evaluations"] == 13
    with pytest.raises(ActorDied, match=r"evaluators\[0\] died after 2 restarts"):
        told(Delayed(0, die=lambda a, n: a == "evaluators[0]" and n % 3 == 2), 40, on_failure=Restart(2, 0.01))


def test_the_policy_is_shown_and_checked() -> None:
    assert "on_failure=Restart(3)" in graph().explain().split("EvaluateEvery(")[1]
    assert "on_failure=Ignore()" in graph(on_failure=Ignore()).explain()
    assert "Restart(times" not in graph().explain()
    with pytest.raises(ValueError, match=r"EvaluateEvery: on_failure must be Restart\(\.\.\.\), Ignore\(\) or Raise"):
        graph(on_failure=3)
    with pytest.raises(ValueError, match=r"on_evaluator_failure must be one of Restart\(n\), Raise\(\), got Ignore"):
        PPOConfig(on_evaluator_failure=Ignore())  # type: ignore[arg-type]
    cfg = PPOConfig(Walk, evaluate_every_env_steps=50, on_evaluator_failure=Raise())
    assert "on_failure=Raise()" in cfg.graph().explain()


# with real evaluators
def curve(backend: Any, *, sampled: bool = True) -> tuple[list[Any], dict[str, float]]:
    with flowrl.run(training(True, sampled=sampled), backend, seed=5) as running:
        items = running.step(8)
        return [dict(item.nodes.get("EvaluateEvery", {})) for item in items], running.stats().metrics.get(
            "evaluators", {}
        )


def test_an_evaluation_that_was_begun_again_is_the_same_number_for_number() -> None:
    expected, _ = curve(Local())
    assert expected[-1]["evaluations"] >= 4
    found, figures = curve(Delayed(1, die=dying(("evaluators[1]", 2), ("evaluators[0]", 4), ("evaluators[0]", 7))))
    assert without("evaluations_restarted", found) == expected
    assert figures["restarts"] == 3


def test_run_evaluate_where_an_evaluator_dies() -> None:
    with flowrl.run(training(True), Local(), seed=5) as running:
        running.step(1)
        expected = [running.evaluate(5, deterministic=False) for _ in range(3)]
    backend = Delayed(1, die=dying(("evaluators[0]", 2)))
    with flowrl.run(training(True), backend, seed=5) as running:
        running.step(1)
        found = [running.evaluate(5, deterministic=False)]
        found.append(running.evaluate(5, deterministic=False))  # it dies in the middle of this one
        assert running.stats().metrics["evaluators"]["restarts"] == 1
        backend.kill(running.actors["evaluators"][1])  # and the other before
        found.append(running.evaluate(5, deterministic=False))
        assert running.stats().metrics["evaluators"]["restarts"] == 2
        assert found == expected
        running.step(2)


def test_run_evaluate_where_evaluators_are_left_out_or_the_run_is_to_stop() -> None:
    for policy in (Ignore(), Raise()):
        with flowrl.run(training(True, on_failure=policy), backend := Delayed(1), seed=5) as running:
            running.step(1)
            backend.kill(running.actors["evaluators"][0])
            if isinstance(policy, Raise):
                with pytest.raises(ActorDied, match=r"evaluators\[0\] died"):
                    running.evaluate(5)
                assert running.closed
            else:
                assert running.evaluate(5).episodes == 5  # all by the other
                backend.kill(running.actors["evaluators"][1])
                with pytest.raises(ActorDied, match="every actor of evaluators has died"):
                    running.evaluate(5)


def test_run_evaluate_where_the_worker_that_plays_dies() -> None:
    with flowrl.run(training(False), backend := Delayed(1), seed=5) as running:
        running.step(1)
        backend.kill(running.actors["workers"][0])
        assert running.evaluate(5).episodes == 5
        assert running.step(2)[-1].env_steps > 100


@pytest.mark.parametrize("gather", ["sync", "async"])
def test_a_run_is_saved_and_resumed_while_an_evaluator_is_away(tmp_path: Path, gather: str) -> None:
    def rest(running: Any) -> Any:
        return running.step(20)[-1].nodes["EvaluateEvery"]

    # In the deterministic graph the death is known once the answer is waited for: by the save.
    backend = Delayed(0, die=dying(("evaluators[1]", 1)), likely=1.0)
    with flowrl.run(graph(gather, judges=2, on_failure=Restart(3, backoff_s=5.0)), backend, seed=2) as running:
        for _ in range(3 if gather == "sync" else 4):
            (item,) = running.step(1)
        assert "evaluations" not in item.nodes.get("EvaluateEvery", {})
        assert running.stats().groups["evaluators"].deaths == (gather == "async")
        running.save(tmp_path / "there")
        assert rest(running)["evaluations_restarted"] == 1
    again = graph(gather, judges=2, on_failure=Restart(3))
    with flowrl.run(again, Local(), resume=tmp_path / "there") as resumed:
        for _ in range(5):
            found = resumed.step(1)[-1].nodes.get("EvaluateEvery", {})
            if "version" in found:
                break
        assert (found["version"], found["evaluated_episodes"], found["return_mean"]) == (3, 4, 3)  # of its weights
        assert rest(resumed)["evaluations"] >= 2


def test_a_save_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    backend = Delayed(0, die=dying(("evaluators[0]", 1)), likely=1.0)
    with flowrl.run(graph("async", on_failure=Restart(3, backoff_s=50.0)), backend, seed=2) as running:
        while not running.stats().groups["evaluators"].deaths:
            running.step(1)
        with pytest.raises(TimeoutError, match=r"not saved: evaluators\[0\] has not answered within timeout_s=3"):
            running.save(tmp_path / "there", timeout_s=3)
        assert not (tmp_path / "there").exists()
        running.step(2)
        running.save(tmp_path / "there")


class Interrupting(Delayed):
    """Ctrl-C in the middle of the first wait for a time to pass."""

    pressed = False

    def poll(self, sent: Any, timeout_s: float | None) -> Any:
        if not sent and timeout_s and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return super().poll(sent, timeout_s)


def test_ctrl_c_while_an_evaluator_is_waited_for_loses_nothing() -> None:
    expected, _ = told(Local())
    backend = Interrupting(0, die=dying(("evaluators[0]", 1)))
    found: list[dict[str, Any]] = []
    interrupts = 0
    with flowrl.run(graph(on_failure=QUICK), backend, seed=2) as running:
        while len(found) < 10:
            try:
                found.append(dict(next(running).nodes.get("EvaluateEvery", {})))
            except KeyboardInterrupt:
                interrupts += 1
    assert (backend.pressed, interrupts) == (True, 1)
    assert without("evaluations_restarted", found) == expected
