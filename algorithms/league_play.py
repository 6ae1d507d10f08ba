"""Self-play in a league: each player is trained by PPO against snapshots of itself and of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flowrl import ActorGroup, Flow, Ignore, Raise, Restart, actor, actors, rl
from flowrl.algorithms import ppo
from flowrl.algorithms.collecting import check_policies
from flowrl.algorithms.ppo import PPOConfig
from flowrl.algorithms.several import OF_THE_MIX, check_fixed
from flowrl.numbers import check_fields
from flowrl.operators import (
    AddAdvantages,
    ParallelRollouts,
    PlayAgainst,
    ReportMetrics,
    SendWeights,
    SnapshotToLeague,
    Summary,
    Union,
)
from flowrl.operators.training import TrainInfo
from flowrl.rl.matchmaking import matchmaking_of
from flowrl.rl.schedules import Linear


@dataclass(frozen=True)
class LeaguePlayConfig:
    """The settings of a league. What concerns environments and workers is said here; `ppo` says how every player's
    policy is made and trained."""

    several_agents: ClassVar[bool] = True
    fixed_inside: ClassVar[Mapping[str, frozenset[str]]] = {"ppo": OF_THE_MIX | {"normalize_rewards"}}

    env: Any = "flowrl.rl.games:kuhn_poker"
    """A factory of an environment of several agents, "package.module:Name", or a module such as
    "pettingzoo.classic.connect_four_v3"; its agents have the same spaces."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    players: Mapping[str, str] = field(default_factory=lambda: {"main": "mixed"})
    """By id, how a player's opponents are drawn: "latest" (itself), "uniform" (fictitious self-play), "mixed" (half
    of each), "prioritized", or AlphaStar's "main", "main_exploiter" and "league_exploiter"; in Python also a
    `flowrl.rl.Matchmaking`."""
    snapshot_every_updates: int = 2
    """A main player is frozen after so many batches, again and again."""
    exploiter_updates: int = 40
    """An exploiter is frozen after so many batches at the latest, from half of them on as soon as it wins more than 70%
    of its games against all whom it looks for; a main exploiter then begins again, of league exploiters one in four."""
    opponents: int = 16
    """How many opponents are drawn for a worker at a time."""
    num_workers: int = 1
    """Rollout workers of each player: the shards of the graph."""
    envs_per_worker: int = 64
    """Copies of the environment that a worker steps together."""
    unroll: int = 32
    """Steps of each environment in a fragment."""
    on_worker_failure: Restart | Ignore | Raise = Restart(3)  # noqa: RUF009  (frozen)
    """What the death of a rollout worker's process means: it is started again, left out, or the run stops."""
    on_league_failure: Restart | Raise = Restart(3)  # noqa: RUF009
    """What the death of the league's process means: it goes on from a snapshot of its state, or the run stops."""
    ppo: PPOConfig = field(
        default_factory=lambda: PPOConfig(
            batch_steps=2000, epochs=4, learning_rate=Linear(2e-3, 1e-4, 300_000), discount=1.0, gae_lambda=1.0,
            entropy_cost=Linear(0.5, 0.13, 150_000),
        )
    )  # fmt: skip
    """How a player is trained; batch_steps are the environment's. A large entropy bonus that is lowered keeps self-play
    from going round in circles (arXiv:2206.05825)."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            whole=(
                "num_workers", "envs_per_worker", "unroll", "snapshot_every_updates", "exploiter_updates", "opponents",
            ),
        )  # fmt: skip
        check_policies(self, on_worker_failure=(Restart, Ignore, Raise), on_league_failure=(Restart, Raise))
        check_fixed(self, "a league")
        for name, given in self.players.items():
            try:
                matchmaking_of(given)
            except ValueError as error:
                raise ValueError(f"players: {name!r}: {error}") from None

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: LeaguePlayConfig) -> Flow[Summary]:
    """A branch for every player, behind which stands one league."""
    league = actor(rl.League, cfg.players, name="league", on_failure=cfg.on_league_failure)
    branches = [player(cfg, name, league) for name in cfg.players]
    trained = branches[0] if len(branches) == 1 else Union(branches)
    return trained.for_each(ReportMetrics())


def player(cfg: LeaguePlayConfig, name: str, league: ActorGroup[rl.League]) -> Flow[TrainInfo]:
    """One player: its games against members of the league, PPO's tail, and what it tells the league."""
    workers = actors(
        rl.LeagueWorker, cfg.env, name, cfg.ppo.policy, players=tuple(cfg.players), steps=cfg.unroll,
        num_envs=cfg.envs_per_worker, env_kwargs=cfg.env_kwargs, count=cfg.num_workers, name=f"{name}_workers",
    )  # fmt: skip
    learner = ppo.learner_of(cfg.ppo, policy_id=name, name=f"{name}_learner")
    trained = (
        ParallelRollouts(workers)
        .for_each(AddAdvantages(cfg.ppo.discount, cfg.ppo.gae_lambda, policy=name))
        .gather_sync(on_failure=cfg.on_worker_failure)
        .through(ppo.learn(cfg.ppo, learner, workers))
    )
    if matchmaking_of(cfg.players[name]).exploiter:
        told = trained.for_each(
            SnapshotToLeague(league, learner, every_updates=cfg.exploiter_updates, exploiter=True)
        ).for_each(SendWeights(learner, to=workers))  # those that it begins again with
    else:
        told = trained.for_each(SnapshotToLeague(league, learner, every_updates=cfg.snapshot_every_updates))
    return told.for_each(PlayAgainst(league, workers, opponents=cfg.opponents))
