"""train with checkpoints: what is saved, what goes on from it, and what interrupts leave."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import CheckpointError, Local
from flowrl.algorithms import PPOConfig
from flowrl.checkpoint import Checkpoints, checkpoint_at, newest, read_manifest
from flowrl.cli import BAD_USAGE, SOLVED_OR_FINISHED, main
from flowrl.continuing import interval_of, start_of
from flowrl.engine.run import Run
from flowrl.training import Progress, train

ROOT = Path(__file__).resolve().parent.parent
ENV = "tests.rl.counting_envs:Counting"
SMALL = {"env": ENV, "envs_per_worker": 4, "unroll": 12, "batch_steps": 60, "epochs": 1, "minibatch": 64}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]


def small(**settings: Any) -> PPOConfig:
    return PPOConfig(**{**SMALL, **settings})  # type: ignore[arg-type]


def rows(out: Path) -> list[dict[str, Any]]:
    """The records, without what depends on the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: line[k] for k in ("iteration", "env_steps", "episodes", "learner")} for line in lines]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A training without a break."""
    out = tmp_path_factory.mktemp("straight") / "run"
    return out, train(small(), total_steps=600, out=out, backend=Local(), seed=3)


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training, which ended at half its way."""
    out = tmp_path_factory.mktemp("half") / "run"
    result = train(small(), total_steps=300, out=out, backend=Local(), seed=3, checkpoint_every=100)
    assert result.checkpoint == Path(checkpoint_at(out))
    assert result.checkpoint.parent == out / "checkpoints"
    return out


def copied(out: Path, to: Path) -> Path:
    import shutil

    return Path(shutil.copytree(out, to / "run"))


def test_a_training_that_goes_on_equals_one_without_a_break(
    tmp_path: Path, straight: tuple[Path, Any], broken_off: Path
) -> None:
    out = copied(broken_off, tmp_path)
    before = rows(out)
    result = train(small(), total_steps=600, resume=out, backend=Local(), trust_pickles=True)
    assert rows(out) == rows(straight[0])
    assert result.seed == 3
    assert [s.iteration for s in result.history] == [row["iteration"] for row in rows(out)[len(before) :]]
    np.testing.assert_array_equal(result.policy.get_weights(), straight[1].policy.get_weights())
    np.testing.assert_array_equal(flowrl.load_policy(out).get_weights(), straight[1].policy.get_weights())
    np.testing.assert_array_equal(
        flowrl.load_policy(checkpoint_at(out)).get_weights(), straight[1].policy.get_weights()
    )
    table = (out / "metrics.csv").read_text().splitlines()
    assert len(table) == len(rows(out)) + 1
    assert start_of(out).kept is not None, "it saves as before"


def test_records_of_iterations_that_come_again_are_taken_back(
    tmp_path: Path, straight: tuple[Path, Any], broken_off: Path
) -> None:
    out = copied(broken_off, tmp_path)
    first = sorted((out / "checkpoints").glob("step-*"))[0]
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 99, "half a li')
    train(small(), total_steps=600, resume=first, backend=Local(), trust_pickles=True)
    assert rows(out) == rows(straight[0])
    iterations = [line.split(",")[0] for line in (out / "metrics.csv").read_text().splitlines()[1:]]
    assert iterations == [str(row["iteration"]) for row in rows(out)]


def test_another_out_begins_its_own_records(tmp_path: Path, broken_off: Path) -> None:
    before = rows(broken_off)
    result = train(small(), total_steps=400, resume=broken_off, out=tmp_path / "new", backend=Local())
    assert rows(broken_off) == before
    assert rows(tmp_path / "new")[0]["iteration"] == before[-1]["iteration"] + 1
    assert result.checkpoint == Path(newest(tmp_path / "new" / "checkpoints"))


def test_checkpoints_may_lie_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    where = f"memory://{tmp_path}/saved"
    kept = Checkpoints(where, every_env_steps=50, keep_last=1, keep_best=0)
    result = train(small(), total_steps=200, backend=Local(), seed=3, checkpoint_every=kept)
    assert result.checkpoint == newest(where)
    assert start_of(where).series == where
    again = train(small(), total_steps=300, backend=Local(), resume=where)
    assert again.checkpoint == newest(where) != result.checkpoint


