"""The command line: flags, what is printed, and the exit code of every way to end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shlex import split
from types import SimpleNamespace
from typing import Any

import pytest

import flowrl
from flowrl import Raise, Restart, cli, console
from flowrl.algorithms import CONFIGS, PPOConfig
from flowrl.cli import BAD_USAGE, FAILED, INTERRUPTED, NOT_REACHED, SOLVED_OR_FINISHED, main
from flowrl.flags import GraphOptions, TrainOptions, mapping_of, named, parse
from flowrl.rl.evaluation import Evaluation
from tests.test_records import summary

ROOT = Path(__file__).resolve().parent.parent
COUNTING = split("--env tests.rl.counting_envs:Counting --envs-per-worker 4 --unroll 12 --batch-steps 60 --epochs 1")
LOCAL = [*COUNTING, "--backend", "local", "--seed", "0"]  # every return is 6, about 24 episodes an iteration


def flags(*args: str) -> tuple[PPOConfig, TrainOptions]:
    """What the flags of `flowrl train ppo` say."""
    return parse(PPOConfig, TrainOptions, args, "flowrl train ppo", "")


def python(*args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in the checkout."""
    return subprocess.run(
        [sys.executable, *args], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100, **kwargs
    )


# what is said about the algorithms


def test_the_list_says_names_what_they_are_and_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == SOLVED_OR_FINISHED
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("ppo"))
    assert " ".join(line.split()).startswith("ppo PPO with a clipped surrogate: synchronous rollouts")
    assert line.endswith("[arXiv:1707.06347]")


def test_list_and_version_load_nothing_heavy() -> None:
    code = "import sys; from flowrl.cli import main; main(['list']); main(['--version']); print(sorted(sys.modules))"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))
    assert not {"torch", "ray", "gymnasium", "numpy", "tyro", "rich"} & loaded


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == SOLVED_OR_FINISHED
    assert capsys.readouterr().out == f"flowrl {flowrl.__version__}\n"


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["train", "--help"], ["graph", "-h"]])
def test_help_shows_the_commands(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == SOLVED_OR_FINISHED
    assert "flowrl train ALGORITHM --stop-return RETURN | --total-steps N" in capsys.readouterr().out


def test_help_of_an_algorithm_is_made_of_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--help"]) == SOLVED_OR_FINISHED
    out = capsys.readouterr().out
    for words in ("--num-workers INT", "the shards of the graph", "--policy.hidden", "--stop-return", "--backend"):
        assert words in out


@pytest.mark.parametrize("command", [["train"], ["graph"]])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_flag_has_its_help(name: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, name, "--help"]) == SOLVED_OR_FINISHED
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    flagged = [at for at, line in enumerate(lines) if line.startswith("--")]
    inner = ("--policy.hidden", "--env-options.frame-stack")
    several = {
        "ppo_and_dqn": ("--ppo.policy.hidden", "--dqn.policy.hidden"),
        "multi_agent_ppo": ("--ppo.policy.hidden",),
        "league_play": ("--ppo.policy.hidden",),
        "qmix": ("--dqn.policy.hidden",),
        "maddpg": ("--ddpg.policy.hidden",),
    }
    known = {"--env", *several.get(name, inner)}
    assert known <= {lines[at].split()[0] for at in flagged}
    assert [lines[at] for at in flagged if lines[at + 1].startswith("(default")] == []


# flags


def test_every_field_is_a_flag() -> None:
    config, options = flags(
        *split("--env my.envs:Maze --env-kwargs size=3 name=big --num-workers 4 --policy.hidden 32 16 --clip 0.1"),
        *split("--policy.activation relu --stop-return 475 --total-steps 1000 --backend local --seed 3 --out run"),
    )
    assert config.env == "my.envs:Maze"
    assert config.env_kwargs == {"size": 3, "name": "big"}
    assert (config.num_workers, config.clip) == (4, 0.1)
    assert (config.policy.hidden, config.policy.activation) == ((32, 16), "relu")
    assert options == TrainOptions(475.0, 1000, "local", 3, Path("run"))


def test_without_flags_the_config_keeps_its_defaults() -> None:
    assert flags() == (PPOConfig(), TrainOptions())


