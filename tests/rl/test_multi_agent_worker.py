"""Several agents in one environment: their transitions against a slow reading of the log, and who plays what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl import Batch
from flowrl.rl import PolicySpec
from flowrl.rl.cartpoles import MultiAgentCartPole
from flowrl.rl.multi_agent_worker import MultiAgentWorker
from flowrl.rl.roles import Scripted
from tests.rl.scripted_agents import AGENTS, ScriptedAgents, Turns, transitions

SMALL = PolicySpec(hidden=(4,))


def rows(batch: Batch) -> list[list[Any]]:
    """Each column's valid rows in order of time: (obs, next_obs, reward, terminated, truncated)."""
    valid_TN = batch.valid
    assert (np.diff(valid_TN.astype(int), axis=0) <= 0).all()  # a column's rows come first, then what is not valid
    names = ("obs", "next_obs", "rewards", "terminated", "truncated")
    return [
        [tuple(batch[name][t, n] for name in names) for t in np.flatnonzero(valid_TN[:, n])]
        for n in range(valid_TN.shape[1])
    ]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_envs=st.integers(1, 3),
    fragments=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    shared=st.booleans(),
)
def test_transitions_are_those_of_the_log(seed: int, num_envs: int, fragments: list[int], shared: bool) -> None:
    envs: list[ScriptedAgents] = []

    def make(ctx: Any) -> ScriptedAgents:
        envs.append(ScriptedAgents(ctx.env_index, seed))
        return envs[-1]

    policies = {"x": SMALL} if shared else {"x": SMALL, "y": PolicySpec(head="q", hidden=(4,))}
    cast = None if shared else (lambda agent, episode: "x" if (AGENTS.index(agent) + episode.index) % 2 else "y")
    worker = MultiAgentWorker(make, policies, cast, steps=1, num_envs=num_envs, next_obs=True, seed=seed)
    got: dict[tuple[int, str], list[Any]] = {}
    env_steps = 0
    for steps in fragments:
        worker._steps = steps
        answer = worker.sample()
        assert answer.payload.env_steps == steps * num_envs
        env_steps += steps * num_envs
        by_slot: dict[tuple[int, str], list[Any]] = {}
        for policy, batch in answer.payload.items():
            for column in rows(batch):
                for row in column:
                    env, agent = int(row[0][0]), AGENTS[int(row[0][1])]
                    if not shared:
                        index = int(row[0][2]) * num_envs + env
                        assert policy == ("x" if (AGENTS.index(agent) + index) % 2 else "y")
                    by_slot.setdefault((env, agent), []).append(row)
        for slot, column in by_slot.items():  # one that played two policies has a column in each
            got.setdefault(slot, []).extend(sorted(column, key=lambda row: (row[0][2], row[0][3])))
    for i, env in enumerate(envs):
        wanted = transitions(env.log)
        for agent in AGENTS:
            expected = [one for one in wanted if one[1] == agent]
            mine = got.get((i, agent), [])
            assert len(mine) == len(expected)
            for row, (episode, _, start, stop, earned, terminated, truncated, blind) in zip(
                mine, expected, strict=True
            ):
                assert row[0].tolist() == [i, AGENTS.index(agent), episode, start]
                assert row[1].tolist() == [i, AGENTS.index(agent), episode, start if blind else stop]
                assert (row[2], row[3], row[4]) == (earned, terminated, truncated)
    assert sum(len(moments) - 1 for env in envs for moments in env.log) == env_steps


def test_agents_that_take_turns_earn_between_their_turns() -> None:
    worker = MultiAgentWorker(Turns, {"shared": SMALL}, steps=5, next_obs=True, seed=0)
    answer = worker.sample()
    batch = answer.payload["shared"]
    a, b = rows(batch)
    # a acts at moments 0, 2, 4 and b at 1, 3; moment 5 is the end. b earned 0.5 before it first acted.
    assert [(row[0][1], row[1][1], row[2], row[3], row[4]) for row in a] == [
        (0, 2, 1.5, False, False), (2, 4, 1.5, False, False), (4, 5, 1.0, False, True),
    ]  # fmt: skip
    assert [(row[0][1], row[1][1], row[2], row[3], row[4]) for row in b] == [
        (1, 3, 2.0, False, False), (3, 4, 1.0, True, False),
    ]  # fmt: skip
    assert answer.metrics["episode_return"].values == (7.0,)
    assert answer.metrics["shared", "episode_return"].values == (4.0, 3.0)
    assert answer.metrics["shared", "episode_length"].values == (3, 2)
    assert (answer.payload.env_steps, answer.payload.agent_steps) == (5, 5)


