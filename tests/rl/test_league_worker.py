"""The worker of one player of a league: who sits where, whose rows count, what is told of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.rl import LeagueWorker, PolicySpec
from flowrl.rl.league import Lineup

SPEC = PolicySpec(hidden=(4,))
ROCK, PAPER, SCISSORS = range(3)


def always(action: int, worker: LeagueWorker) -> Any:
    """Weights whose every action is this one."""
    flat = np.zeros_like(worker.get_state()["policies"]["main"]["weights"])
    flat[2 * 4 + 4 + 4 * 3 + action] = 50  # the bias of the actor's last layer
    return flat


def worker(steps: int = 40, num_envs: int = 4, **more: Any) -> LeagueWorker:
    made = LeagueWorker(
        "flowrl.rl.games:rock_paper_scissors", "main", SPEC, steps=steps, num_envs=num_envs, seed=0, **more
    )
    made.set_weights(always(PAPER, made), 1)
    return made


def against(made: LeagueWorker, **members: int) -> Lineup:
    names = tuple(name.replace("_", ":") for name in members)
    return Lineup(
        names, {name: (1, always(action, made)) for name, action in zip(names, members.values(), strict=True)}
    )


def test_results_are_those_of_the_members_weights() -> None:
    made = worker()
    made.set_lineup(against(made, main_1=ROCK, main_2=PAPER, main_3=SCISSORS))
    batch = made.sample().payload["main"]
    valid = batch["valid"]
    assert (batch["actions"][valid] == PAPER).all()  # no row of the members is among them
    assert valid.sum() == 80  # a game has two steps, one of which is the player's
    report = made.match_report()
    assert report.player == "main"
    results = {name: found for name, *found in report.results}
    games = [found[0] for found in results.values()]
    assert sum(games) == 80
    assert min(games) > 15
    assert results["main:1"][1:] == [games_of(results, "main:1"), games_of(results, "main:1")]
    assert results["main:2"][1:] == [games_of(results, "main:2") / 2, 0]
    assert results["main:3"][1:] == [0, -games_of(results, "main:3")]
    assert report.has == {"main:1": 1, "main:2": 1, "main:3": 1}
    assert made.match_report().results == ()  # told once


def games_of(results: dict[str, Any], name: str) -> float:
    return float(results[name][0])


def test_the_player_sits_on_both_sides() -> None:
    made = worker(steps=200)
    made.set_lineup(against(made, main_1=ROCK))
    batch = made.sample().payload["main"]
    first = batch["obs"][batch["valid"]][:, 0] == 1
    assert 0.4 < first.mean() < 0.6
    assert (batch["rewards"][batch["valid"]] == 1).all()


@pytest.mark.parametrize("lineup", [None, Lineup(("main",))])
def test_against_itself_both_sides_are_gathered(lineup: Lineup | None) -> None:
    made = worker()
    if lineup is not None:
        made.set_lineup(lineup)
    answer = made.sample()
    batch = answer.payload["main"]
    assert batch["valid"].sum() == 160
    assert batch["rewards"].sum() == 0
    assert made.match_report().results == ()
    assert answer.metrics["episode_return"].values == ()  # there was nobody to win from


def test_the_return_is_the_players() -> None:
    made = worker()
    made.set_lineup(against(made, main_1=SCISSORS))
    answer = made.sample()
    assert answer.metrics["episode_return"].values == (-1.0,) * 80
    assert answer.metrics["main", "episode_return"].values == (-1.0,) * 80
    evaluation = made.evaluate(6, seed=1)
    assert evaluation.payload.policies["main"].returns == (-1.0,) * 6


def test_an_episode_is_played_to_its_end_against_the_same() -> None:
    made = worker(steps=1, num_envs=8)
    made.set_lineup(against(made, main_1=ROCK))
    made.sample()  # the first of each game has chosen
    made.set_lineup(against(made, main_2=SCISSORS))
    made.sample()
    assert made.match_report().results == (("main:1", 8, 8.0, 8.0),)  # though it has left the lineup
    made.sample()
    made.sample()
    report = made.match_report()
    assert report.results == (("main:2", 8, 0.0, -8.0),)
    assert set(report.has) == {"main:1", "main:2"}
    made.set_lineup(Lineup(("main:2",)))
    assert set(made.match_report().has) == {"main:2"}


def test_weights_come_once_and_a_member_that_goes_on_learning_comes_again() -> None:
    made = worker()
    made.set_lineup(against(made, rival=ROCK))
    made.sample()
    made.set_lineup(Lineup(("rival", "rival"), {"rival": (2, always(SCISSORS, made))}))
    made.match_report()
    made.sample()
    [(name, games, score, _)] = made.match_report().results
    assert (name, games, score) == ("rival", 80, 0)
    with pytest.raises(ValueError, match="the lineup names 'main:9', whose weights neither came with it nor are here"):
        made.set_lineup(Lineup(("main:9",)))


def test_a_restored_worker_goes_on_in_the_same_games_against_the_same_members() -> None:
    made, other = worker(steps=41), worker(steps=41)
    made.set_lineup(against(made, main_1=ROCK, main_2=SCISSORS))
    made.sample()  # half of a game is left
    other.set_lineup(against(other, main_9=ROCK))
    assert other.set_state(made.get_state())
    assert set(other.match_report().has) == {"main:1", "main:2"}
    assert made.match_report().results
    one, again = made.sample().payload["main"], other.sample().payload["main"]
    for name in one:
        np.testing.assert_array_equal(one[name], again[name])
    assert made.match_report() == other.match_report()
    assert set(made.spaces()) == {"main"}


def test_its_state_keeps_what_the_league_was_not_told() -> None:
    made, other = worker(), worker()
    made.set_lineup(against(made, main_1=ROCK))
    made.sample()
    other.set_state(made.get_state())
    assert other.match_report() == made.match_report()


def test_the_members_transitions_are_not_kept() -> None:
    made = worker()
    made.set_lineup(against(made, main_1=ROCK, main_2=SCISSORS))
    for _ in range(3):
        made.sample()
        assert [role.rows for role in made._playing.values()] == [[], [], []]