def test_a_model_is_named() -> None:
    config, _ = flags("--policy.model", "tests.rl.test_inference:Shared")
    assert getattr(config.policy.model, "__name__", None) == "Shared"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {}),
        (["None"], None),
        (["a=1", "b=x=y", "c=[1, 2]", "d=true", "e=False", "f=None", "g="],
         {"a": 1, "b": "x=y", "c": [1, 2], "d": True, "e": False, "f": None, "g": ""}),
        (['{"a": {"b": 0.5}}', "c=2"], {"a": {"b": 0.5}, "c": 2}),
    ],
)  # fmt: skip
def test_keyword_arguments_as_words(words: list[str], found: dict[str, Any] | None) -> None:
    assert mapping_of(words) == found


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("size", "expected a JSON object or key=value, got 'size'"),
        ('{"a": }', "not a JSON object"),
        ("1=2", "got '1=2'"),
    ],
)
def test_words_that_are_no_keyword_arguments(word: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        mapping_of([word])


def test_a_name_is_imported() -> None:
    assert named("tests.rl.counting_envs:Counting.reset").__qualname__ == "Counting.reset"
    for path, problem in {
        "Counting": "expected pkg.module:Name, got 'Counting'",
        "tests.nowhere:Env": "tests.nowhere:Env cannot be imported: No module named 'tests.nowhere'",
        "tests.rl.counting_envs:Cuonting": "has no attribute 'Cuonting'",
    }.items():
        with pytest.raises(ValueError, match=problem):
            named(path)


# the graph


def test_the_graph_as_a_tree_as_mermaid_and_as_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "ppo", "--num-workers", "3"]) == SOLVED_OR_FINISHED
    assert capsys.readouterr().out == PPOConfig(num_workers=3).graph().explain() + "\n"
    assert main(["graph", "ppo", "--mermaid"]) == SOLVED_OR_FINISHED
    assert capsys.readouterr().out.startswith("flowchart")
    assert main(["graph", "ppo", "--svg", str(tmp_path / "ppo.svg")]) == SOLVED_OR_FINISHED
    assert (tmp_path / "ppo.svg").read_text() == PPOConfig().graph().to_svg()


def test_graph_options_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "ppo", "--mermaid", "--svg", "x.svg"]) == BAD_USAGE
    assert "choose one of --mermaid and --svg" in capsys.readouterr().err
    assert main(["graph", "ppo", "--svg", str(tmp_path / "no" / "x.svg")]) == BAD_USAGE
    assert "cannot be written" in capsys.readouterr().err
    assert parse(PPOConfig, GraphOptions, ["--mermaid"], "", "")[1].mermaid is True


# bad usage: one line, exit code 2


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ("", "which command? There are: train, resume, eval, graph, list"),
        ("trian ppo", "unknown command 'trian'; did you mean 'train'?"),
        ("list ppo", "list takes no arguments, got ppo"),
        ("train", "train needs an algorithm before its flags; there are: a2c, a3c, apex, appo, ddpg, ddppo, dqn"),
        ("train --env CartPole-v1", "train needs an algorithm before its flags; there are: a2c, a3c, apex, appo"),
        ("train pop --total-steps 9", "unknown algorithm 'pop'; did you mean 'ppo'?"),
        ("train ppo", "training would never end: give --stop-return RETURN (till solved) or --total-steps N"),
        ("train ppo --total-steps 0", "--total-steps must be at least 1, got 0"),
        ("train ppo --total-steps 9 --seed -1", "--seed must be at least 0, got -1"),
        ("train ppo --total-steps 9 --env CartPole-v7", "did you mean 'CartPole-v1'"),
        ("train ppo --total-steps 9 --env CratPole-v1", "did you mean 'CartPole-v1'"),
        ("train ppo --total-steps 9 --env tests.rl.counting_envs:Wordy", "is Text("),
        ("train ppo --total-steps 9 --env nowhere.envs:Maze", "No module named 'nowhere'"),
        ("train ppo --total-steps 9 --env tests.rl.counting_envs:Maze", "has no factory 'Maze'"),
        ("train ppo --total-steps 9 --env-kwargs depth=3", "unexpected keyword argument 'depth'"),
        ("train ppo --total-steps 9 --backend local --minibatch 0", "minibatch"),
        ("train ppo --total-steps 9 --backend local --num-workers 0", "num_workers must be at least 1, got 0"),
        ("train ppo --total-steps 9 --learning-rate nan", "learning_rate must be above 0 and finite, got nan"),
        ("train ppo --total-steps 9 --discount 1.5", "discount must be at most 1, got 1.5"),
        ("train ppo --stop-return nan", "--stop-return must be a finite number, got nan"),
        ("train ppo --total-steps 9 --out README.md/x", "README.md/x cannot be written (Not a directory)"),
        ("train ppo --total-steps 9 --out /proc/x", "--out: /proc/x cannot be written"),
        ("train ppo --total-steps 9 --checkpoint-every 9", "--checkpoint-every needs --out DIR, or --checkpoint-dir"),
        (
            "train ppo --total-steps 9 --out x --checkpoint-every 9pc",
            "a time such as '90s', '10min' or '2h', got '9pc'",
        ),
    ],
)
def test_bad_usage_is_one_line(args: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args.split()) == BAD_USAGE
    said = capsys.readouterr()
    assert problem in said.err
    assert said.err.startswith("flowrl: ")
    assert "Traceback" not in said.err
    assert said.err.count("\n") == 1 or not args
    assert said.out == ""


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ("--enf CartPole-v1", "--env"),
        ("--num-workers two", "--num-workers"),
        ("--policy.hidden 0", "hidden widths must be at least 1, got (0,)"),
        ("--env-kwargs depth", "expected a JSON object or key=value, got 'depth'"),
        ("--backend dask", "dask"),
    ],
)
def test_a_wrong_flag_is_refused_by_name(args: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *args.split()]) == BAD_USAGE
    said = capsys.readouterr()
    assert problem in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("name", ["metrics.jsonl", "policy"])
