"""Action masks: where they come from, what is refused, and that no invalid action is ever taken."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from flowrl.rl.actions import ActionLayout
from flowrl.rl.inference import NumpyInference
from flowrl.rl.initial import initial_weights
from flowrl.rl.masks import LEAST, checked_mask, masked
from flowrl.rl.policy import Policy
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.unroll import Unroll
from flowrl.rl.worker import RolloutWorker
from flowrl.rl.wrappers import EnvOptions
from tests.rl.sampled_env import Sampled

SEEN = gym_spaces.Box(-1, 1, (3,))
FIVE = gym_spaces.Discrete(5, start=2)
WITH_MASK = gym_spaces.Dict(seen=SEEN, action_mask=gym_spaces.MultiBinary(5))


def test_golden_masked_logits() -> None:
    logits = np.array([[1.0, 2.0, 3.0]], np.float32)
    got = masked(logits, np.array([[True, False, True]]))
    assert got.tolist() == [[1.0, LEAST, 3.0]]
    assert got.dtype == np.float32
    assert masked(logits, None) is logits


def test_masks_are_checked() -> None:
    layout = ActionLayout.of(gym_spaces.MultiDiscrete([2, 3]))
    good = np.array([[1, 0, 0, 1, 1], [1, 1, 0, 0, 1]], np.int8)
    assert checked_mask(good, layout, "'Maze-v0'", 2).tolist() == good.astype(bool).tolist()
    with pytest.raises(
        ValueError, match=r"environment 1 of 'Maze-v0' gave an action mask that allows none of the 3 ac"
    ):
        checked_mask(good * [1, 1, 1, 1, 0], layout, "'Maze-v0'", 2)
    with pytest.raises(ValueError, match="none of the 3 actions of choice 1"):
        checked_mask(good * [1, 1, 0, 0, 0], layout, "'Maze-v0'", 2)
    with pytest.raises(ValueError, match=r"action masks of dtype int8 and shape \(2, 4\); .* of shape \(2, 5\)"):
        checked_mask(good[:, :4], layout, "'Maze-v0'", 2)
    with pytest.raises(ValueError, match="which are for Discrete and MultiDiscrete actions"):
        checked_mask(good, ActionLayout.of(gym_spaces.MultiBinary(5)), "'Maze-v0'", 2)
    none = np.zeros((2, 5), np.int8)
    assert checked_mask(none, layout, "'Maze-v0'", 2, unused=np.array([True, True])).all()


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("masks", ["obs", "info"])
@pytest.mark.parametrize("vector", ["sync", "async"])
def test_the_worker_takes_valid_actions_only_and_stores_the_masks(autoreset: Any, masks: str, vector: Any) -> None:
    if vector == "async" and autoreset != "next_step":
        pytest.skip("one mode is enough in processes of their own")
    space = WITH_MASK if masks == "obs" else SEEN
    worker = RolloutWorker(
        functools.partial(Sampled, space, FIVE, masks=masks), steps=60, num_envs=3, seed=0,
        env_options=EnvOptions(vector=vector, autoreset=autoreset),
    )  # fmt: skip
    worker.set_epsilon(0.5)  # uniform actions are valid ones, too
    try:
        for _ in range(3):  # the environment refuses an invalid action
            batch = worker.sample().payload
            mask, valid = batch["action_mask"], batch.valid
            assert mask.shape == (60, 3, 5)
            assert mask.dtype == np.bool_
            assert mask[~valid].all()
            assert np.take_along_axis(mask, batch["actions"][..., None], -1)[valid].all()
            assert 0.3 < mask[valid].mean() < 0.6
            assert "obs/action_mask" not in batch
        spaces = worker.spaces()["default"]
        policy = Policy(PolicySpec(), spaces)
        policy.set_weights(worker.get_state()["weights"])
        out = policy.forward(batch)
        p = out.dist.logp(torch.tensor(batch["actions"])).detach().exp().numpy()
        mixed = np.log(0.5 * p + 0.5 / mask.sum(-1))
        np.testing.assert_allclose(batch["logp"], mixed, atol=1e-5)
        if masks == "obs":
            with pytest.raises(KeyError, match="hold an action mask, but the batch has no column 'action_mask'"):
                policy.forward(batch.without("action_mask"))
    finally:
        worker.close()


class Closed(Sampled):
    """From step 3 of an episode on its mask allows nothing, or is not given."""

    def __init__(self, observation: Any, what: str):
        super().__init__(observation, FIVE, length=9, masks="obs" if observation is WITH_MASK else "info")
        self.what = what

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.step_number >= 3:
            there = obs if self.masks == "obs" else info
            if self.what == "missing":
                del there["action_mask"]
            else:
                there["action_mask"] = np.zeros(5, np.int8)
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("space", [WITH_MASK, SEEN], ids=["obs", "info"])
def test_a_mask_that_allows_nothing_names_the_environment(space: Any) -> None:
    envs = iter([Sampled(space, FIVE, masks="obs" if space is WITH_MASK else "info"), Closed(space, "empty")])
    worker = RolloutWorker(lambda: next(envs), steps=9, num_envs=2, seed=0)
    with pytest.raises(
        ValueError, match=r"environment 1 of .* gave an action mask that allows none of the 5"
    ) as caught:
        worker.sample()
    assert any("after 2 vector steps" in note for note in caught.value.__notes__)


def test_a_mask_that_is_missing_names_the_environment() -> None:
    worker = RolloutWorker(functools.partial(Closed, SEEN, "missing"), steps=9, num_envs=2, seed=0)
    with pytest.raises(ValueError, match=r"environment 0 of .* gave info\['action_mask'\] at its reset but none with"):
        worker.sample()


def test_an_info_of_that_name_is_no_mask_where_actions_are_no_choices() -> None:
    class Told(gymnasium.Env[Any, Any]):
        observation_space, action_space = SEEN, gym_spaces.Box(-1, 1, (2,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return np.zeros(3, np.float32), {"action_mask": np.zeros(2)}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return np.zeros(3, np.float32), 0.0, False, False, {"action_mask": np.zeros(2)}

    assert "action_mask" not in RolloutWorker(Told, steps=3).sample().payload


@pytest.mark.parametrize("masks", ["obs", "info"])
def test_a_restored_worker_goes_on_with_the_same_masks(masks: str) -> None:
    space = WITH_MASK if masks == "obs" else SEEN
    make = functools.partial(Sampled, space, FIVE, masks=masks)
    worker, other = (RolloutWorker(make, steps=7, num_envs=2, seed=seed) for seed in (0, 9))
    worker.sample()
    other.set_state(worker.get_state())
    assert other.sample().payload == worker.sample().payload
    assert worker.evaluate(3, 1, deterministic=False).payload.episodes == 3


def test_the_policy_acts_by_the_mask_of_the_observation_or_the_one_given() -> None:
    mask = np.array([0, 0, 1, 0, 0], np.int8)
    policy = Policy(PolicySpec(), Spaces(WITH_MASK, FIVE), seed=0)
    obs = {"seen": np.zeros(3, np.float32), "action_mask": mask}
    assert {policy.act(obs, deterministic=how) for how in (True, False)} == {4}
    many = {"seen": np.zeros((50, 3), np.float32), "action_mask": np.stack([mask, 1 - mask] * 25)}
    actions = policy.act(many)
    assert set(actions[::2]) == {4}
    assert set(actions[1::2]) == {2, 3, 5, 6}
    plain = Policy(PolicySpec(), Spaces(SEEN, FIVE), seed=0)
    assert plain.act(np.zeros(3), action_mask=mask) == 4
    assert {plain.act(np.zeros(3), action_mask=1 - mask) for _ in range(60)} == {2, 3, 5, 6}


def test_no_invalid_action_in_350_000_steps_of_1_400_actions() -> None:
    spaces = Spaces(gym_spaces.Box(-1, 1, (2,)), gym_spaces.Discrete(1400))
    spec, rng = PolicySpec(hidden=()), np.random.default_rng(0)
    net = NumpyInference(spec, spaces)
    net.set_weights(initial_weights(spec, spaces, 0) * np.float32(1000))
    steps, envs = 50, 500
    for seed in range(14):
        unroll = Unroll(net, steps, envs, np.random.default_rng(seed))
        mask = rng.random((envs, 1400), np.float32) < 0.002
        mask[np.arange(envs), rng.integers(1400, size=envs)] = True
        obs = rng.normal(size=(steps + 1, envs, 2)).astype(np.float32)
        for t in range(steps):
            actions = unroll.act(t, obs[t], mask)
            assert mask[np.arange(envs), actions].all()
        logp = unroll.logp()
        assert np.isfinite(logp).all()