def test_a_cut_fragment_keeps_a_terminal_transition_once() -> None:
    whole = MultiAgentWorker(Turns, {"shared": SMALL}, steps=10, next_obs=True, seed=0)
    cut = MultiAgentWorker(Turns, {"shared": SMALL}, steps=1, next_obs=True, seed=0)
    pieces = [cut.sample().payload for _ in range(10)]
    joined: dict[int, list[Any]] = {0: [], 1: []}
    for piece in pieces:
        for column in rows(piece["shared"]) if "shared" in piece else ():
            for row in column:
                joined[int(row[0][0])].append([np.asarray(part).tolist() for part in row])
    for n, column in enumerate(rows(whole.sample().payload["shared"])):
        assert joined[n] == [[np.asarray(part).tolist() for part in row] for row in column]


def test_values_follow_the_agent_and_not_the_row_beside_it() -> None:
    worker = MultiAgentWorker(
        MultiAgentCartPole, {"p": PolicySpec()}, steps=40, num_envs=2, next_obs=True, env_kwargs={"agents": 3}, seed=3
    )
    batch = worker.sample().payload["p"]
    net = worker._roles["p"].net
    for t, n in np.argwhere(batch.valid):
        np.testing.assert_allclose(batch["values"][t, n], net.values(batch["obs"][t, n][None])[0], atol=1e-5)
        np.testing.assert_allclose(batch["next_values"][t, n], net.values(batch["next_obs"][t, n][None])[0], atol=1e-5)
        params = net.forward(batch["obs"][t, n][None])[0]
        logp = net.sampler.logp(params, batch["actions"][t, n][None])[0]
        np.testing.assert_allclose(batch["logp"][t, n], logp, atol=1e-5)


def test_each_policy_has_the_columns_of_its_head() -> None:
    policies = {
        "ppo": SMALL,
        "dqn": PolicySpec(head="q", hidden=(4,)),
        "lstm": PolicySpec(recurrent="lstm", hidden=(4,)),
    }
    cast = {"agent_0": "ppo", "agent_1": "dqn", "agent_2": "lstm"}
    worker = MultiAgentWorker(
        MultiAgentCartPole, policies, lambda agent, episode: cast[agent], steps=20, env_kwargs={"agents": 3}, seed=0
    )
    worker.set_epsilon(0.5, policy="dqn")
    batch = worker.sample().payload
    assert set(batch) == set(policies)
    assert "q_taken" in batch["dqn"]
    assert "q_taken" not in batch["ppo"]
    assert np.isfinite(batch["dqn"]["logp"][batch["dqn"].valid]).all()  # of the mixture with uniform actions
    assert {"starts", "state/h", "state/c"} <= set(batch["lstm"])
    assert batch["lstm"]["starts"][0, 0]
    assert not batch["lstm"]["state/h"][0].any()


def test_policies_are_fixed_for_an_episode_and_drawn_by_its_own_generator() -> None:
    asked: list[tuple[int, str]] = []

    def cast(agent: str, episode: Any) -> str:
        asked.append((episode.index, agent))
        return "x" if episode.rng.random() < 0.5 else "y"

    def sampled(index: int) -> Any:
        worker = MultiAgentWorker(
            MultiAgentCartPole, {"x": SMALL, "y": SMALL}, cast, steps=120, num_envs=2, index=index, count=2, seed=5
        )
        asked.clear()  # of the probing
        return worker.sample().payload

    first = sampled(1)
    assert len(asked) == len(set(asked))  # once an agent and episode
    assert {index % 2 for index, _ in asked} == {1}  # numbers of this worker's alone
    assert first == sampled(1)


def test_scripted_and_uncollected_policies_act_and_give_no_rows() -> None:
    seen: list[Any] = []

    def push(obs: Any, space: Any, rng: np.random.Generator) -> int:
        seen.append(obs)
        return int(space.n) - 1

    cast = {"agent_0": "learns", "agent_1": "frozen", "agent_2": "script"}
    worker = MultiAgentWorker(
        MultiAgentCartPole, {"learns": SMALL, "frozen": SMALL, "script": Scripted(push)},
        lambda agent, episode: cast[agent], collect=("learns",), steps=30, env_kwargs={"agents": 3}, seed=0,
    )  # fmt: skip
    assert set(worker.sample().payload) == {"learns"}
    assert seen
    assert set(worker.spaces()) == {"learns", "frozen"}
    worker.set_policy(PolicySpec(head="q", hidden=(4,)), policy="learns")
    assert "q_taken" in worker.sample().payload["learns"]


