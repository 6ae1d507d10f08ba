"""PPO end to end: the same numbers on both backends, few messages, every way to name an environment, and it learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Sequence, Text

import flowrl
from flowrl import Local, Ray, run
from flowrl.algorithms import PPOConfig
from flowrl.rl import EnvContext
from flowrl.rl.spaces import UnsupportedSpace
from tests.rl.counting_envs import Counting, Faulty

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Any:
    """Each backend in turn."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return Ray() if request.param == "ray" else Local()


def small(env: Any = "CartPole-v1", **settings: Any) -> PPOConfig:
    """PPO in miniature: about 40 steps an iteration."""
    given = {"envs_per_worker": 2, "unroll": 16, "batch_steps": 40, "epochs": 2, "minibatch": 16}
    return PPOConfig(env=env, **{**given, **settings})


def live_actors() -> int:
    """Actors of Ray that have not ended."""
    import ray

    return sum(actor["State"] not in ("DEAD",) for actor in ray._private.state.actors().values())


def three_iterations(backend: Any) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Every figure of three iterations but times, and the weights after them."""
    with run(PPOConfig(unroll=64, batch_steps=900).graph(), backend, seed=11) as running:
        figures = [summary.as_dict() for summary in running.step(3)]
        weights = running.policy_state()["weights"]
    for summary in figures:
        del summary["time_s"], summary["env_steps_per_s"]
    return figures, weights


def test_three_iterations_are_the_same_bit_for_bit(ray_session: None) -> None:
    local, ray = three_iterations(Local()), three_iterations(Ray())
    np.testing.assert_equal(ray[0], local[0])
    assert ray[1].tobytes() == local[1].tobytes()
    assert local[0][2]["trained_steps"] == PPOConfig().epochs * local[0][2]["env_steps"]
    assert local[0][2]["episodes"] > 0


def test_a_round_is_a_message_a_worker_and_one_for_the_learner(backend: Any) -> None:
    with run(PPOConfig(num_workers=3, unroll=16, batch_steps=300).graph(), backend, seed=0) as running:
        before = [running.step(2), running.stats()][1]
        rounds = [running.step(4), running.stats()][1]
    sent = {name: node.messages - before.nodes[name].messages for name, node in rounds.nodes.items()}
    assert {name: n for name, n in sent.items() if n} == {"gather_sync": 12, "TrainOneStep": 4}
    assert rounds.groups["learner"].calls - before.groups["learner"].calls == 4


def test_policy_and_evaluation_are_at_hand_while_it_runs(backend: Any) -> None:
    with run(small().graph(), backend, seed=0) as running:
        first = running.step(1)[0]
        policy, judged = running.policy(), running.evaluate(4)
        assert policy.act(np.zeros(4, np.float32), deterministic=True) in (0, 1)
        assert judged.episodes == 4
        assert judged.mean == sum(judged.returns) / 4 >= 8  # what pushing one way only reaches
        assert running.step(1)[0].env_steps > first.env_steps
        later = running.policy()
        assert (later.get_weights() != policy.get_weights()).any()
        assert later.spec == policy.spec


def test_looking_changes_nothing(backend: Any) -> None:
    weights = []
    for look in (False, True):
        with run(small().graph(), backend, seed=4) as running:
            for _ in range(3):
                running.step(1)
                if look:
                    running.evaluate(2)
                    running.policy().act(np.zeros(4, np.float32))
                    running.stats()
            weights.append(running.policy_state()["weights"])
    np.testing.assert_array_equal(*weights)


def test_the_config_is_the_graph() -> None:
    text = PPOConfig(num_workers=5, minibatch=99).graph().explain()
    assert "5 × RolloutWorker" in text
    assert "minibatch=99" in text
    assert "deterministic" in text


@pytest.mark.parametrize(
    "setting",
    [
        "clip",
        "learning_rate",
        "max_grad_norm",
        "unroll",
        "envs_per_worker",
        "num_workers",
        "epochs",
        "value_cost",
        "gae_lambda",
    ],
)
def test_a_number_out_of_range_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting} must be .*, got -1$"):
        small(**{setting: -1})


# environments


def counting(lengths: tuple[int, ...] = (3,)) -> gymnasium.Env[Any, int]:
    """A factory with a keyword."""
    return Counting(lengths)


def indexed(ctx: EnvContext, base: int) -> gymnasium.Env[Any, int]:
    """Episodes whose length says which environment of which worker this is."""
    return Counting((base + 2 * ctx.worker_index + ctx.env_index,))


def closure() -> Callable[[], gymnasium.Env[Any, int]]:
    """A factory that remembers."""
    lengths = (4,)
    return lambda: Counting(lengths)


@pytest.mark.parametrize(
    ("env", "kwargs", "lengths"),
    [
        (lambda: Counting((2,)), None, {2.0}),
        (closure(), None, {4.0}),
        (counting, {"lengths": (5,)}, {5.0}),
        (Counting, None, {3.0}),
        ("tests.rl.counting_envs:Counting", {"lengths": (6,)}, {6.0}),
        (indexed, {"base": 3}, {3.0, 4.0, 5.0, 6.0}),
    ],
    ids=["lambda", "closure", "factory", "class", "path", "context"],
)
def test_an_environment_may_be_given_as(env: Any, kwargs: Any, lengths: set[float], backend: Any) -> None:
    workers = 2 if len(lengths) > 1 else 1  # a process each
    with run(small(env, env_kwargs=kwargs, num_workers=workers).graph(), backend, seed=0) as running:
        summary = running.step(3)[-1]
    assert min(lengths) <= summary.episode_length_mean <= max(lengths)
    assert summary.episodes > 0
    if len(lengths) == 1:
        assert summary.episode_length_mean == next(iter(lengths))
    else:
        assert summary.episode_length_mean not in lengths  # a mixture of all of them


NOTEBOOK = """
import gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete
import flowrl
from flowrl.algorithms import PPOConfig

