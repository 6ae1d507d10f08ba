"""Every supported observation space with every supported action space: PPO's graph, two iterations on Local."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

import flowrl
from flowrl import Local
from flowrl.algorithms import PPOConfig
from flowrl.rl.policy import Policy
from flowrl.rl.spaces import UnsupportedSpace, num_params
from flowrl.rl.spec import PolicySpec, Spaces
from tests.rl.sampled_env import Sampled

VECTOR = gym_spaces.Box(-np.inf, np.inf, (3,), np.float64)
IMAGE = gym_spaces.Box(0, 255, (8, 8, 3), np.uint8)
NESTED = gym_spaces.Dict(
    arm=gym_spaces.Dict(joints=gym_spaces.Box(-1, 1, (2, 2)), grip=gym_spaces.Discrete(3, start=1)),
    camera=IMAGE,
    rest=gym_spaces.Tuple([gym_spaces.MultiBinary(2), gym_spaces.MultiDiscrete([2, 3])]),
)
OBSERVATIONS: dict[str, gym_spaces.Space[Any]] = {
    "scalar": gym_spaces.Box(0, 1, ()),
    "vector": VECTOR,
    "matrix of integers": gym_spaces.Box(0, 9, (2, 3), np.int64),
    "bits in a box": gym_spaces.Box(0, 1, (4,), np.bool_),
    "image": IMAGE,
    "bool image, channels first": gym_spaces.Box(0, 1, (4, 10, 10), np.bool_),
    "discrete": gym_spaces.Discrete(4, start=-2),
    "multi-discrete": gym_spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "multi-binary": gym_spaces.MultiBinary((2, 2)),
    "tuple": gym_spaces.Tuple([VECTOR, gym_spaces.Discrete(2)]),
    "nested": NESTED,
}
ACTIONS: dict[str, gym_spaces.Space[Any]] = {
    "discrete": gym_spaces.Discrete(3, start=5),
    "multi-discrete": gym_spaces.MultiDiscrete([2, 4, 3], start=[0, 2, -1]),
    "matrix of choices": gym_spaces.MultiDiscrete([[2, 3], [3, 2]]),
    "multi-binary": gym_spaces.MultiBinary((2, 2)),
    "box": gym_spaces.Box(-2, 2, (2,)),
    "scalar box": gym_spaces.Box(-1, 1, (), np.float64),
    "unbounded box": gym_spaces.Box(-np.inf, np.inf, (2, 1), np.float64),
}
SMALL = PolicySpec(hidden=(8,), image_features=8)


def config(observation: Any, action: Any, spec: PolicySpec = SMALL, **env: Any) -> PPOConfig:
    """The smallest PPO."""
    return PPOConfig(
        env=functools.partial(Sampled, observation, action, **env), policy=spec, num_workers=1, envs_per_worker=2,
        unroll=8, batch_steps=8, epochs=1, minibatch=8, entropy_cost=0.01,
    )  # fmt: skip


def train(cfg: PPOConfig) -> Policy:
    """The policy after two iterations, which must have changed it and kept it finite."""
    with flowrl.run(cfg.graph(), Local(), seed=0) as run:
        first = run.policy().get_weights()
        for _ in range(2):
            summary = next(run)
            assert all(math.isfinite(value) for value in summary.learner["default"].values())
            assert summary.env_steps > 0
        policy = run.policy()
        evaluation = run.evaluate(2)
    assert evaluation.lengths == (5, 5)
    assert not np.array_equal(policy.get_weights(), first)
    return policy


def check_acts(policy: Policy, spaces: Spaces) -> None:
    """Single observations give actions of the space, batches as many."""
    obs = spaces.observation.sample()
    for deterministic in (True, False):
        assert spaces.action.contains(policy.act(obs, deterministic=deterministic))


@pytest.mark.parametrize(("observation", "action"), list(itertools.product(OBSERVATIONS, ACTIONS)))
def test_two_iterations_of_ppo(observation: str, action: str) -> None:
    spaces = Spaces(OBSERVATIONS[observation], ACTIONS[action])
    check_acts(train(config(spaces.observation, spaces.action)), spaces)


@pytest.mark.parametrize("recurrent", ["lstm", "gru"])
@pytest.mark.parametrize("action", ["multi-discrete", "box"])
@pytest.mark.parametrize("observation", ["vector", "nested"])
def test_policies_with_memory(observation: str, action: str, recurrent: Any) -> None:
    spec = PolicySpec(hidden=(8,), image_features=8, recurrent=recurrent, recurrent_size=4, normalize_obs=True)
    spaces = Spaces(OBSERVATIONS[observation], ACTIONS[action])
    policy = train(config(spaces.observation, spaces.action, spec))
    act, state = policy.act(spaces.observation.sample())
    assert spaces.action.contains(act)
    act, after = policy.act(spaces.observation.sample(), state=state)
    assert {name: h.shape for name, h in after.items()} == {name: (4,) for name in policy.state_shapes}
    assert any((after[name] != h).any() for name, h in state.items())


@pytest.mark.parametrize("observation", ["vector", "matrix of integers", "image", "nested", "tuple"])
@pytest.mark.parametrize("action", ["box", "discrete"])
def test_squashed_actions_and_normalized_observations(observation: str, action: str) -> None:
    spec = PolicySpec(hidden=(8,), image_features=8, squash=action == "box", normalize_obs=True)
    spaces = Spaces(OBSERVATIONS[observation], ACTIONS[action])
    policy = train(config(spaces.observation, spaces.action, spec))
    check_acts(policy, spaces)
    assert (policy.statistics is None) == (observation == "image")
    assert policy.statistics is None or (policy.statistics.var != 1).all()


@pytest.mark.parametrize("masks", ["obs", "info"])
@pytest.mark.parametrize("action", ["discrete", "multi-discrete", "matrix of choices"])
@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_masked_actions(action: str, masks: str, recurrent: Any) -> None:
    space = ACTIONS[action]
    parts = {"seen": VECTOR, "action_mask": gym_spaces.MultiBinary(num_params(space))}
    observation = gym_spaces.Dict(parts) if masks == "obs" else VECTOR
    spec = PolicySpec(hidden=(8,), recurrent=recurrent)
    train(config(observation, space, spec, masks=masks))  # the environment refuses an invalid action


class Own(torch.nn.Module):
    """A user's own module for any space: a sum of everything seen, times its weights."""

    def __init__(self, observation: Any, action: Any):
        super().__init__()
        self.head = torch.nn.Linear(1, num_params(action) + 1)

    def forward(self, obs: torch.Tensor | dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        parts = obs.values() if isinstance(obs, dict) else [obs]
        total = torch.stack([part.float().flatten(1).sum(1) if part.dim() > 1 else part.float() for part in parts])
        out = self.head(torch.tanh(total.sum(0)).unsqueeze(-1))
        return out[:, :-1], out[:, -1]


@pytest.mark.parametrize("observation", ["vector", "discrete", "nested"])
@pytest.mark.parametrize("action", list(ACTIONS))
def test_a_module_of_the_users_own(observation: str, action: str) -> None:
    spaces = Spaces(OBSERVATIONS[observation], ACTIONS[action])
    check_acts(train(config(spaces.observation, spaces.action, PolicySpec(model=Own))), spaces)


@pytest.mark.parametrize(
    ("observation", "action", "said"),
    [
        (gym_spaces.Text(5), ACTIONS["box"], r"the observation space of environment .*Sampled.* is Text"),
        (gym_spaces.Sequence(VECTOR), ACTIONS["box"], r"is Sequence\(.*not supported"),
        (gym_spaces.Graph(VECTOR, None), ACTIONS["box"], r"is Graph\(.*not supported"),
        (gym_spaces.Dict(a=VECTOR, b=gym_spaces.Text(2)), ACTIONS["box"], r"at 'b' is Text.*not supported"),
        (VECTOR, gym_spaces.Dict(a=ACTIONS["box"]), r"the action space of environment .* is Dict\(.*not supported"),
        (VECTOR, gym_spaces.Text(5), r"the action space of environment .* is Text.*not supported"),
        (VECTOR, gym_spaces.Box(0, 9, (2,), np.int64), r"a Box of integers is a MultiDiscrete"),
    ],
)
def test_refused_when_it_starts(observation: Any, action: Any, said: str) -> None:
    with (
        pytest.raises(UnsupportedSpace, match=said),
        flowrl.run(config(observation, action).graph(), Local(), seed=0) as run,
    ):
        next(run)
