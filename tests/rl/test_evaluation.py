"""Evaluations: statistics by hand, quotas set beforehand, raw returns."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from flowrl.rl.envs import make_vector_env
from flowrl.rl.evaluation import Evaluation, play, quotas, student_t
from flowrl.rl.evaluator import Evaluator
from flowrl.rl.inference import make_inference
from flowrl.rl.initial import initial_weights
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.vector import VectorSource
from flowrl.rl.wrappers import Autoreset, EnvOptions
from tests.rl.counting_envs import Counting, Faulty

SPACES = Spaces(Box(0, 100, (2,)), Discrete(2))
NET, _ = make_inference(PolicySpec(), SPACES, np.random.SeedSequence(0))


def test_statistics_worked_by_hand() -> None:
    evaluation = Evaluation((1.0, 2.0, 3.0, 6.0), (1, 2, 3, 6))
    assert (evaluation.episodes, evaluation.mean) == (4, 3.0)
    assert evaluation.std == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3))
    assert evaluation.ci95 == pytest.approx(3.1824 * math.sqrt(14 / 3) / 2)
    assert repr(evaluation) == "Evaluation(return 3 ± 3.44 (95%) over 4 episodes, from 1 to 6, mean length 3)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        evaluation.returns = ()  # type: ignore[misc]


def test_one_episode_says_nothing_of_the_spread() -> None:
    evaluation = Evaluation((5.0,), (7,))
    assert math.isnan(evaluation.std)
    assert evaluation.ci95 == math.inf
    assert "return 5 ± inf" in repr(evaluation)


def test_refuses_no_episodes() -> None:
    with pytest.raises(ValueError, match="at least one episode, got 0 returns and 0 lengths"):
        Evaluation((), ())
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        quotas(0, 2)


@pytest.mark.parametrize(
    ("freedom", "point"),  # from printed tables
    [(1, 12.706), (4, 2.776), (9, 2.262), (10, 2.228), (19, 2.093), (30, 2.042), (99, 1.984), (10**6, 1.960)],
)
def test_student_t(freedom: int, point: float) -> None:
    assert student_t(freedom) == pytest.approx(point, abs=6e-4)


def test_quotas() -> None:
    assert quotas(7, 3) == [3, 2, 2]
    assert quotas(2, 4) == [1, 1, 0, 0]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_short_episodes_are_not_favoured(autoreset: Autoreset) -> None:
    envs = iter([Counting((2,)), Counting((9, 1))])
    source = make_vector_env(lambda: next(envs), 2, options=EnvOptions(autoreset=autoreset))
    evaluation = play(NET, source, 5, np.random.default_rng(0))
    # The first five to finish would have been four of length 2 and one of length 9.
    assert evaluation.lengths == (2, 2, 2, 9, 1)
    assert evaluation.returns == (3.0, 3.0, 3.0, 45.0, 1.0)


def test_sampled_and_greedy_actions() -> None:
    made: list[Counting] = []

    def factory() -> Counting:
        made.append(Counting((50,)))
        return made[-1]

    for deterministic in (True, False):
        play(NET, make_vector_env(factory), 1, np.random.default_rng(0), deterministic=deterministic)
    greedy, sampled = (env.actions for env in made)
    expected = NET.act(np.array([(0, step) for step in range(50)], np.float32))[0]
    assert greedy == expected.tolist()
    assert 10 < sum(sampled) < 40


def test_a_reward_that_is_not_finite_is_named() -> None:
    source = make_vector_env(lambda: Faulty(2, "rewards"), 2)
    with pytest.raises(
        FloatingPointError, match="environment 0 gave a reward of inf at step 2 of its episode in an eval"
    ):
        play(NET, source, 2, np.random.default_rng(0))


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_an_episode_that_does_not_end_is_an_error(autoreset: Autoreset) -> None:
    def source() -> VectorSource:
        envs = iter([Counting((3,)), Counting((40,))])
        return make_vector_env(lambda: next(envs), 2, options=EnvOptions(autoreset=autoreset))

    with pytest.raises(
        RuntimeError, match=r"environment 1 of .* not ended its episode after 20 steps .* wrap it in TimeLimit"
    ):
        play(NET, source(), 2, np.random.default_rng(0), max_steps=20)
    assert play(NET, source(), 2, np.random.default_rng(0), max_steps=41).lengths == (3, 40)
    # An environment that has done its share may go on.
    assert play(NET, source(), 1, np.random.default_rng(0), max_steps=4).lengths == (3,)


def test_the_limit_of_an_evaluator() -> None:
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        Evaluator(Counting, max_steps=0)
    evaluator = Evaluator(lambda: Counting((40,)), max_steps=20, seed=0)
    with pytest.raises(RuntimeError, match="after 20 steps of an evaluation") as caught:
        evaluator.evaluate(episodes=2, weights=initial_weights(PolicySpec(), SPACES, 0))
    assert caught.value.__notes__[0].startswith("in an evaluation by evaluator 0 of 1")