def test_the_goal_goes_on_too(tmp_path: Path, broken_off: Path) -> None:
    with pytest.raises(ValueError, match=r"has taken \d+ environment steps already: total_steps=300 must be more"):
        train(small(), resume=broken_off, backend=Local())
    with pytest.raises(
        CheckpointError, match=r"config.env is 'tests.rl.counting_envs:Counting', which would be imported"
    ):
        train(resume=broken_off, backend=Local(), total_steps=400)
    result = train(resume=broken_off, backend=Local(), total_steps=400, out=tmp_path / "x", trust_names=True)
    assert result.reason == "total_steps"


def test_a_flow_of_ones_own_goes_on_in_python_only(tmp_path: Path) -> None:
    train(small().graph(), total_steps=100, out=tmp_path, backend=Local(), checkpoint_every=50)
    with pytest.raises(CheckpointError, match="is of no algorithm of flowrl's: go on in Python, with the same flow"):
        train(resume=tmp_path, backend=Local())
    assert train(small().graph(), total_steps=150, resume=tmp_path, backend=Local()).reason == "total_steps"


def test_where_to_save_must_be_known() -> None:
    with pytest.raises(ValueError, match="checkpoint_every needs out=DIR, or Checkpoints"):
        train(small(), total_steps=10, backend=Local(), checkpoint_every=5)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (500, {"every_env_steps": 500}),
        ("10_000", {"every_env_steps": 10_000}),
        ("90s", {"every_s": 90.0}),
        ("10min", {"every_s": 600.0}),
        ("1.5 h", {"every_s": 5400.0}),
    ],
)
def test_intervals(text: int | str, meant: dict[str, Any]) -> None:
    assert interval_of(text) == meant


@pytest.mark.parametrize("text", ["", "soon", "10 minutes", "-5s", "5m"])
def test_what_is_no_interval(text: str) -> None:
    with pytest.raises(ValueError, match=f"such as '90s', '10min' or '2h', got {text!r}"):
        interval_of(text)


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saving = Run.save
    tried: list[Any] = []

    def save(self: Run[Any], path: Any, **more: Any) -> Any:
        tried.append(path)
        if len(tried) == 2:
            raise OSError(28, "No space left on device")
        return saving(self, path, **more)

    monkeypatch.setattr(Run, "save", save)
    with caplog.at_level(logging.WARNING, "flowrl"):
        result = train(small(), total_steps=400, out=tmp_path, backend=Local(), checkpoint_every=100)
    assert result.reason == "total_steps"
    assert "No space left on device; the one before it stays" in caplog.text
    assert len(tried) == 3


# ---------------------------------------------------------------- interrupts


def press(at: int, number: int, summary: Any) -> Any:
    """Sends a signal while summary number `at` is under way."""
    if summary.iteration == at:
        signal.raise_signal(number)
    return summary


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_an_interrupt_while_an_item_is_under_way_saves_the_run(tmp_path: Path, number: int, kind: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)  # a Ray that this process started has one of its own
    flow = small().graph().for_each(partial(press, 3, number))
    with pytest.raises(kind) as caught:
        train(flow, total_steps=10**6, out=tmp_path, backend=Local(), seed=1, checkpoint_every=10**6)
    assert caught.value.__notes__ == [f"policy: {tmp_path / 'policy'}", f"checkpoint: {checkpoint_at(tmp_path)}"]
    if kind is SystemExit:
        assert caught.value.code == 143
    assert start_of(tmp_path).iteration == 3
    assert signal.getsignal(signal.SIGTERM) is before
    straight = train(small(), total_steps=rows(tmp_path)[-1]["env_steps"] + 50, backend=Local(), seed=1)
    again = train(
        small().graph().for_each(partial(press, -1, 0)), backend=Local(), resume=tmp_path, trust_pickles=True,
        total_steps=straight.history[-1].env_steps,
    )  # fmt: skip
    np.testing.assert_array_equal(again.policy.get_weights(), straight.policy.get_weights())


def saving_pressed(monkeypatch: pytest.MonkeyPatch, times: int) -> list[Any]:
    """Ctrl-C comes, so many times, when the first checkpoint is half written."""
    from flowrl.engine import saving

    write, pressed = saving.write_state, []

    def writing(directory: Any, name: str, state: Any) -> Any:
        entry = write(directory, name, state)
        if not pressed:
            pressed.append(name)
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return entry

    monkeypatch.setattr(saving, "write_state", writing)
    return pressed


