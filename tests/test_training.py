"""train: what it takes, when it stops, what it gives back."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local, training
from flowrl.algorithms import PPOConfig
from flowrl.engine.run import Run
from flowrl.rl.evaluation import Evaluation
from flowrl.training import Progress, config_of, train
from tests.rl.counting_envs import Counting
from tests.test_records import summary


def small(**settings: Any) -> PPOConfig:
    """PPO on episodes of three steps whose return is always 1 + 2 + 3; about 24 of them an iteration."""
    given = {"env": Counting, "envs_per_worker": 4, "unroll": 12, "batch_steps": 60, "epochs": 1, "minibatch": 64}
    return PPOConfig(**{**given, **settings})


def test_it_stops_after_total_steps_and_gives_everything_back() -> None:
    seen: list[Progress] = []
    result = train(small(), total_steps=200, backend=Local(), seed=5, observe=seen.append)
    assert result.reason == "total_steps"
    assert result.solved is None
    assert result.evaluation is None
    assert result.checkpoint is None
    assert result.seed == 5
    assert result.history[-1].env_steps >= 200 > result.history[-2].env_steps
    assert [s.iteration for s in result.history] == list(range(1, len(result.history) + 1))
    assert [p.summary for p in seen] == result.history
    assert result.history[-1].episode_return_mean == 6.0
    assert result.history[-1].episode_length_mean == 3.0
    assert result.stats.env_steps == result.history[-1].env_steps
    assert result.policy.act(np.zeros(2, np.float32)) in (0, 1)
    assert result.policies == {"default": result.policy}


def test_solved_means_a_hundred_episodes_and_a_greedy_confirmation() -> None:
    result = train(small(), stop_return=6.0, backend=Local(), seed=0)
    assert result.reason == "solved"
    assert result.solved is True
    assert result.evaluation.returns == (6.0,) * 20
    assert result.history[-1].episodes >= 100 > result.history[-2].episodes


def test_an_evaluation_beside_training_may_reach_the_goal_first() -> None:
    result = train(small(evaluate_every_env_steps=100, evaluate_episodes=3), stop_return=6.0, backend=Local(), seed=0)
    assert result.solved is True
    assert result.history[-1].episodes < 100
    assert result.history[-1].nodes["EvaluateEvery"]["evaluations"] == 1
    assert result.evaluation.episodes == 20


def test_a_goal_out_of_reach_ends_at_the_limit_and_is_never_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "evaluate", lambda self, episodes: pytest.fail("evaluated"))
    result = train(small(), stop_return=6.5, total_steps=600, backend=Local(), seed=0)
    assert (result.reason, result.solved, result.evaluation) == ("total_steps", False, None)
    assert result.history[-1].episodes > 100


def test_a_mean_that_the_greedy_policy_does_not_confirm_is_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def evaluate(self: Run[Any], episodes: int) -> Evaluation:
        asked.append(episodes)
        return Evaluation((5.0,) * 20, (3,) * 20)

    monkeypatch.setattr(Run, "evaluate", evaluate)
    result = train(small(), stop_return=6.0, total_steps=600, backend=Local(), seed=0)
    assert (result.reason, result.solved) == ("total_steps", False)
    assert result.evaluation.mean == 5.0
    assert asked == [20] * sum(s.episodes >= 100 for s in result.history)


def test_a_flow_that_ends_needs_no_limit() -> None:
    result = train(small().graph().take(2), backend=Local(), seed=0)
    assert result.reason == "end"
    assert len(result.history) == 2


def test_out_holds_the_metrics_and_the_policy(tmp_path: Path) -> None:
    result = train(small(), total_steps=100, out=tmp_path / "run", backend=Local(), seed=0)
    assert result.checkpoint == tmp_path / "run" / "policy"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == len(result.history)
    loaded = flowrl.load_policy(tmp_path / "run")
    np.testing.assert_array_equal(loaded.get_weights(), result.policy.get_weights())
    with pytest.raises(FileExistsError, match="of another run"):
        train(small(), total_steps=100, out=tmp_path / "run", backend=Local())


@pytest.mark.parametrize(
    ("place", "kind", "problem"),
    [
        ("file", NotADirectoryError, "file is a file; choose a directory for out"),
        ("file/below", NotADirectoryError, "below cannot be written .Not a directory.; choose another"),
        ("x" * 300, OSError, "cannot be written .File name too long.; choose another"),
        ("used", FileExistsError, "used holds metrics.csv of another run; choose another"),
        ("nul\0", ValueError, "out must be the path of a directory, got "),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_starts(
    tmp_path: Path, place: str, kind: type[Exception], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "run", lambda *args, **kwargs: pytest.fail("started"))
    (tmp_path / "file").write_text("")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "metrics.csv").symlink_to("nowhere")
    with pytest.raises(kind, match=problem):
        train(small(), total_steps=100, backend=Local(), out=tmp_path / place)


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="a folder that nobody can write, not even root")
def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(OSError, match=r"/proc/self cannot be written \(.*\); choose another directory for out"):
        train(small(), total_steps=100, backend=Local(), out="/proc/self")


@pytest.mark.parametrize("out", [3, True, ["run"], b"run"])
def test_an_out_that_is_no_path_is_refused(out: Any) -> None:
    with pytest.raises(TypeError, match="out must be the path of a directory, got "):
        train(small(), total_steps=100, backend=Local(), out=out)
    with pytest.raises(ValueError, match="out must be the path of a directory, got ''"):
        train(small(), total_steps=100, backend=Local(), out="")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def errors(stream: io.StringIO, **settings: Any) -> str:
        monkeypatch.setattr(sys, "stderr", stream)
        train(small(), total_steps=200, backend=Local(), seed=5, observe=lambda _: print("mine"), **settings)
        return stream.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    assert errors(io.StringIO()) == errors(io.StringIO(), progress=False) == errors(Terminal(), progress=False) == ""
    assert "verdict" in errors(Terminal())
    lines = errors(io.StringIO(), progress=True).splitlines()
    assert lines[0].startswith("steps ")
    assert "return 6.0" in lines[-1]
    assert set(capsys.readouterr().out.split()) == {"mine"}


class Writer:
    """What a logger puts in the place of stderr."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("stream", [None, "closed", Writer()])