class Mixed:
    """Two agents with different spaces."""

    possible_agents = ("small", "large")

    def __init__(self, reward: float = 1.0, gift: bool = False):
        self.observation_spaces = {"small": Box(0, 1, (1,)), "large": Box(0, 1, (2,))}
        self.action_spaces = {"small": Discrete(2), "large": Discrete(2)}
        self.reward, self.gift, self.steps = reward, gift, 0

    def _obs(self) -> dict[str, Any]:
        return {"small": np.zeros(1, np.float32), "large": np.zeros(2, np.float32)}

    def reset(self, seed: int | None = None) -> tuple[Any, Any]:
        self.steps = 0
        return self._obs(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.steps += 1
        obs = self._obs()
        if self.steps > 1 and self.gift:
            del obs["small"]
        ended = {"small": self.gift and self.steps == 1, "__all__": self.steps >= 3}
        return obs, {"small": self.reward, "large": 1.0}, ended, {}, {}


def test_who_cannot_share_a_policy_is_named() -> None:
    with pytest.raises(ValueError, match=r"agents 'small' and 'large' of .*Mixed.* both play policy 'p', but the"):
        MultiAgentWorker(Mixed, {"p": SMALL})
    with pytest.raises(ValueError, match=r"gave agent 'small' of .*the policy 'q', which is not defined.*'p'"):
        MultiAgentWorker(Mixed, {"p": SMALL}, lambda agent, episode: "q")
    with pytest.raises(ValueError, match="policy_of must say who plays which of the policies 'p', 'q'"):
        MultiAgentWorker(Mixed, {"p": SMALL, "q": SMALL})
    with pytest.raises(ValueError, match="gave nobody the policy 'q'"):
        MultiAgentWorker(Mixed, {"p": SMALL, "q": SMALL, "r": SMALL}, lambda agent, _: "p" if agent == "small" else "r")
    with pytest.raises(TypeError, match="no environment: an environment of several agents has reset"):
        MultiAgentWorker(object, {"p": SMALL})
    with pytest.raises(ValueError, match=r"collect names \['z'\], which are not among the policies \['p'\]"):
        MultiAgentWorker(Turns, {"p": SMALL}, collect=("z",))
    worker = MultiAgentWorker(Turns, {"p": SMALL})
    with pytest.raises(ValueError, match="policy='z' must name one of this worker's policies: 'p'"):
        worker.set_weights(np.zeros(3, np.float32), 1, policy="z")


def test_a_reward_after_an_agents_end_goes_to_its_last_transition() -> None:
    cast = {"small": "s", "large": "l"}

    def made(steps: int) -> MultiAgentWorker:
        return MultiAgentWorker(
            Mixed,
            {"s": SMALL, "l": SMALL},
            lambda agent, _: cast[agent],
            steps=steps,
            env_kwargs={"gift": True},
            seed=0,
        )

    answer = made(3).sample()
    batch = answer.payload["s"]
    assert batch.valid[:, 0].tolist() == [True, False, False]
    assert (batch["rewards"][0, 0], batch["terminated"][0, 0]) == (3.0, True)
    worker = made(1)
    assert worker.sample().payload["s"]["rewards"].tolist() == [[1.0]]
    late = worker.sample()
    assert "s" not in late.payload
    assert late.metrics["late_rewards"].value == 1


def test_what_is_not_finite_names_environment_and_agent() -> None:
    cast = {"small": "s", "large": "l"}
    worker = MultiAgentWorker(
        Mixed, {"s": SMALL, "l": SMALL}, lambda agent, _: cast[agent], env_kwargs={"reward": float("nan")}
    )
    with pytest.raises(FloatingPointError, match="environment 0 gave agent 'small' the reward nan") as caught:
        worker.sample()
    assert any("episode 0, at its step 1" in note for note in caught.value.__notes__)


def test_an_evaluation_plays_whole_episodes_and_touches_no_training() -> None:
    def made() -> MultiAgentWorker:
        return MultiAgentWorker(
            MultiAgentCartPole, {"p": SMALL}, steps=10, num_envs=2, env_kwargs={"agents": 2}, seed=1
        )  # fmt: skip

    plain, judged = made(), made()
    first = judged.sample().payload
    found = judged.evaluate(5, seed=3).payload
    assert found.episodes == 5
    assert found.policies["p"].episodes == 10
    assert sum(found.returns) == sum(found.policies["p"].returns)
    assert found == judged.evaluate(5, seed=3).payload
    assert first == plain.sample().payload
    assert judged.sample().payload == plain.sample().payload


def test_a_state_brings_weights_and_never_an_episode_twice() -> None:
    worker = MultiAgentWorker(MultiAgentCartPole, {"p": SMALL}, steps=30, seed=1)
    worker.sample()
    worker.set_weights(np.full_like(worker._roles["p"].flat, 0.1), 7)
    other = MultiAgentWorker(MultiAgentCartPole, {"p": SMALL}, steps=30, seed=1)
    other.set_state(worker.get_state())
    assert other.sample().policy_version == 7
    assert other._rollout.begun[0] > worker._rollout.begun[0]


def test_pettingzoos_own_environments() -> None:
    pytest.importorskip("pettingzoo")
    from pettingzoo.classic import rps_v2  # type: ignore[import-untyped]

    worker = MultiAgentWorker(rps_v2.env, {"p": SMALL}, steps=60, num_envs=2, next_obs=True, seed=0)
    answer = worker.sample()
    assert answer.payload.env_steps == 120
    assert len(answer.metrics["episode_return"].values) >= 1
    assert all(value == 0.0 for value in answer.metrics["episode_return"].values)  # what one wins the other loses