class Local(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.left -= 1
        return np.zeros(2, np.float32), 2.0, self.left == 0, False, {}

assert Local.__module__ == "__main__"
config = PPOConfig(env=Local, envs_per_worker=2, unroll=16, batch_steps=40, epochs=1)
result = flowrl.train(config, total_steps=100, seed=0)
print(result.history[-1].episode_return_mean, result.reason)
"""


@pytest.mark.ray
def test_a_class_of_a_notebook_reaches_the_actors() -> None:
    """As in a notebook, the class lives in a __main__ that has no file; the default backend starts its own Ray."""
    done = subprocess.run(
        [sys.executable, "-"], input=NOTEBOOK, cwd=ROOT, env={**os.environ, "RAY_ADDRESS": "local"},
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "10.0 total_steps"


class Odd(Counting):
    """Counting with other spaces."""

    def __init__(self, **spaces: Any):
        super().__init__()
        self.__dict__.update(spaces)


SHAPES = {
    "the action space of environment <lambda> is Text(": lambda: Odd(action_space=Text(3)),
    "the observation space of environment <lambda> is Sequence(": lambda: Odd(observation_space=Sequence(Discrete(2))),
    "the observation space of environment <lambda> is Box([], [], (0,), int8)": lambda: Odd(
        observation_space=Box(0, 1, (0,), np.int8)
    ),
}


@pytest.mark.parametrize("problem", SHAPES, ids=["text", "sequence", "empty"])
def test_an_unsupported_space_is_named(problem: str) -> None:
    with pytest.raises(UnsupportedSpace) as caught:
        run(small(SHAPES[problem]).graph(), Local())
    assert problem in str(caught.value)
    assert "Wrap the environment in an" in str(caught.value)


def test_an_unsupported_space_leaves_nothing_running(ray_session: None) -> None:
    with pytest.raises(UnsupportedSpace, match=r"the action space of environment .*Wordy.* is Text"):
        run(small("tests.rl.counting_envs:Wordy").graph(), Ray())
    assert live_actors() == 0


@pytest.mark.parametrize(
    ("backend", "what", "problem"),
    [
        ("local", "rewards", r"reward"),
        ("local", "obs", r"obs\[1\] = nan"),
        ("local", "huge", r"reward"),
        pytest.param("ray", "obs", r"obs\[1\] = nan", marks=pytest.mark.ray),
    ],
    indirect=["backend"],
)
def test_a_number_that_is_not_finite_stops_before_the_update(what: str, problem: str, backend: Any) -> None:
    updates: list[Any] = []
    flow = small(lambda: Faulty(2, what)).graph().tap(updates.append)
    with pytest.raises(FloatingPointError, match=problem) as caught, run(flow, backend, seed=0) as running:
        running.step(1)
    assert updates == []
    notes = "\n".join(caught.value.__notes__)
    assert re.search(r"in worker [01] of 2, environment .*<lambda> \(one of its 2\)", notes)
    assert "ParallelRollouts" in notes


# learning


def test_it_learns_cartpole() -> None:
    """150 within 30,000 steps from some 22 at first, in this process."""
    best = 0.0
    with run(PPOConfig().graph(), Local(), seed=1) as running:
        for summary in running:
            best = summary.episode_return_mean
            if best >= 150 or summary.env_steps >= 30_000:
                break
        judged = running.evaluate(10)
    assert best >= 150, f"{best} after {summary.env_steps} steps"
    assert judged.mean > 150


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_solves_cartpole_on_ray(ray_session: None) -> None:
    result = flowrl.train(PPOConfig(), stop_return=475, total_steps=300_000, backend=Ray(), seed=0)
    assert result.solved, result.history[-1]
    assert result.evaluation.mean >= 475