def test_records_of_another_run_are_not_touched(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("precious")
    assert main(["train", "ppo", *LOCAL, "--total-steps", "9", "--out", str(tmp_path)]) == BAD_USAGE
    assert f"{tmp_path} holds {name} of another run; choose another directory" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "precious"


# training


def test_out_of_steps_without_a_goal_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *LOCAL, "--total-steps", "200", "--out", str(tmp_path)]) == SOLVED_OR_FINISHED
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0] == "seed 0; in this process"
    assert "ReportMetrics" in lines[1]
    assert any(line.startswith("steps ") and "return 6.0" in line and "kl " in line for line in lines)
    assert any(line.startswith("learner: 1 actor(s), busy") for line in lines)
    assert lines[-2] == f"policy: {tmp_path / 'policy'}"
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1].startswith("finished: mean return 6.0 over the last ")
    assert f"; {records[-1]['env_steps']} steps in " in lines[-1]
    assert flowrl.load_policy(tmp_path).act([0.0, 0.0]) in (0, 1)


def test_solved_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *LOCAL, "--stop-return", "6"]) == SOLVED_OR_FINISHED
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("solved: mean return 6.0 over the last 100 episodes, confirmed by 20 greedy episodes: 6.0; ")
    assert last.endswith(" steps/s)")


def test_a_limit_before_the_goal_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *LOCAL, "--stop-return", "7", "--total-steps", "100"]) == NOT_REACHED
    assert "not solved: mean return 6.0 over the last" in capsys.readouterr().out
    capsys.readouterr()


def test_an_exception_of_the_environment_is_a_traceback_with_its_note(capsys: pytest.CaptureFixture[str]) -> None:
    env = ["--env", "tests.rl.counting_envs:Faulty", "--env-kwargs", "at=2", "--backend", "local"]
    assert main(["train", "ppo", *env, "--total-steps", "100"]) == FAILED
    said = capsys.readouterr().err
    assert "TwoArgumentsError: ('the arm is stuck', 2)" in said
    assert "in worker 0 of 2, environment 'tests.rl.counting_envs:Faulty'" in said
    assert "counting_envs.py" in said


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            "dqn --env Pendulum-v1",
            "(PolicySpec(head='q') has a value an action; or use SAC or PPO); supported are Discrete. ",
        ),
        ("td3 --env CartPole-v1", "is for Box actions; or use DQN, SAC or PPO); supported are Box of floats. "),
    ],
)
def test_actions_of_another_algorithm_are_one_line(args: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *args.split(), "--backend", "local", "--total-steps", "9"]) == BAD_USAGE
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1


