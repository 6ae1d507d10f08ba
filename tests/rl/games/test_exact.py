"""Exact values against what is known by hand, in closed form, and from OpenSpiel where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.rl.games import (
    ConnectFour,
    Kuhn,
    Leduc,
    RockPaperScissors,
    average_strategy,
    best_response,
    expected_gain,
    infosets,
    nash_conv,
    policy_strategies,
    strategy_of,
    tree_of,
    uniform_strategy,
)
from flowrl.rl.initial import initial_weights
from flowrl.rl.spec import PolicySpec, Spaces
from tests.rl.games.enumerated import enumerated_best_response


def random_strategy(game: Any, seed: int) -> dict[Any, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for infoset, (_, legal) in infosets(game).items():
        found[infoset] = np.zeros(game.num_actions)
        found[infoset][list(legal)] = rng.dirichlet(np.ones(len(legal)) * 0.5)
    return found


def test_rock_paper_scissors_by_hand() -> None:
    game = RockPaperScissors()
    assert nash_conv(game, uniform_strategy(game)) == pytest.approx(0, abs=1e-12)
    rocky = {0: np.array([0.5, 0.25, 0.25]), 1: np.array([1 / 3, 1 / 3, 1 / 3])}
    # Against half rock, paper wins 1/2 and loses 1/4; against a third of each nothing wins.
    assert best_response(game, rocky, 1) == (pytest.approx(0.25), {1: 1})
    assert best_response(game, rocky, 0)[0] == pytest.approx(0)
    assert nash_conv(game, rocky) == pytest.approx(0.25)
    pure = {0: np.array([1.0, 0, 0]), 1: np.array([0, 1.0, 0])}
    assert expected_gain(game, pure, pure) == -1


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1 / 3])
def test_kuhns_equilibria(alpha: float) -> None:
    game = Kuhn()
    found = game.equilibrium(alpha)
    assert nash_conv(game, found) == pytest.approx(0, abs=1e-12)
    assert expected_gain(game, found, game.equilibrium(0.2)) == pytest.approx(-1 / 18)
    assert best_response(game, found, 0)[0] == pytest.approx(-1 / 18)
    assert best_response(game, found, 1)[0] == pytest.approx(1 / 18)


def test_uniform_in_kuhn_by_hand() -> None:
    game = Kuhn()
    uniform = uniform_strategy(game)
    # Both throw coins: 3/8 of games are bet and called (2 chips, as likely won as lost, as is the showdown without a
    # bet); player 1 folds to a bet in 1/4 of games, player 0 in 1/8. So player 0 wins 1/4 − 1/8.
    assert expected_gain(game, uniform, uniform) == pytest.approx(1 / 8)
    # Player 0 with the king bets: 1/2 · 1 + 1/2 · 2 = 3/2; with the jack it bets: 1/2 · 1 − 1/2 · 2 = −1/2, and to pass
    # and fold gives −1; with the queen half of the calls are won: to bet gives 1/2, to pass and then call 0.
    assert best_response(game, uniform, 0)[0] == pytest.approx((3 / 2 - 1 / 2 + 1 / 2) / 3)
    assert nash_conv(game, uniform) == pytest.approx(11 / 12)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), player=st.integers(0, 1))
def test_a_best_response_is_the_best_of_all_pure_strategies(seed: int, player: int) -> None:
    game = Kuhn()
    strategy = random_strategy(game, seed)
    value, actions = best_response(game, strategy, player)
    assert value == pytest.approx(enumerated_best_response(game, strategy, player))
    # And played, it wins what it says.
    played = {infoset: np.eye(2)[actions.get(infoset, 0)] for infoset in strategy}
    gain = expected_gain(game, played, strategy) if player == 0 else -expected_gain(game, strategy, played)
    assert gain == pytest.approx(value)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0.05, 0.95))
def test_an_average_wins_what_a_player_wins_who_draws_among_the_strategies(seed: int, share: float) -> None:
    game = Kuhn()
    one, other, against = (random_strategy(game, seed + i) for i in range(3))
    mixed = average_strategy(game, [one, other], [share, 1 - share])
    drawn = share * expected_gain(game, one, against) + (1 - share) * expected_gain(game, other, against)
    assert expected_gain(game, mixed, against) == pytest.approx(drawn)
    drawn = share * expected_gain(game, against, one) + (1 - share) * expected_gain(game, against, other)
    assert expected_gain(game, against, mixed) == pytest.approx(drawn)
    for infoset, probabilities in mixed.items():
        assert probabilities.sum() == pytest.approx(1)
        assert len(np.flatnonzero(probabilities)) <= len(infosets(game)[infoset][1])


def test_an_average_is_no_average_of_probabilities() -> None:
    game = Kuhn()
    passes = {infoset: np.array([1.0, 0.0]) for infoset in infosets(game)}
    bets = {infoset: np.array([0.0, 1.0]) for infoset in infosets(game)}
    mixed = average_strategy(game, [passes, bets])
    assert mixed[0, ()].tolist() == [0.5, 0.5]
    assert mixed[0, (0, 1)].tolist() == [1.0, 0.0]  # who has passed is the one that passes
    with pytest.raises(ValueError, match="got 1 strategies and weights \\[0\\]"):
        average_strategy(game, [passes], [0])
    with pytest.raises(ValueError, match="got 0 strategies"):
        average_strategy(game, [])


def test_leduc_has_the_situations_of_the_literature() -> None:
    game = Leduc()
    assert len(infosets(game)) == 288
    assert nash_conv(game, uniform_strategy(game)) == pytest.approx(4.747222, abs=1e-6)
    total = sum(p for p in tree_of(game).chances)
    assert total == pytest.approx(1)


def test_connect_four_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"ConnectFour\(tactics=False\) has more than 100,000 situations"):
        tree_of(ConnectFour())


def test_a_policy_is_the_strategy_of_its_logits() -> None:
    game = Leduc()
    spec = PolicySpec(hidden=(4,))
    from flowrl.rl.games import GameEnv

    env = GameEnv(game)
    spaces = Spaces(env.observation_space("player_0"), env.action_space("player_0"))
    flat = initial_weights(spec, spaces, np.random.SeedSequence(0))
    [found] = policy_strategies(game, spec, [flat])
    for infoset, (_, legal) in infosets(game).items():
        assert found[infoset].sum() == pytest.approx(1)
        assert set(np.flatnonzero(found[infoset])) == set(legal)
    biased = strategy_of(game, lambda obs: np.tile([0.0, np.log(3.0), 0.0], (len(obs), 1)))
    assert biased[next(iter(biased))].tolist() == pytest.approx([0, 0.75, 0.25])


@pytest.mark.parametrize(("game", "name"), [(Kuhn(), "kuhn_poker"), (Leduc(), "leduc_poker")], ids=["kuhn", "leduc"])
def test_openspiel_says_the_same(game: Any, name: str) -> None:
    pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    exploitability = pytest.importorskip("open_spiel.python.algorithms.exploitability")
    policy = pytest.importorskip("open_spiel.python.policy")
    theirs = pyspiel.load_game(name)
    found = exploitability.nash_conv(theirs, policy.UniformRandomPolicy(theirs))
    assert nash_conv(game, uniform_strategy(game)) == pytest.approx(found)
