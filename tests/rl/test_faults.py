"""Faults of environments: where they were, what becomes of the fragment, and that their bundles show them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.cli import main
from flowrl.failures import Raise, Restart
from flowrl.metrics import Sum
from flowrl.ref import Query
from flowrl.rl import EnvOptions, InferenceServer, RolloutWorker
from flowrl.rl.action_log import ActionLog, episode_of
from flowrl.rl.crashes import KEY, read_crash
from flowrl.rl.faults import Faults
from flowrl.rl.replay_crash import CannotReplay, replay_crash
from tests.rl.counting_envs import Counting, Mishap, TwoArgumentsError

MISHAP = "tests.rl.counting_envs:Mishap"
ERRORS = {
    "raise": TwoArgumentsError,
    "hang": TimeoutError,
    "exit": RuntimeError,
    "nan": FloatingPointError,
    "inf": FloatingPointError,
    "shape": ValueError,
    "dtype": ValueError,
}
ALONE = ("raise", "nan", "inf", "shape", "dtype")  # what needs no process of its own


def worker_of(what: str, folder: Path, *, env: Any = MISHAP, num_envs: int = 2, **options: Any) -> RolloutWorker:
    given: dict[Any, Any] = {name: options.pop(name) for name in ("at", "episode", "most", "marks") if name in options}
    options.setdefault("vector", "async" if what in ("hang", "exit") else "sync")
    return RolloutWorker(
        env, steps=8, num_envs=num_envs, env_kwargs={"what": what} | given, seed=3, index=1, count=2,
        env_options=EnvOptions(crash_dir=str(folder), env_timeout_s=0.5 if what == "hang" else None, **options),
    )  # fmt: skip


def samples(worker: RolloutWorker, count: int) -> None:
    for _ in range(count):
        worker.sample()


def bundles(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.crash"))


@pytest.mark.parametrize("what", ERRORS)
def test_a_fault_is_raised_with_its_place_and_its_bundle_shows_it_again(what: str, tmp_path: Path) -> None:
    worker = worker_of(what, tmp_path, num_envs=1 if what in ("hang", "exit") else 2)
    with pytest.raises(ERRORS[what]) as caught:
        worker.sample()
    notes = "\n".join(caught.value.__notes__)
    assert "in environment 0, at step 3 of its episode, action " in notes
    assert "environment 0 had the seed " in notes
    assert "in worker 1 of 2, environment 'tests.rl.counting_envs:Mishap'" in notes
    (path,) = bundles(tmp_path)
    assert f"to see it again: flowrl replay-crash {path} --allow-import" in notes
    about = read_crash(path).about
    assert (about["environment"], about["step"], about["call"], about["worker_index"]) == (0, 3, "step", 1)
    assert f"seed {about['seed']}" in notes
    assert about["env_kwargs"] == {"what": what}
    result = replay_crash(path, allow_import=True)
    assert result.reproduced, result.said
    worker.close()


@pytest.mark.parametrize("what", ["raise", "nan"])
def test_a_fault_in_a_later_fragment_and_episode_is_played_from_the_seed_on(what: str, tmp_path: Path) -> None:
    worker = worker_of(what, tmp_path, episode=4, at=2)
    worker.sample()  # 8 vector steps: an episode of 5, its reset, 2 steps
    with pytest.raises(ERRORS[what]):
        samples(worker, 4)
    crash = read_crash(bundles(tmp_path)[0])
    # Three episodes of 5 steps, each with a row that only resets, and 2 steps.
    assert crash.actions.shape == (20, 1)
    assert crash.about["step"] == 2
    assert replay_crash(bundles(tmp_path)[0], allow_import=True).reproduced


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_every_way_to_reset_can_be_played_again(mode: str, tmp_path: Path) -> None:
    worker = worker_of("raise", tmp_path, episode=3, at=1, autoreset=mode)
    with pytest.raises(TwoArgumentsError):
        samples(worker, 4)
    assert replay_crash(bundles(tmp_path)[0], allow_import=True).reproduced


def test_a_long_way_is_played_from_the_state_of_the_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.rl.action_log.MOST_BYTES", 200)
    worker = worker_of("raise", tmp_path, env=StateDependent, num_envs=1)
    with pytest.raises(RuntimeError, match="too far"):
        samples(worker, 300)
    (path,) = bundles(tmp_path)
    crash = read_crash(path)
    assert crash.about["at_step"] is None
    assert crash.about["generator"]["bit_generator"] == "PCG64"
    assert len(crash.actions) <= 5
    result = replay_crash(path, allow_import=True)
    assert result.reproduced, result.said
    assert str(result.error) == crash.about["error"]["message"]


class StateDependent(Mishap):
    """Fails where its own generator has led it, after many episodes."""

    def __init__(self, what: str):
        super().__init__("none")

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        answer = super().step(action)
        if abs(self.position).max() > 4.5:
            raise RuntimeError(f"too far: {self.position}")
        return answer


@pytest.mark.parametrize("what", ALONE)
def test_a_restart_drops_the_fragment_whole_and_is_counted(what: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    worker = worker_of(what, tmp_path, most=2, marks=str(marks), on_fault=Restart(3, backoff_s=0))
    answer = worker.sample()
    batch = answer.payload
    assert batch["rewards"].shape == (8, 2)
    assert np.isfinite(batch["rewards"]).all()
    assert answer.env_steps == int(batch["valid"].sum()) == 14
    # What is not finite is seen when the fragment is full, both copies at once: 8 steps of 2. The others end it early.
    restarts, lost = (1, 16) if what in ("nan", "inf") else (2, 2 * 2 * 2)
    assert answer.metrics["env_restarts"] == Sum(restarts)
    assert answer.metrics["steps_discarded"] == Sum(lost)
    assert "env_restarts" not in worker.sample().metrics
    assert len(bundles(tmp_path)) == restarts


@pytest.mark.parametrize("what", ["hang", "exit"])
def test_processes_of_environments_are_killed_and_made_anew(what: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    worker = worker_of(what, tmp_path, num_envs=1, most=1, marks=str(marks), on_fault=Restart(1, backoff_s=0))
    answer = worker.sample()
    assert answer.metrics["env_restarts"] == Sum(1)
    assert answer.payload["rewards"].shape == (8, 1)
    worker.close()


def test_restarts_have_a_bound_and_pauses_that_double(tmp_path: Path) -> None:
    pauses: list[float] = []
    worker = worker_of("raise", tmp_path, on_fault=Restart(3, backoff_s=0.5))
    worker._faults = Faults(worker._faults.place, pauses.append)
    with pytest.raises(TwoArgumentsError) as caught:
        worker.sample()
    assert pauses == [0.5, 1.0, 2.0]
    assert "after 3 restarts in a row (EnvOptions.on_fault=Restart(times=3, backoff_s=0.5))" in caught.value.__notes__


def test_a_fault_at_the_reset_gets_another_seed(tmp_path: Path) -> None:
    worker = worker_of("raise", tmp_path, at=0, on_fault=Restart(2, backoff_s=0))
    with pytest.raises(TwoArgumentsError) as caught:
        worker.sample()
    assert caught.value.__notes__[0] == "in reset of environment 0"
    seeds = [read_crash(path).about["seed"] for path in bundles(tmp_path)]
    assert len(set(seeds)) == 3
    assert all(replay_crash(path, allow_import=True).reproduced for path in bundles(tmp_path))


def test_a_constructor_is_tried_again(tmp_path: Path) -> None:
    tries: list[int] = []

    def factory() -> Counting:
        tries.append(1)
        if len(tries) in (2, 4):
            raise ConnectionError("no licence")
        return Counting((9,))

    options = EnvOptions(crash_dir=str(tmp_path), on_fault=Restart(2, backoff_s=0))
    worker = RolloutWorker(factory, steps=4, num_envs=2, env_options=options)
    assert worker.sample().metrics["env_restarts"] == Sum(2)
    assert [read_crash(path).about["call"] for path in bundles(tmp_path)] == ["constructor"] * 2
    tries[:] = [1]
    with pytest.raises(ConnectionError, match="no licence") as caught:
        RolloutWorker(factory, num_envs=2, env_options=EnvOptions(crash_dir=str(tmp_path)))
    assert caught.value.__notes__[0] == "in the constructor of environment 0"


def test_a_policys_own_error_is_no_fault_of_an_environment(tmp_path: Path) -> None:
    worker = worker_of("none", tmp_path, on_fault=Restart(3, backoff_s=0))
    flat, _ = worker.get_weights()
    worker._net.set_weights(np.full_like(flat, 3e38))
    with pytest.raises(FloatingPointError, match="logits"), np.errstate(all="ignore"):
        worker.sample()
    assert bundles(tmp_path) == []


def test_one_close_that_raises_leaves_no_other_open(tmp_path: Path) -> None:
    closed: list[int] = []

    class Sticky(Counting):
        def close(self) -> None:
            closed.append(1)
            raise OSError("the port is busy")

    worker = RolloutWorker(Sticky, num_envs=3)
    with pytest.raises(OSError, match="the port is busy") as caught:
        worker.close()
    assert caught.value.__notes__ == ["in close of environment 0"]
    assert closed == [1, 1, 1]
    worker.close()


@pytest.mark.parametrize(("what", "vector"), [("raise", "sync"), ("raise", "async"), ("nan", "sync")])
def test_halves(what: str, vector: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    worker = worker_of(
        what, tmp_path, num_envs=3, most=1, marks=str(marks), double_buffer=True, vector=vector,
        on_fault=Restart(2, backoff_s=0),
    )  # fmt: skip
    answer = worker.sample()
    assert answer.payload["rewards"].shape == (8, 3)
    assert answer.metrics["env_restarts"] == Sum(1)
    (path,) = bundles(tmp_path)
    (marks / "0").unlink()
    assert replay_crash(path, allow_import=True).reproduced
    worker.close()


def test_same_seed_same_numbers_with_and_without_a_policy_for_faults(tmp_path: Path) -> None:
    plain, ready = (worker_of("none", tmp_path, on_fault=policy) for policy in (Raise(), Restart()))
    for _ in range(3):
        one, two = plain.sample().payload, ready.sample().payload
        assert all(np.array_equal(one[name], two[name]) for name in one)


def test_outputs_asked_of_a_server(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    worker = worker_of("raise", tmp_path, most=2, marks=str(marks), on_fault=Restart(3, backoff_s=0))
    server = InferenceServer(seed=0)
    asked, answer = 0, worker.begin_sample()
    while isinstance(answer, Query):
        asked += 1
        answer = worker.go_on(server.serve(["workers[0]"], answer.payload).payload, 0)  # type: ignore[assignment]
    assert answer.payload["rewards"].shape == (8, 2)
    assert answer.metrics["env_restarts"] == Sum(2)
    assert asked == 3 + 3 + 8 + 1  # two fragments end in their third step; the last asks for values, too


# the command line


def test_replay_crash_says_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TwoArgumentsError):
        worker_of("raise", tmp_path).sample()
    (path,) = bundles(tmp_path)
    assert main(["replay-crash", str(path)]) == 2
    said = capsys.readouterr()
    assert "TwoArgumentsError in step, at step 3 of its episode, seed " in said.out
    assert f"the bundle names {MISHAP}, and a file may not choose what code runs" in said.err
    assert main(["replay-crash", str(path), "--allow-import"]) == 0
    said = capsys.readouterr()
    assert "reproduced: the same error came in the same place: ('the arm is stuck', 3)" in said.out
    assert "TwoArgumentsError: ('the arm is stuck', 3)" in said.err
    edited(path, lambda about: about["env_kwargs"].update(what="none"))
    assert main(["replay-crash", str(path), "--allow-import"]) == 1
    assert "not reproduced: nothing failed: 3 steps went well" in capsys.readouterr().out


def edited(path: Path, edit: Any) -> None:
    """Changes what a bundle says."""
    from safetensors.numpy import save_file

    crash = read_crash(path)
    edit(crash.about)
    save_file({"actions": crash.actions}, path, metadata={KEY: json.dumps(crash.about)})


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "replay-crash takes one file, got nothing"),
        (["a", "b"], "takes one file, got a b"),
        (["nowhere.crash"], "No such file"),
        (["pyproject.toml"], "is no bundle of a crash, or damaged"),
    ],
)
def test_bad_usage(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay-crash", *args]) == 2
    assert text in capsys.readouterr().err


def test_what_cannot_be_played(tmp_path: Path) -> None:
    with pytest.raises(TwoArgumentsError) as caught:
        worker_of("raise", tmp_path, env=lambda what: Mishap(what)).sample()
    (path,) = bundles(tmp_path)
    assert any(f"replay_crash({str(path)!r}, env=...) in Python" in note for note in caught.value.__notes__)
    with pytest.raises(CannotReplay, match=r"names .*<lambda>.*, which no import finds: replay it in Python"):
        replay_crash(path, allow_import=True)
    assert replay_crash(path, env=Mishap).reproduced
    edited(path, lambda about: about.update(at_step=None))
    with pytest.raises(CannotReplay, match="the way to the fault is not known from its beginning"):
        replay_crash(path, env=Mishap)
    edited(path, lambda about: about.update(at_step=0, unwritable_kwargs={"map": "<Map>"}))
    with pytest.raises(CannotReplay, match=r"could not be written to the bundle .map=<Map>."):
        replay_crash(path, env=Mishap)
    edited(path, lambda about: about.update(format=2))
    with pytest.raises(ValueError, match="has format 2; this version of flowrl reads format 1"):
        read_crash(path)


def test_bundles_have_a_bound_and_a_directory_that_cannot_be_written_is_only_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flowrl.rl.faults.MOST", 2)
    worker = worker_of("raise", tmp_path, episode=0)
    for _ in range(4):
        with pytest.raises(TwoArgumentsError):
            worker.sample()
    assert len(bundles(tmp_path)) == 2
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(TwoArgumentsError):
        worker_of("raise", file).sample()
    assert "no reproduction of a fault could be written to" in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_fault": "raise"}, r"on_fault must be Raise\(\) or Restart\(n, backoff_s\), got 'raise'"),
        ({"env_timeout_s": 0}, "env_timeout_s must be a number of seconds above 0 .*, got 0"),
        ({"env_timeout_s": True}, "env_timeout_s must be a number of seconds above 0 .*, got True"),
        ({"crash_dir": ""}, "crash_dir must be the path of a directory, or None, got ''"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        EnvOptions(**options)


def test_a_timeout_needs_a_process_that_can_be_ended() -> None:
    with pytest.raises(ValueError, match=r"env_timeout_s=2 cannot end an environment that hangs in this very process"):
        RolloutWorker(Counting, env_options=EnvOptions(env_timeout_s=2, vector="sync"))


# the log


def test_the_log_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.rl.action_log.MOST_BYTES", 100)
    log = ActionLog()
    log.begin(7)
    none = np.zeros((4, 2), bool)
    for k in range(2):
        log.add(np.full((4, 2), k), none, none)  # 64 bytes each
    assert log.at_step is None
    actions, done = log.rows(1, np.full((2, 2), 9), none[:2])
    assert actions.ravel().tolist() == [1, 1, 1, 1, 9, 9]
    assert done.shape == (6, 1)
    log.begin(8)
    assert log.at_step == 8
    assert log.rows(None, np.full((1, 2), 9), none[:1])[0].tolist() == [[9, 9]]


def test_where_an_episode_begins() -> None:
    done = np.array([0, 0, 1, 0, 0, 0], bool)
    assert episode_of(done, 1, phantom_rows=True) == (None, 2)
    assert episode_of(done, 5, phantom_rows=True) == (4, 2)
    assert episode_of(done, 5, phantom_rows=False) == (3, 3)
    assert episode_of(done, 3, phantom_rows=True) == (4, 0)  # that row only resets