def test_an_environment_that_cannot_be_made_fails_before_any_actor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--env", "tests.rl.counting_envs:broken_constructor", "--total-steps", "9"]) == FAILED
    said = capsys.readouterr()
    assert said.out == ""
    assert "in the constructor of environment 0" in said.err
    assert "TwoArgumentsError: ('no licence', 0)" in said.err


def test_an_interrupt_closes_the_run_and_says_what_was_reached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Any] = []

    class Impatient(console.Lines):
        def show(self, progress: Any) -> None:
            super().show(progress)
            runs.append(progress.run)
            if len(runs) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(console, "watcher", Impatient)
    assert main(["train", "ppo", *LOCAL, "--total-steps", "100000"]) == INTERRUPTED
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("interrupted: ")
    assert "mean return 6.0 over the last " in last
    assert repr(runs[-1]).startswith("Run(closed")


def test_the_seed_that_was_drawn_is_said_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [*COUNTING, "--backend", "local", "--total-steps", "9"]
    assert main(["train", "ppo", *args, "--out", str(tmp_path)]) == SOLVED_OR_FINISHED
    settings = json.loads((tmp_path / "run.json").read_text())
    assert capsys.readouterr().out.startswith(f"seed {settings['seed']}; in this process\n")
    assert (settings["config"]["unroll"], settings["total_steps"]) == (12, 9)


def test_an_interrupt_before_the_first_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(config: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "check_env", interrupted)
    assert main(["train", "ppo", *LOCAL, "--total-steps", "9"]) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted before the first result\n"


def test_ctrl_c_saves_the_policy_and_ends_the_program(tmp_path: Path) -> None:
    """The real signal, in a real process: exit code 130, the last line says what was reached."""
    goal = ["--total-steps", "100000000", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "flowrl.cli", "train", "ppo", *LOCAL, *goal]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("steps "):
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == INTERRUPTED, err
    policy, last = out.splitlines()[-2:]
    assert policy == f"policy: {tmp_path / 'policy'}"
    newest = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last.startswith(f"interrupted: {newest['env_steps']:,} steps in ")
    assert "Traceback" not in err
    assert flowrl.load_policy(tmp_path).act([0.0, 0.0]) in (0, 1)


def test_a_closed_output_is_no_error(tmp_path: Path) -> None:
    args = " ".join([*LOCAL, "--total-steps", "9", "--out", str(tmp_path / "run")])
    command = f"{sys.executable} -m flowrl.cli train ppo {args} <&- >&-"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (SOLVED_OR_FINISHED, "")
    assert (tmp_path / "run" / "policy").is_dir()


def test_nobody_reading_on_is_no_error() -> None:
    command = f"{sys.executable} -m flowrl.cli list | true"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_device_is_one_line(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flowrl.cli", "list"], env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=100,
        )  # fmt: skip
    assert done.stderr == "flowrl: stdout cannot be written: No space left on device\n"
    assert done.returncode == FAILED