@pytest.mark.parametrize("progress", [None, True])
def test_progress_needs_no_stderr(stream: Any, progress: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    flow = flowrl.from_iterable(lambda: [summary(1, {})])
    assert len(train(flow, backend=Local(), progress=progress).history) == 1


def test_progress_ends_with_its_last_figures_also_at_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)

    def observe(progress: Progress) -> None:
        if progress.summary.iteration == 3:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(small(), total_steps=10**6, backend=Local(), observe=observe, progress=True)
    assert len(stream.getvalue().splitlines()) == 2  # the first, and the one that was held back


@dataclass(frozen=True)
class FrozenError(Exception):
    """Refuses attributes, a traceback among them."""

    code: int


@pytest.mark.parametrize("out", [None, "run"])
def test_an_exception_that_refuses_attributes_comes_out_as_itself(tmp_path: Path, out: str | None) -> None:
    def observe(progress: Progress) -> None:
        raise FrozenError(3)

    with pytest.raises(FrozenError) as caught:
        train(small(), total_steps=100, backend=Local(), observe=observe, out=out and tmp_path / out)
    assert caught.value.code == 3


def test_out_holds_the_settings_and_the_seed_that_was_drawn(tmp_path: Path) -> None:
    result = train(small(), total_steps=100, stop_return=7, out=tmp_path / "a", backend=Local())
    settings = json.loads((tmp_path / "a" / "run.json").read_text())
    assert settings["seed"] == result.seed
    assert settings["flowrl"] == flowrl.__version__
    assert (settings["total_steps"], settings["stop_return"]) == (100, 7)
    assert settings["algorithm"] == "flowrl.algorithms.ppo:PPOConfig"
    assert settings["config"]["env"] == "tests.rl.counting_envs:Counting"
    assert settings["config"]["batch_steps"] == 60
    again = train(small(), total_steps=100, out=tmp_path / "b", backend=Local(), seed=settings["seed"])
    np.testing.assert_array_equal(again.policy.get_weights(), result.policy.get_weights())
    flow = small().graph()
    train(flow, total_steps=100, out=tmp_path / "c", backend=Local())
    assert json.loads((tmp_path / "c" / "run.json").read_text())["graph"] == flow.explain().splitlines()


def press(at: int, summary: Any) -> Any:
    """Presses Ctrl-C while summary number `at` is under way."""
    if summary.iteration == at:
        signal.raise_signal(signal.SIGINT)
    return summary


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_saves_what_came_and_the_policy(tmp_path: Path, at: int) -> None:
    seen: list[Progress] = []
    flow = small().graph().for_each(partial(press, at))
    with pytest.raises(KeyboardInterrupt) as caught:
        train(flow, total_steps=10**6, out=tmp_path, backend=Local(), seed=1, observe=seen.append)
    assert caught.value.__notes__ == [f"policy: {tmp_path / 'policy'}"]
    assert seen[-1].run.closed
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [p.summary.iteration for p in seen] == list(range(1, at + 1))
    straight = train(small(), total_steps=lines[-1]["env_steps"], backend=Local(), seed=1)
    np.testing.assert_array_equal(flowrl.load_policy(tmp_path).get_weights(), straight.policy.get_weights())


