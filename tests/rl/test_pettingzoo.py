"""PettingZoo's own checks of the environments that are used with it, and what workers make of those."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.rl import MultiAgentWorker, PolicySpec
from flowrl.rl.cartpoles import MultiAgentCartPole, MultiAgentPendulum

pytest.importorskip("pettingzoo")
SMALL = PolicySpec(hidden=(8,))


def as_pettingzoo(kind: type[MultiAgentCartPole]) -> Any:
    """The same environment as a subclass of PettingZoo's own."""
    from pettingzoo import ParallelEnv

    return type(kind.__name__, (kind, ParallelEnv), {"metadata": {"name": kind.__name__}})


@pytest.mark.parametrize("kind", [MultiAgentCartPole, MultiAgentPendulum])
def test_several_poles_pass_the_check_of_parallel_environments(kind: type[MultiAgentCartPole]) -> None:
    from pettingzoo.test import parallel_api_test

    env = as_pettingzoo(kind)(agents=3)
    parallel_api_test(env, num_cycles=60)
    env.close()


def test_several_poles_pass_the_check_of_seeds() -> None:
    from pettingzoo.test.seed_test import parallel_seed_test

    parallel_seed_test(lambda: as_pettingzoo(MultiAgentCartPole)(agents=2), num_cycles=20)


def test_simple_spread_passes_the_checks_and_is_collected_as_both_kinds() -> None:
    simple_spread_v3 = pytest.importorskip("mpe2.simple_spread_v3")
    from pettingzoo.test import api_test, parallel_api_test

    parallel_api_test(simple_spread_v3.parallel_env(N=3, max_cycles=25), num_cycles=60)
    api_test(simple_spread_v3.env(N=3, max_cycles=25), num_cycles=60)
    kwargs = {"N": 3, "max_cycles": 10}
    together = MultiAgentWorker("mpe2.simple_spread_v3", {"p": SMALL}, steps=20, env_kwargs=kwargs, joint=True, seed=0)
    batch = together.sample().payload
    assert (batch.env_steps, batch.agent_steps) == (20, 60)
    assert batch["p"]["obs"].shape[-1] == 18
    by_turns = MultiAgentWorker(simple_spread_v3.env, {"p": SMALL}, steps=60, env_kwargs=kwargs, seed=0)
    answer = by_turns.sample()
    assert answer.metrics["episode_length"].values == (30, 30)
    assert all(value < 0 for value in answer.metrics["episode_return"].values)
    assert np.isfinite(answer.payload["p"]["rewards"]).all()