def test_on_ray_it_is_the_same_command(ray_session: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [*COUNTING, "--seed", "0", "--total-steps", "200"]
    assert main(["train", "ppo", *args, "--out", str(tmp_path / "ray")]) == SOLVED_OR_FINISHED
    said = capsys.readouterr().out
    assert said.startswith("seed 0; starting Ray…\n")
    assert "finished: mean return 6.0" in said
    assert main(["train", "ppo", *args, "--backend", "local", "--out", str(tmp_path / "local")]) == SOLVED_OR_FINISHED
    weights = [flowrl.load_policy(tmp_path / backend).get_weights() for backend in ("ray", "local")]
    assert (weights[0] == weights[1]).all()


# what is shown


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def progress(iteration: int, **learner: float) -> Any:
    """What an observer is shown."""
    stats = SimpleNamespace(
        groups={"workers": SimpleNamespace(count=2), "learner": SimpleNamespace(count=1)},
        utilization={"workers": 0.25, "learner": 0.5}.__getitem__,
        driver_busy_s=0.1,
        elapsed_s=10.0,
        verdict="the groups take turns",
    )
    run = SimpleNamespace(stats=lambda: stats)
    return SimpleNamespace(summary=summary(iteration, {"default": learner}), run=run)


def test_a_line_a_second_at_most_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(console, "monotonic", clock)
    lines = console.watcher(out)
    for iteration, clock.seconds in enumerate((0.0, 0.4, 0.9, 1.0, 1.5, 2.1, 2.2), 1):
        lines.show(progress(iteration, kl=0.01234, entropy=0.5, policy_loss=-0.1, gradient=3.0))
    lines.close()
    lines.close()
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["10", "40", "60", "70"]
    assert out.getvalue().splitlines()[0] == (
        "steps 10  steps/s 20  return 2.5  length 2.5  policy_loss -0.1  kl 0.0123  entropy 0.5"
    )


def test_several_policies_are_named() -> None:
    both = summary(1, {"red": {"kl": 0.1}, "blue": {"loss": 2.0}})
    assert console.figures(both)[4:] == [("red/kl", "0.1"), ("blue/loss", "2")]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_table_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    clock, out = Clock(), Terminal()
    monkeypatch.setattr(console, "monotonic", clock)
    table = console.watcher(out)
    assert isinstance(table, console.LiveTable)
    for iteration, clock.seconds in enumerate((0.0, 0.05, 0.09), 1):
        table.show(progress(iteration, kl=0.5))
    assert out.getvalue().count("workers (2)") == 1  # the others came too soon
    table.close()
    assert out.getvalue().count("workers (2)") == 2
    final = out.getvalue().rpartition("0.5 s")[2]
    for words in ("30", "kl", "busy 25%", "busy 50%", "busy 1%", "the groups take turns"):
        assert words in final


@pytest.mark.parametrize(
    ("reason", "goal", "judged", "sentence"),
    [
        ("solved", 2.0, 3.0, "solved: mean return 2.5 over the last 3 episodes, confirmed by 2 greedy episodes: 3.0; "),
        ("total_steps", None, None, "finished: mean return 2.5 over the last 3 episodes; "),
        ("end", None, None, "finished: mean return 2.5 over the last 3 episodes; "),
        ("total_steps", 4.0, None, "not solved: mean return 2.5 over the last 3 episodes, 4 was to be reached; "),
        (
            "total_steps",
            2.0,
            1.0,
            "not solved: mean return 2.5 over the last 3 episodes, but 2 greedy episodes gave 1.0; ",
        ),
    ],
)
def test_how_it_stopped(reason: str, goal: float | None, judged: float | None, sentence: str) -> None:
    evaluation = None if judged is None else Evaluation((judged, judged), (1, 1))
    result: Any = SimpleNamespace(history=[summary(3, {})], reason=reason, evaluation=evaluation)
    assert console.how_it_stopped(result, goal) == sentence + "30 steps in 0.5 s (60 steps/s)"


def test_a_player_that_has_met_nobody_else_has_no_return() -> None:
    nobody = replace(summary(3, {}), episode_return_mean=float("nan"))
    result: Any = SimpleNamespace(history=[nobody], reason="end", evaluation=None)
    assert console.how_it_stopped(result, None).startswith("finished: 3 episodes, of which none has a return; 30 steps")


def test_a_flow_without_a_summary_is_said_so() -> None:
    result: Any = SimpleNamespace(history=[], reason="end", evaluation=None)
    assert console.how_it_stopped(result, None) == "finished: the flow gave no summary"


def test_the_script_is_installed_under_its_name() -> None:
    script = Path(sys.executable).with_name("flowrl")
    if not script.exists():
        pytest.skip("flowrl is not installed in this environment, only on its path")
    done = subprocess.run([script, "nope"], capture_output=True, text=True, check=False, timeout=60, env={**os.environ})
    assert done.returncode == BAD_USAGE
    assert done.stderr.startswith("flowrl: unknown command 'nope'")


@pytest.mark.parametrize(
    ("word", "policy"),
    [("raise", Raise()), ("restart", Restart()), ("restart:5", Restart(5)), ("restart:5:0.5", Restart(5, 0.5))],
)
def test_what_a_fault_means_is_one_word(word: str, policy: Raise | Restart) -> None:
    config, _ = parse(PPOConfig, GraphOptions, ["--env-options.on-fault", word], "flowrl", "")
    assert config.env_options.on_fault == policy


@pytest.mark.parametrize("word", ["ignore", "restart:0", "restart:x", "raise:3", "restart:1:2:3"])
def test_another_word_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", "ppo", "--env-options.on-fault", word]) == 2
    assert word in capsys.readouterr().err
