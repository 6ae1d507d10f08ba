"""The rules of the small games, and games as environments."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.rl import MultiAgentWorker, PolicySpec, Scripted
from flowrl.rl.games import (
    CHANCE,
    OVER,
    ConnectFour,
    GameEnv,
    Kuhn,
    Leduc,
    RockPaperScissors,
    connect_four,
    kuhn_poker,
    leduc_poker,
    tree_of,
)
from flowrl.rl.games.connect_four import ConnectFourState, has_four, state_of, two_ply
from flowrl.rl.games.kuhn import KuhnState
from flowrl.rl.games.leduc import CALL, FOLD, RAISE, LeducState


def after(state: Any, *actions: int) -> Any:
    for action in actions:
        state = state.play(action)
    return state


@pytest.mark.parametrize(
    ("actions", "gain"),
    [((0, 0), -1), ((1, 0), 1), ((1, 1), -2), ((0, 1, 0), -1), ((0, 1, 1), -2)],
)
def test_kuhns_payments(actions: tuple[int, ...], gain: float) -> None:
    state = after(KuhnState((0, 2)), *actions)
    assert state.player == OVER
    assert state.gain() == gain


def test_leducs_payments() -> None:
    start = LeducState((1, 2))
    assert start.legal() == (CALL, RAISE)
    assert after(start, RAISE).legal() == (FOLD, CALL, RAISE)
    assert after(start, RAISE, RAISE).legal() == (FOLD, CALL)
    assert after(start, RAISE, RAISE, FOLD).gain() == -3  # the ante and the own bet
    second = after(start, RAISE, CALL)
    assert second.player == CHANCE
    assert dict((state.public, p) for p, state in second.chances()) == {0: 0.5, 1: 0.25, 2: 0.25}
    paired = next(state for _, state in second.chances() if state.public == 1)
    assert paired.player == 0
    assert after(paired, CALL, CALL).gain() == 3  # a pair beats the higher card
    assert after(paired, CALL, RAISE, RAISE, CALL).gain() == 3 + 8
    higher = next(state for _, state in second.chances() if state.public == 0)
    assert after(higher, CALL, CALL).gain() == -3
    tied = after(LeducState((2, 2)), CALL, CALL)
    assert after(tied.chances()[0][1], CALL, CALL).gain() == 0
    with pytest.raises(ValueError, match=r"action 0 is not legal in this situation of Leduc poker; legal are \[1, 2\]"):
        start.play(FOLD)


@pytest.mark.parametrize("game", [Kuhn(), Leduc(), RockPaperScissors()], ids=lambda game: type(game).__name__)
def test_observations_tell_apart_what_players_can(game: Any) -> None:
    seen: dict[bytes, Any] = {}
    for node in tree_of(game).walk():
        if node.player >= 0:
            obs = node.state.observation()
            assert obs.shape == (game.obs_size,)
            assert obs.dtype == np.float32
            assert seen.setdefault(obs.tobytes(), node.infoset) == node.infoset
        if node.player == CHANCE:
            assert sum(node.chances) == pytest.approx(1)


def lines(board: np.ndarray) -> bool:
    """Four in a line, cell by cell."""
    rows, columns = board.shape
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + i * down, column + i * right) for i in range(4)]
                if all(r < rows and 0 <= c < columns and board[r, c] for r, c in cells):
                    return True
    return False


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_connect_four_against_a_board_of_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    board, heights = np.zeros((2, 6, 7), bool), np.zeros(7, int)
    state = ConnectFour().initial()
    while state.player != OVER:
        assert state.legal() == [c for c in range(7) if heights[c] < 6]
        mover = state.player
        obs = state.observation().reshape(2, 6, 7)
        assert (obs[0] == board[mover]).all()
        assert (obs[1] == board[1 - mover]).all()
        assert state_of(state.observation()) == state
        column = int(rng.choice(state.legal()))
        board[mover, heights[column], column] = True
        heights[column] += 1
        state = state.play(column)
        assert has_four(state.theirs) == lines(board[mover])
        assert (state.player == OVER) == (lines(board[mover]) or bool((heights == 6).all()))
    winner = next((player for player in (0, 1) if lines(board[player])), None)
    assert state.gain() == {0: 1.0, 1: -1.0, None: 0.0}[winner]


def completes(board: Any, row: int, column: int) -> bool:
    """Whether a stone more there stands in a line of four, cell by cell."""
    more = board.copy()
    more[row, column] = True
    return lines(more)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_tactics_against_a_board_of_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = ConnectFour(tactics=True).initial()
    while state.player != OVER:
        obs = state.observation()
        assert obs.shape == (ConnectFour(tactics=True).obs_size,) == (196,)
        assert state_of(obs) == state
        mine, theirs, ours, others = (part.reshape(6, 7) > 0 for part in np.split(obs[:168], 4))
        empty = ~(mine | theirs)
        for row, column in np.ndindex(6, 7):
            assert ours[row, column] == (empty[row, column] and completes(mine, row, column))
            assert others[row, column] == (empty[row, column] and completes(theirs, row, column))
        wins, saves, opens, spoils = obs[168:].reshape(4, 7) > 0
        legal = state.legal()
        for column in range(7):
            after = state.play(column) if column in legal else None
            height = int((~empty[:, column]).sum())
            reply = after.play(column) if after is not None and height < 5 and not after.won else None
            assert wins[column] == (after is not None and after.won)
            assert saves[column] == (column in legal and completes(theirs, height, column))
            assert spoils[column] == (height < 5 and completes(mine, height + 1, column) and empty[height + 1, column])
            if reply is not None:
                assert opens[column] == reply.won
        state = state.play(int(rng.choice(legal)))


def test_a_full_column_is_refused() -> None:
    full = after(ConnectFour().initial(), 3, 3, 3, 3, 3, 3)
    with pytest.raises(ValueError, match=r"action 3 is not legal .* legal are \[0, 1, 2, 4, 5, 6\]"):
        full.play(3)


def test_the_search_wins_and_blocks() -> None:
    rng = np.random.default_rng(0)
    three = after(ConnectFour().initial(), 0, 6, 0, 6, 0)  # player 0 has three in column 0, player 1 two in column 6
    assert two_ply(three.observation(), None, rng) == 0  # blocks
    winning = three.play(6)  # nobody blocked
    assert two_ply(winning.observation(), None, rng) == 0  # wins, rather than to block column 6
    empty = ConnectFourState()
    assert {two_ply(empty.observation(), None, rng) for _ in range(100)} == set(range(7))


@pytest.mark.parametrize("make", [kuhn_poker, leduc_poker, connect_four, partial(connect_four, tactics=True)])
def test_games_in_a_worker(make: Any) -> None:
    def cautious(obs: Any, space: Any, rng: np.random.Generator) -> int:
        raise AssertionError("not asked")

    worker = MultiAgentWorker(make, {"a": PolicySpec(hidden=(8,))}, steps=50, num_envs=4, seed=0)
    batch = worker.sample().payload["a"]
    valid = batch["valid"]
    taken = np.take_along_axis(batch["action_mask"], batch["actions"][..., None], -1)[..., 0]
    assert taken[valid].all()  # only what is legal
    ends = batch["terminated"]
    assert (batch["rewards"][~ends] == 0).all()
    assert ends[valid].sum() > 10
    assert Scripted(cautious).act is cautious


def test_chance_follows_the_seed() -> None:
    env, again = GameEnv(Kuhn()), GameEnv(Kuhn())
    deals = []
    for seed in range(20):
        one, other = env.reset(seed=seed)[0], again.reset(seed=seed)[0]
        np.testing.assert_array_equal(one["player_0"], other["player_0"])
        deals.append(int(one["player_0"][:3].argmax()))
    assert set(deals) == {0, 1, 2}
    obs, rewards, terminated, _, _ = env.step({"player_0": 1})
    assert (list(obs), rewards, terminated) == (["player_1"], {}, {})
    _, rewards, terminated, _, _ = env.step({"player_1": 0})
    assert rewards == {"player_0": 1.0, "player_1": -1.0}
    assert terminated == {"__all__": True}