def test_an_interrupt_while_it_saves_comes_after_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed = saving_pressed(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(small(), total_steps=10**6, out=tmp_path, backend=Local(), seed=1, checkpoint_every=100)
    assert pressed
    assert f"checkpoint: {checkpoint_at(tmp_path)}" in caught.value.__notes__
    assert all(name.startswith(("step-", "index")) for name in os.listdir(tmp_path / "checkpoints"))


def test_a_second_interrupt_ends_a_save_at_once_and_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving_pressed(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        train(small(), total_steps=10**6, out=tmp_path, backend=Local(), seed=1, checkpoint_every=100)
    there = os.listdir(tmp_path / "checkpoints")
    assert not [name for name in there if name.startswith(".")]
    for name in there:
        if name.startswith("step-"):
            read_manifest(tmp_path / "checkpoints" / name)


def test_a_save_that_fails_at_an_interrupt_says_which_is_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def observe(progress: Progress) -> None:
        if progress.summary.env_steps > 250:
            monkeypatch.setattr(Run, "save", lambda self, path, **more: (_ for _ in ()).throw(TimeoutError("busy")))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        train(small(), total_steps=10**6, out=tmp_path, backend=Local(), checkpoint_every=100, observe=observe)
    assert caught.value.__notes__[1] == f"no checkpoint: TimeoutError: busy; the newest is {checkpoint_at(tmp_path)}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_program_ends_within_five_seconds_of_a_signal(tmp_path: Path, number: int, code: int) -> None:
    """The real signal, in a real process; what it leaves goes on."""
    how = ["--backend", "local", "--checkpoint-every", "100", "--total-steps", "100000000", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "flowrl.cli", "train", "ppo", *FLAGS, *how]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("steps "):
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert out.splitlines()[-2] == f"checkpoint: {checkpoint_at(tmp_path)}"
    assert "Traceback" not in err
    steps = start_of(tmp_path).env_steps
    assert steps == rows(tmp_path)[-1]["env_steps"]
    resumed = ["resume", str(tmp_path), "--backend", "local", "--total-steps", str(steps + 100), "--trust-names"]
    assert main(resumed) == SOLVED_OR_FINISHED


# ---------------------------------------------------------------- commands


def test_resume_and_eval_from_the_command_line(
    tmp_path: Path, broken_off: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(broken_off, tmp_path)
    path = checkpoint_at(out)
    assert main(["resume", str(out), "--backend", "local", "--total-steps", "400"]) == BAD_USAGE
    assert "(--trust-names)" in capsys.readouterr().err
    assert main(["resume", str(out), "--backend", "local", "--total-steps", "400", "--trust-names"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"from {path} at {start_of(path).env_steps:,} steps; in this process"
    assert said[-2] == f"checkpoint: {checkpoint_at(out)}"
    for place in (out, checkpoint_at(out), out / "policy"):
        assert main(["eval", str(place), "--episodes", "3", "--env", ENV]) == 0
        assert capsys.readouterr().out.startswith("Evaluation(return 6 ± 0 (95%) over 3 episodes")
    for args, problem in (
        ("--episodes 0", "--episodes must be at least 1, got 0"),
        ("--env CartPol-v1", "did you mean 'CartPole-v1'"),
        ("--env Pendulum-v1", "but environment 'Pendulum-v1' has Box("),
    ):
        assert main(["eval", str(out / "policy"), *args.split()]) == BAD_USAGE
        said = capsys.readouterr().err
        assert problem in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["resume"], "resume needs a directory before its flags"),
        (["eval", "--episodes", "3"], "eval needs a directory before its flags"),
        (["resume", "NOWHERE"], "leaves some there with checkpoint_every= (--checkpoint-every)"),
        (["eval", "NOWHERE"], "no saved policy in NOWHERE"),
    ],
)
def test_wrong_commands(args: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == BAD_USAGE
    assert problem in capsys.readouterr().err


def test_checkpoint_flags_without_a_place_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--total-steps", "9", "--backend", "local", "--checkpoint-every", "5"]) == BAD_USAGE
    assert "--checkpoint-every needs --out DIR, or --checkpoint-dir" in capsys.readouterr().err