def test_an_interrupt_whose_policy_cannot_be_saved_says_so(tmp_path: Path) -> None:
    def observe(progress: Progress) -> None:
        monkeypatch.setattr(Run, "policy_states", lambda self, **_: 1 / 0)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(KeyboardInterrupt) as caught:
        train(small(), total_steps=10**6, out=tmp_path, backend=Local(), observe=observe)
    assert caught.value.__notes__ == ["the policy is not saved: ZeroDivisionError: division by zero"]


def test_an_interrupt_without_out_adds_nothing() -> None:
    def observe(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        train(small(), total_steps=10**6, backend=Local(), observe=observe)
    assert not hasattr(caught.value, "__notes__")


def test_a_run_that_cannot_start_may_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'CartPole-v1'"):
        train(small(env="CartPole-v7"), total_steps=100, out=tmp_path, backend=Local())
    assert train(small(), total_steps=100, out=tmp_path, backend=Local()).checkpoint is not None


def test_the_same_seed_gives_the_same_policy_and_another_seed_another() -> None:
    weights = [train(small(), total_steps=100, backend=Local(), seed=seed).policy.get_weights() for seed in (1, 1, 2)]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


def test_an_exception_of_an_observer_closes_the_run() -> None:
    runs: list[Run[Any]] = []

    def observe(progress: Progress) -> None:
        runs.append(progress.run)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(small(), total_steps=100, backend=Local(), observe=observe)
    assert repr(runs[0]).startswith("Run(closed")


def test_no_goal_is_refused() -> None:
    with pytest.raises(ValueError, match="train needs total_steps or stop_return, or it would never end"):
        train(small(), backend=Local())
    with pytest.raises(ValueError, match="total_steps must be at least 1, got 0"):
        train(small(), total_steps=0, backend=Local())


@pytest.mark.parametrize("goal", [float("nan"), float("inf"), "475", True, [475]])
def test_a_goal_that_is_no_number_is_refused_by_name(goal: Any) -> None:
    with pytest.raises(ValueError, match="total_steps must be an integer of at least 1, got "):
        train(small(), total_steps=goal, backend=Local())
    with pytest.raises(ValueError, match="stop_return must be a finite number, got "):
        train(small(), total_steps=100, stop_return=goal, backend=Local())


def test_a_goal_may_be_a_number_of_numpy() -> None:
    result = train(small(), total_steps=np.int64(50), stop_return=np.float32(9.0), backend=Local())
    assert (result.reason, result.solved) == ("total_steps", False)


@pytest.mark.parametrize("backend", ["local", Local, flowrl.Ray, 3])
def test_a_backend_that_is_none_is_refused(backend: Any) -> None:
    flow = small().graph()
    for start in (lambda: flowrl.run(flow, backend), lambda: train(flow, total_steps=9, backend=backend)):
        with pytest.raises(TypeError, match=r"run needs a backend, flowrl.Local\(\) or flowrl.Ray\(\), got "):
            start()


@pytest.mark.parametrize("what", [PPOConfig, 3, object()])
def test_what_is_no_algorithm_is_refused(what: Any) -> None:
    with pytest.raises(
        TypeError, match=r"train needs a config \(PPOConfig\(...\)\), an algorithm's name or a Flow, got"
    ):
        train(what, total_steps=1, backend=Local())


def test_a_config_whose_graph_is_no_flow_is_refused() -> None:
    class Odd:
        def graph(self) -> int:
            return 3

    with pytest.raises(TypeError, match=r"Odd.graph\(\) must return a Flow, it returned int"):
        train(Odd(), total_steps=1, backend=Local())  # type: ignore[arg-type]


def test_a_flow_of_something_else_is_refused() -> None:
    flow: Any = flowrl.from_items([1], num_shards=1).gather_sync()
    with pytest.raises(TypeError, match=r"train needs a flow of Summaries, this one gives int; end it with .for_each"):
        train(flow, total_steps=1, backend=Local())


def test_an_algorithm_is_found_by_its_name_and_the_nearest_is_suggested() -> None:
    assert config_of("ppo") is PPOConfig
    with pytest.raises(ValueError, match=r"unknown algorithm 'pppo'; did you mean 'ppo'\? there are: a2c, .*ppo"):
        train("pppo", total_steps=1, backend=Local())
    with pytest.raises(ValueError, match=r"unknown algorithm 'xyz'; there are: a2c, .*ppo"):
        config_of("xyz")
