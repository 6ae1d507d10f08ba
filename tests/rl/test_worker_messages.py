"""Messages to one worker while its run goes on: exploration, a curriculum, another policy, a look at its state."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local, actors
from flowrl.operators import ParallelRollouts
from flowrl.rl import EnvOptions, MultiAgentWorker, PolicySpec, RolloutWorker
from flowrl.rl.cartpoles import MultiAgentCartPole

SMALL = PolicySpec(hidden=(4,))
LONG_S = 60


def harder(env: Any, length: float) -> float:
    """What a curriculum changes: a longer pole."""
    env.length = length
    return float(env.length)


def test_one_worker_is_messaged_while_the_run_goes_on() -> None:
    workers = actors(
        RolloutWorker, "CartPole-v1", SMALL, steps=8, num_envs=2, env_options=EnvOptions(vector="sync"), count=2,
        name="workers",
    )  # fmt: skip
    with flowrl.run(ParallelRollouts(workers).gather_async(), Local(), seed=0) as run:
        handle = run.background()
        one, other = run.actors["workers"][1], run.actors["workers"][0]
        one.ask("set_epsilon", 0.3).result(LONG_S)
        assert one.ask("each_env", partial(harder, length=0.7)).result(LONG_S) == [0.7, 0.7]
        one.ask("set_policy", PolicySpec(hidden=(3, 3)), version=7).result(LONG_S)
        handle.wait(handle.count + 8, LONG_S)
        mine, theirs = (worker.ask("get_state").result(LONG_S) for worker in (one, other))
        assert other.ask(lambda worker: worker.each_env(lambda env: env.length)).result(LONG_S) == [0.5, 0.5]
        handle.stop(LONG_S)
    assert (mine["epsilon"], theirs["epsilon"]) == (0.3, 0.0)
    assert (mine["version"], theirs["version"]) == (7, 0)
    assert len(mine["weights"]) != len(theirs["weights"])


def test_one_policy_of_several_is_swapped_in_mid_run() -> None:
    workers = actors(
        MultiAgentWorker, MultiAgentCartPole, {"a": SMALL, "b": SMALL},
        lambda agent, episode: "a" if agent == "agent_0" else "b", steps=8, count=2, name="workers",
    )  # fmt: skip
    with flowrl.run(ParallelRollouts(workers).gather_async(), Local(), seed=0) as run:
        handle = run.background()
        one, other = run.actors["workers"]
        flat = one.ask("get_state").result(LONG_S)["policies"]["b"]["weights"]
        one.ask("set_policy", SMALL, 0 * flat, 5, policy="b").result(LONG_S)
        one.ask("set_epsilon", 0.3, policy="a").result(LONG_S)
        assert len(one.ask("each_env", lambda env: env.possible_agents).result(LONG_S)[0]) == 4
        handle.wait(handle.count + 8, LONG_S)
        mine, theirs = (worker.ask("get_state").result(LONG_S)["policies"] for worker in (one, other))
        handle.stop(LONG_S)
    np.testing.assert_array_equal(mine["b"]["weights"], 0 * flat)
    assert (mine["b"]["version"], mine["a"]["epsilon"], theirs["a"]["epsilon"]) == (5, 0.3, 0.0)
    assert theirs["b"]["weights"].any()


def test_each_env_finds_those_of_both_halves_and_refuses_what_is_elsewhere() -> None:
    halved = RolloutWorker("CartPole-v1", SMALL, num_envs=3, env_options=EnvOptions(vector="sync", double_buffer=True))
    assert len(halved.each_env(lambda env: env.length)) == 3
    halved.close()
    together = RolloutWorker("CartPole-v1", SMALL, num_envs=2)  # one vector, which is faster
    with pytest.raises(TypeError, match=r"environment 'CartPole-v1' is not one by one .* EnvOptions\(vector="):
        together.each_env(lambda env: env.length)
    together.close()
