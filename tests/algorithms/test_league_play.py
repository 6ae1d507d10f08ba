"""Self-play in a league: the graph, its messages, and that it learns what a game's equilibrium is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local, Ray, actor
from flowrl.algorithms import LeaguePlayConfig, PPOConfig, league_play
from flowrl.cli import main
from flowrl.errors import GraphError
from flowrl.operators import PlayAgainst, SnapshotToLeague
from flowrl.rl import League, LeagueWorker, Learner, PolicySpec, losses
from flowrl.rl.games import (
    Kuhn,
    RockPaperScissors,
    average_strategy,
    nash_conv,
    policy_strategies,
    uniform_strategy,
)
from flowrl.rl.schedules import Linear
from flowrl.testing import Delayed

TINY = PPOConfig(policy=PolicySpec(hidden=(8,)), batch_steps=60, epochs=1, minibatch=64, entropy_cost=0.05)
SMALL = LeaguePlayConfig(envs_per_worker=4, unroll=16, snapshot_every_updates=2, players={"main": "uniform"}, ppo=TINY)


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Local | Ray:
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return Ray() if request.param == "ray" else Local()


def test_workers_play_snapshots_and_the_league_hears_of_it(backend: Local | Ray) -> None:
    with flowrl.run(SMALL.graph(), backend, seed=0) as run:
        last = run.step(12)[-1]
        league = run.actors["league"][0]
        snapshots = league.ask("snapshots", "main").result()
        payoffs = league.ask("payoffs").result()
        report = run.actors["main_workers"][0].ask("match_report").result()
        newest = run.policy_state("main")["weights"]
    assert list(snapshots) == [f"main:{i}" for i in range(1, 7)]
    assert not np.array_equal(snapshots["main:1"], snapshots["main:6"])
    np.testing.assert_array_equal(snapshots["main:6"], newest)
    assert {row["member"] for row in payoffs} <= set(snapshots)
    assert sum(row["games"] for row in payoffs) > 100
    assert set(report.has) <= set(snapshots)
    assert last.learner["main"]["snapshots"] == 5  # the sixth is on its way
    assert last.learner["main"]["rating"] == pytest.approx(1200, abs=200)
    assert 0 < last.learner["main"]["win_rate"] < 1


def test_a_league_of_main_player_and_exploiter() -> None:
    players = {"main": "main", "exploiter": "main_exploiter"}
    cfg = replace(SMALL, players=players, num_workers=2, exploiter_updates=2)
    with flowrl.run(cfg.graph(), Local(), seed=0) as run:
        last = run.step(16)[-1]
        league = run.actors["league"][0]
        payoffs = league.ask("payoffs").result()
        ratings = league.ask("ratings").result()
    met = {(row["player"], row["member"].split(":")[0]) for row in payoffs}
    assert met == {("main", "main"), ("main", "exploiter"), ("exploiter", "main")}
    assert ("exploiter", "main") in {(row["player"], row["member"]) for row in payoffs}  # as it is now
    assert set(last.learner) == {"main", "exploiter"}
    assert {"main:1", "main:4", "exploiter:1", "exploiter:4"} <= set(ratings)


def test_an_exploiter_begins_again_and_plays_its_first_weights_at_once() -> None:
    cfg = replace(SMALL, players={"main": "main", "exploiter": "main_exploiter"}, exploiter_updates=3)
    versions: list[int] = []
    flow = cfg.graph().tap(lambda summary, ctx: versions.append(ctx.policy_version))
    with flowrl.run(flow, Local(), seed=0) as run:
        first = None
        for _ in range(14):
            run.step()
            state = run.policy_state("exploiter")
            first = state["weights"] if first is None else first
            if state["version"] == 4:
                break
        np.testing.assert_array_equal(state["weights"], first)  # as before its first batch
        snapshots = run.actors["league"][0].ask("snapshots", "exploiter").result()
        assert list(snapshots) == ["exploiter:1"]
        assert not np.array_equal(snapshots["exploiter:1"], first)
        run.step(2)
        assert run.policy_state("exploiter")["version"] == 5
        assert versions[1::2] == [0, 1, 2, 4]  # what its batches were made with: the fourth with the first weights


def test_the_same_seed_gives_the_same_numbers_on_every_backend(backend: Local | Ray) -> None:
    def weights(where: Any) -> Any:
        with flowrl.run(league_play.graph(SMALL), where, seed=3) as run:
            run.step(6)
            return run.policy_state("main")["weights"], run.actors["league"][0].ask("ratings").result()

    one, ratings = weights(Local())
    other, again = weights(backend)
    np.testing.assert_array_equal(one, other)
    assert ratings == again
    assert "deterministic" in SMALL.graph().explain()


def test_a_run_keeps_no_calls_of_lineups() -> None:
    with flowrl.run(SMALL.graph(), Local(), seed=0) as run:
        run.step(3)
        before = len(run._engine.calls.pending)
        run.step(5)
        assert len(run._engine.calls.pending) == before


def test_a_worker_that_died_is_given_a_lineup_first() -> None:
    died: list[str] = []

    def die(name: str, number: int) -> bool:
        if name == "main_workers[0]" and number == 11 and not died:
            died.append(name)
            return True
        return False

    with flowrl.run(SMALL.graph(), Delayed(0, die=die), seed=0) as run:
        run.step(8)
        groups = run.stats().groups
        report = run.actors["main_workers"][0].ask("match_report").result()
    assert died
    assert groups["main_workers"].deaths == 1
    assert report.has


def test_groups_of_something_else_are_refused() -> None:
    league = actor(League, {"main": "main"}, name="league")
    workers = actor(LeagueWorker, "flowrl.rl.games:kuhn_poker", "main", PolicySpec(), name="workers")
    learner = actor(Learner, PolicySpec(), losses.PPOLoss(), name="learner")
    with pytest.raises(ValueError, match="the learner 'learner' needs policy_id=, the id of its player in the league"):
        SnapshotToLeague(league, learner)
    with pytest.raises(GraphError, match=r"PlayAgainst: League \(group 'league'\) has no method set_lineup\(\)"):
        PlayAgainst(league, league)
    with pytest.raises(GraphError, match=r"SnapshotToLeague: LeagueWorker .* has no method freeze\(\)"):
        SnapshotToLeague(workers, learner)
    with pytest.raises(ValueError, match="opponents must be at least 1, got 0"):
        PlayAgainst(league, workers, opponents=0)
    with pytest.raises(ValueError, match=r"ppo.num_workers=4 has no part in a league: environments and workers are"):
        LeaguePlayConfig(ppo=PPOConfig(num_workers=4))
    with pytest.raises(ValueError, match=r"players: 'main': matchmaking must be .* got 'mian'"):
        LeaguePlayConfig(players={"main": "mian"})
    with pytest.raises(ValueError, match=r"players must be a mapping of ids to matchmakings, .* got \['main'\]"):
        League(["main"])  # type: ignore[arg-type]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--envs-per-worker", "4", "--unroll", "16", "--ppo.batch-steps", "60", "--ppo.epochs", "1"]
    small += ["--total-steps", "300", "--backend", "local", "--seed", "0"]
    assert main(["train", "league_play", "--players", "main=main", "exploiter=main_exploiter", *small]) == 0
    assert "PlayAgainst" in capsys.readouterr().out


def converged(cfg: LeaguePlayConfig, game: Any, rounds: int) -> tuple[float, float]:
    """NashConv of the league's average strategy, later snapshots counting more, and of uniform play."""
    with flowrl.run(cfg.graph(), Local(), seed=0) as run:
        run.step(rounds)
        snapshots = run.actors["league"][0].ask("snapshots", "main").result()
    found = policy_strategies(game, cfg.ppo.policy, snapshots.values())
    return nash_conv(game, average_strategy(game, found, range(1, len(found) + 1))), nash_conv(
        game, uniform_strategy(game)
    )


def test_kuhn_poker_is_learned() -> None:
    ppo = replace(LeaguePlayConfig().ppo, batch_steps=900, entropy_cost=Linear(0.5, 0.1, 16_000))
    mixed, uniform = converged(LeaguePlayConfig(envs_per_worker=32, ppo=ppo), Kuhn(), 16)
    assert uniform == pytest.approx(11 / 12)
    assert mixed < 0.4


def test_rock_paper_scissors_stays_near_a_third_each() -> None:
    ppo = replace(LeaguePlayConfig().ppo, batch_steps=900, entropy_cost=0.3, learning_rate=5e-4)
    cfg = LeaguePlayConfig(env="flowrl.rl.games:rock_paper_scissors", envs_per_worker=32, ppo=ppo)
    mixed, _ = converged(cfg, RockPaperScissors(), 10)
    assert mixed < 0.2
