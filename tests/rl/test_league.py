"""A league: its ratings and payoffs by hand, whom each matchmaking picks, and its state."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flowrl.rl import League, Matchmaking
from flowrl.rl.league import Report, Verdict


def flat(value: float) -> Any:
    return np.full(3, value, np.float32)


def league(players: Any = None, snapshots: int = 3, **options: Any) -> League:
    """Of one player, whose snapshot i has weights i; without decay, so that numbers are by hand."""
    made = League(players or {"main": "prioritized"}, **{"decay": 1.0, "seed": 0, **options})
    for number in range(1, snapshots + 1):
        made.freeze("main", flat(number), 10 * number)
    return made


def told(made: League, player: str = "main", **results: tuple[int, float]) -> None:
    """Games and scores against members; `main_1` stands for "main:1"."""
    rows = tuple((name.replace("_", ":"), games, score, 2 * score - games) for name, (games, score) in results.items())
    made.lineup(Report(player, rows))


def test_elo_by_hand() -> None:
    made = league(snapshots=1)
    assert made.ratings() == {"main": 1200, "main:1": 1200}
    told(made, main_1=(1, 1.0))  # E = 1/2: both move by 16 · 1/2
    assert made.ratings() == {"main": 1208, "main:1": 1192}
    told(made, main_1=(1, 0.5))  # E = 1 / (1 + 10^(−16/400)) = 0.52301
    assert made.ratings()["main"] == pytest.approx(1208 - 16 * 0.0230097, abs=1e-4)
    assert sum(made.ratings().values()) == pytest.approx(2400)
    assert made.freeze("main", flat(2), 20).payload == "main:2"
    assert made.ratings()["main:2"] == made.ratings()["main"]


def test_many_games_are_rated_one_after_another() -> None:
    once, each = league(snapshots=1), league(snapshots=1)
    told(once, main_1=(3, 3.0))
    for _ in range(3):
        told(each, main_1=(1, 1.0))
    assert once.ratings() == pytest.approx(each.ratings())
    assert once.payoffs() == each.payoffs() == [
        {"player": "main", "member": "main:1", "games": 3, "win_rate": 1.0, "return": 1.0}
    ]  # fmt: skip


def test_older_games_count_less() -> None:
    made = league(snapshots=1, decay=0.5)
    told(made, main_1=(2, 2.0))  # weight 1 + 1/2, all won
    told(made, main_1=(1, 0.0))  # 3/4 of the won ones are left, beside 1 that is lost
    [row] = made.payoffs()
    assert row["games"] == 3
    assert row["win_rate"] == pytest.approx(0.75 / 1.75)
    assert row["return"] == pytest.approx((0.75 - 1) / 1.75)


def test_prioritized_fictitious_self_play_by_hand() -> None:
    made = league()
    told(made, main_1=(4, 4.0), main_2=(4, 3.0), main_3=(4, 2.0))
    # (1 − x)²: 0, 1/16, 1/4
    assert made.chances("main") == pytest.approx({"main:1": 0, "main:2": 0.2, "main:3": 0.8})
    told(made, main_2=(4, 5.0), main_3=(4, 6.0))  # more than all are won
    told(made, main_1=(1, 1.0))
    soft = league(hardness=1.0)
    told(soft, main_1=(4, 4.0), main_2=(4, 3.0), main_3=(4, 2.0))
    assert soft.chances("main") == pytest.approx({"main:1": 0, "main:2": 1 / 3, "main:3": 2 / 3})
    beaten = league()
    told(beaten, main_1=(1, 1.0), main_2=(1, 1.0), main_3=(1, 1.0))
    assert beaten.chances("main") == pytest.approx({"main:1": 1 / 3, "main:2": 1 / 3, "main:3": 1 / 3})


@pytest.mark.parametrize("rule", ["uniform", "prioritized", "main"])
def test_without_snapshots_a_player_meets_itself(rule: str) -> None:
    assert league({"main": rule}, snapshots=0).chances("main") == pytest.approx({"main": 1.0})


def test_the_other_simple_matchmakings() -> None:
    third = {f"main:{i}": pytest.approx(1 / 3) for i in (1, 2, 3)}
    assert league({"main": "uniform"}).chances("main") == third
    assert league({"main": "latest"}).chances("main") == {"main": 1.0}
    assert league({"main": "mixed"}).chances("main") == {
        "main": 0.5, **{f"main:{i}": pytest.approx(1 / 6) for i in (1, 2, 3)}
    }  # fmt: skip
    mixed = league({"main": Matchmaking(latest=1, uniform=3)}).chances("main")
    assert mixed == {"main": 0.25, **{f"main:{i}": pytest.approx(0.25) for i in (1, 2, 3)}}


def test_a_main_player_of_alphastar() -> None:
    made = league({"main": "main", "exploiter": "main_exploiter", "other": "league_exploiter"}, snapshots=2)
    made.freeze("exploiter", flat(7), 1)
    made.freeze("other", flat(8), 1)
    told(made, main_1=(10, 9.0), main_2=(10, 8.0), exploiter_1=(10, 5.0), other_1=(10, 5.0))
    hard = {"main:1": 0.01, "main:2": 0.04, "exploiter:1": 0.25, "other:1": 0.25}
    wanted = {name: 0.5 * weight / sum(hard.values()) for name, weight in hard.items()}
    wanted["main"] = 0.35
    # What it no longer beats: the exploiter of main players. A league exploiter's snapshots are not looked after.
    wanted["exploiter:1"] += 0.15
    assert made.chances("main") == pytest.approx(wanted)
    told(made, exploiter_1=(90, 90.0))
    assert made.chances("main")["main"] == pytest.approx(0.5)  # nobody is forgotten


def test_a_main_exploiter_of_alphastar() -> None:
    made = league({"main": "main", "exploiter": "main_exploiter"}, snapshots=2)
    assert made.chances("exploiter") == {"main": 1.0}
    told(made, "exploiter", main=(10, 2.0), main_1=(10, 5.0), main_2=(10, 1.0))
    assert made.chances("exploiter") == {"main": 1.0}  # beaten in 20%
    told(made, "exploiter", main=(10, 1.0))
    assert made.chances("exploiter") == pytest.approx({"main:1": 0.25 / 0.34, "main:2": 0.09 / 0.34})
    assert League({"main": "main", "exploiter": "main_exploiter"}).chances("exploiter") == {"exploiter": 1.0}


def test_a_lineup_brings_the_weights_that_are_lacking() -> None:
    made = league({"main": "uniform", "exploiter": "main_exploiter"})
    answer = made.lineup(Report("main", has={"main:1": 10}), 64)
    lineup = answer.payload
    assert set(lineup.members) == {"main:1", "main:2", "main:3"}
    assert len(lineup.members) == 64
    assert set(lineup.weights) == {"main:2", "main:3"}
    version, weights = lineup.weights["main:2"]
    assert (version, weights.tolist()) == (20, [2, 2, 2])
    assert answer.metrics["main", "rating"] == 1200
    made.put_weights("main", flat(9), 35)
    assert made.lineup(Report("exploiter", has={"main": 30})).payload.weights["main"][0] == 35
    assert made.lineup(Report("exploiter", has={"main": 35})).payload.weights == {}
    assert league({"main": "latest"}).lineup(Report("main")).payload.weights == {}  # the worker has its own


def test_draws_follow_the_chances() -> None:
    made = league()
    told(made, main_1=(4, 4.0), main_2=(4, 3.0), main_3=(4, 2.0))
    members = made.lineup(Report("main"), 4000).payload.members
    assert members.count("main:3") / 4000 == pytest.approx(0.8, abs=0.03)
    assert "main:1" not in members


def test_the_oldest_are_forgotten() -> None:
    made = league(snapshots=2, max_snapshots=2)
    told(made, main_1=(4, 4.0), main_2=(4, 3.0))
    made.freeze("main", flat(3), 30)
    assert list(made.snapshots()) == ["main:2", "main:3"]
    assert {row["member"] for row in made.payoffs()} == {"main:2"}
    told(made, main_1=(1, 1.0))  # a result that comes late
    assert set(made.ratings()) == {"main", "main:2", "main:3"}


def judged(made: League, updates: int, player: str = "exploiter") -> Any:
    return made.judge(player, flat(updates), updates, updates, 10).payload


def test_an_exploiter_is_frozen_once_it_beats_the_main_players_and_begins_again() -> None:
    made = league({"main": "main", "exploiter": "main_exploiter"}, snapshots=1)
    told(made, "exploiter", main=(20, 14.0))
    assert judged(made, 9) == Verdict()  # 70% is not more than 70%
    assert made.chances("exploiter") == {"main": 1.0}
    told(made, "exploiter", main=(20, 20.0))  # 34 of 40
    assert judged(made, 4) == Verdict()  # before half the updates
    assert made.ratings()["exploiter"] > 1300
    assert judged(made, 5) == Verdict("exploiter:1", begins_again=True)
    assert made.snapshots("exploiter")["exploiter:1"].tolist() == [5, 5, 5]
    assert [row for row in made.payoffs() if row["player"] == "exploiter"] == []  # it is another now
    assert made.ratings()["exploiter"] == 1200
    assert made.ratings()["exploiter:1"] > 1300
    told(made, "exploiter", main=(19, 19.0))
    assert judged(made, 9) == Verdict()  # too few games to tell
    assert judged(made, 10) == Verdict("exploiter:2", begins_again=True)  # however it stands


def test_a_league_exploiter_beats_all_snapshots_and_begins_again_at_times() -> None:
    made = league({"main": "main", "other": "league_exploiter"}, snapshots=2)
    told(made, "other", main_1=(30, 30.0))
    assert judged(made, 9, "other") == Verdict()  # main:2 it has not met
    told(made, "other", main_2=(30, 30.0))
    found = [judged(made, 10, "other") for _ in range(400)]
    assert [one.snapshot for one in found] == [f"other:{i}" for i in range(1, 401)]
    assert np.mean([one.begins_again for one in found]) == pytest.approx(0.25, abs=0.06)
    assert League({"main": "main", "other": "league_exploiter"}).judge("other", flat(1), 5, 5, 10).payload == Verdict()


def test_its_state_is_arrays_and_json_and_goes_on() -> None:
    made = league({"main": "main", "exploiter": "main_exploiter"}, decay=0.9)
    told(made, main_1=(4, 4.0), main_2=(4, 3.0), main_3=(4, 2.0))
    state = made.get_state()
    plain = json.loads(json.dumps({**state, "weights": {name: w.tolist() for name, w in state["weights"].items()}}))
    other = League({"main": "main", "exploiter": "main_exploiter"}, decay=0.9, seed=5)
    other.set_state(plain)
    for _ in range(3):
        told(made, main_2=(3, 1.0))
        told(other, main_2=(3, 1.0))
        assert made.lineup(Report("main"), 20).payload.members == other.lineup(Report("main"), 20).payload.members
    assert made.freeze("main", flat(4), 40).payload == other.freeze("main", flat(4), 40).payload == "main:4"
    assert made.ratings() == other.ratings()
    assert made.payoffs() == other.payoffs()
    np.testing.assert_array_equal(made.snapshots("main")["main:2"], other.snapshots("main")["main:2"])
    with pytest.raises(ValueError, match="no player 'exploiter' in this league; it has 'main'"):
        League({"main": "main"}).set_state(state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: League({}), r"a league needs players, whose names are without ':'; got \[\]"),
        (lambda: League({"a:1": "main"}), r"got \['a:1'\]"),
        (lambda: League({"a": "best"}), "matchmaking must be a Matchmaking or one of latest, uniform, .*got 'best'"),
        (lambda: League({"a": "main"}, decay=0.0), "decay must be above 0 and at most 1, got 0.0"),
        (lambda: League({"a": "main"}, hardness=0.0), "hardness must be above 0, got 0.0"),
        (lambda: League({"a": "main"}, max_snapshots=0), "max_snapshots must be at least 1, got 0"),
        (lambda: Matchmaking(), "one of latest, uniform, prioritized, forgotten, rivals must be above 0"),
        (lambda: Matchmaking(latest=-1.0), "latest must be at least 0, got -1.0"),
        (lambda: Matchmaking(latest=1.0, begin_again=0.5), "begin_again=0.5 is for exploiters: give exploiter=True"),
        (lambda: Matchmaking(latest=1.0, begin_again=2.0), "begin_again must be .*1, got 2.0"),
        (lambda: league().judge("min", flat(1), 1, 1, 1), "no player 'min' in this league; it has 'main'"),
        (lambda: league().chances("min"), "no player 'min' in this league; it has 'main'"),
    ],
)
def test_what_is_wrong_is_said(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
