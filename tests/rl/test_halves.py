"""Double-buffered sampling gives the transitions of plain sampling, and goes on after an environment's error."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from flowrl.rl import EnvOptions, InferenceServer, PolicySpec, RolloutWorker
from flowrl.rl.wrappers import Autoreset
from tests.rl.memory_envs import Recall
from tests.rl.test_q_worker import Masked

SMALL = {"hidden": (16, 8)}
CASES: dict[str, tuple[Any, PolicySpec, Autoreset]] = {
    "next step": ("CartPole-v1", PolicySpec(**SMALL), "next_step"),
    "memory, same step": (Recall, PolicySpec(recurrent="gru", recurrent_size=4, **SMALL), "same_step"),
    "masks, disabled": (lambda: Masked(inside=True), PolicySpec(head="q", **SMALL), "disabled"),
}


def worker(case: str, **kwargs: Any) -> RolloutWorker:
    env, spec, autoreset = CASES[case]
    halves = kwargs.get("double_buffered", False)
    options = EnvOptions(vector="async" if halves else "sync", autoreset=autoreset)
    made = RolloutWorker(env, spec, steps=12, num_envs=4, env_options=options, next_obs=True, seed=5, **kwargs)
    if spec.head == "q":
        made.set_epsilon([0.0, 0.2, 0.4, 0.6])
    return made


@pytest.mark.parametrize("case", CASES)
def test_the_transitions_are_those_of_plain_sampling(case):
    plain, halves = worker(case), worker(case, double_buffered=True)
    try:
        for _ in range(3):
            expected, found = plain.sample(), halves.sample()
            assert found.metrics == expected.metrics
            assert set(found.payload) == set(expected.payload)
            for name, column in expected.payload.items():
                np.testing.assert_allclose(found.payload[name], column, atol=1e-5, err_msg=name)
        assert sum(expected.metrics["episode_length"].values) > 0 or case == "next step"
    finally:
        halves.close()


def test_the_other_half_is_under_way_when_actions_are_computed(monkeypatch):
    halves = worker("next step", double_buffered=True)
    views, under_way, before = halves._view.views, set(), []
    act = type(halves._net).forward

    def seen(net: Any, obs_N: Any) -> Any:
        before.append(len(under_way))
        return act(net, obs_N)

    monkeypatch.setattr(type(halves._net), "forward", seen)
    for k, view in enumerate(views):
        send, receive = view.send, view.receive
        monkeypatch.setattr(view, "send", lambda actions, k=k, send=send: (under_way.add(k), send(actions)))
        monkeypatch.setattr(view, "receive", lambda k=k, receive=receive: (under_way.discard(k), receive())[1])
    try:
        halves.sample()
    finally:
        halves.close()
    assert before == [0, 1] + [1, 1] * 11


def test_after_an_error_new_episodes_begin_in_both_halves():
    class Breaks(gymnasium.Wrapper):
        def __init__(self, ctx: Any):
            super().__init__(gymnasium.make("CartPole-v1"))
            self.left = 7 if ctx.env_index == 3 else 10**6

        def step(self, action):
            self.left -= 1
            if self.left == 0:
                raise ArithmeticError("broken pole")
            return super().step(action)

    broken = RolloutWorker(
        Breaks, PolicySpec(**SMALL), steps=6, num_envs=4, env_options=EnvOptions(vector="async"), double_buffered=True
    )
    try:
        broken.sample()
        with pytest.raises(ArithmeticError, match="broken pole") as caught:
            broken.sample()
        assert "in environment 3, at step 7 of its episode" in "".join(caught.value.__notes__)
        batch = broken.sample().payload
        assert np.abs(batch["obs"][0]).max() <= 0.05  # CartPole's first observations
        assert batch["valid"].all()
        assert all(isinstance(half.vector.unwrapped, AsyncVectorEnv) for half in broken._source.halves)
    finally:
        broken.close()


def test_central_inference_steps_both_halves():
    plain, halves, server = worker("next step"), worker("next step", double_buffered=True), InferenceServer(seed=0)
    try:
        server.set_weights(plain.get_state()["weights"], 0)
        question = halves.begin_sample()
        while hasattr(question, "payload") and not hasattr(question, "metrics"):
            question = halves.go_on(server.serve(("w",), question.payload).payload, 0)
        expected = plain.sample().payload
        np.testing.assert_allclose(question.payload["obs"], expected["obs"], atol=1e-5)
        np.testing.assert_allclose(question.payload["values"], expected["values"], atol=1e-5)
        state = halves.get_state()
        assert state["envs"] is None
        halves.set_state(state)
        assert np.abs(halves.sample().payload["obs"][0]).max() <= 0.05  # new episodes
    finally:
        halves.close()


def test_it_needs_processes_and_two_halves():
    for kwargs in ({"num_envs": 3, "env_options": EnvOptions(vector="async")}, {"num_envs": 4}):
        with pytest.raises(ValueError, match="it needs an even num_envs and EnvOptions"):
            RolloutWorker("CartPole-v1", double_buffered=True, **kwargs)
