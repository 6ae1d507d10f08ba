"""QMIX (arXiv:1803.11485): a team learns one value, mixed of its agents' values so that each may act by its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from flowrl import ActorGroup, Flow, actor, actors, rl
from flowrl.algorithms import dqn
from flowrl.algorithms.collecting import check_policies
from flowrl.algorithms.dqn import DQNConfig
from flowrl.algorithms.replaying import replay_of
from flowrl.algorithms.several import OF_THE_MIX, check_fixed
from flowrl.failures import Ignore, Raise, Restart
from flowrl.numbers import check_fields
from flowrl.operators import JoinAgents, NStep, ParallelRollouts, ReportMetrics, Summary
from flowrl.rl.qmix_loss import QMIXLoss
from flowrl.rl.team_learner import TeamLearner

SHARED = "shared"


@dataclass(frozen=True)
class QMIXConfig:
    """The settings of QMIX. All agents act at every step, have equal spaces with Discrete actions, share a policy, and
    are told one from the other by their number."""

    several_agents: ClassVar[bool] = True
    fixed_inside: ClassVar[Mapping[str, frozenset[str]]] = {"dqn": OF_THE_MIX | {"huber"}}

    env: Any = "flowrl.rl.cartpoles:MultiAgentCartPole"
    """A factory of an environment of several agents, "package.module:Name", or a module of PettingZoo's kind."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    mixing: Literal["qmix", "vdn"] = "qmix"
    """"qmix": a mixing network that sees the global state, the environment's `state()` or else all observations joined.
    "vdn": the sum of the agents' values (arXiv:1706.05296)."""
    embedding: int = 32
    """Width of the mixing network."""
    team_reward: Literal["mean", "sum"] = "mean"
    """What of the agents' rewards is the team's: "mean", where each is given the team's (it counts once), or "sum",
    where each is given its part."""
    agent_ids: bool = True
    """Whether agents see their own number."""
    num_workers: int = 1
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 8
    """Copies of the environment that a worker steps together."""
    unroll: int = 16
    """Steps of each environment in a fragment."""
    on_worker_failure: Restart | Ignore | Raise = Restart(3)  # noqa: RUF009  (frozen)
    """What the death of a rollout worker's process means: it is started again, left out, or the run stops."""
    dqn: DQNConfig = field(default_factory=lambda: DQNConfig(samples_per_step=8.0, n_step=1))
    """How the policy is made and trained, on transitions of the whole team from replay."""

    def __post_init__(self) -> None:
        check_fields(self, whole=("embedding", "num_workers", "envs_per_worker", "unroll"))
        check_policies(self, on_worker_failure=(Restart, Ignore, Raise))
        check_fixed(self)
        for name, known in (("mixing", ("qmix", "vdn")), ("team_reward", ("mean", "sum"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        if self.dqn.policy.atoms is not None:
            raise ValueError(f"QMIX learns mean returns: leave atoms={self.dqn.policy.atoms} out of its policy")

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: QMIXConfig) -> Flow[Summary]:
    """DQN's tail behind rows of the whole team."""
    workers = actors(
        rl.MultiAgentWorker, cfg.env, {SHARED: cfg.dqn.policy}, None, steps=cfg.unroll, num_envs=cfg.envs_per_worker,
        env_kwargs=cfg.env_kwargs, next_obs=True, agent_ids=cfg.agent_ids, joint=True, count=cfg.num_workers,
        name="workers",
    )  # fmt: skip
    replay = replay_of(cfg.dqn, prioritized=cfg.dqn.prioritized)
    rollouts = (
        ParallelRollouts(workers)
        .for_each(JoinAgents(cfg.team_reward))
        .for_each(NStep(cfg.dqn.n_step, cfg.dqn.discount))
        .gather_async(on_failure=cfg.on_worker_failure)
    )
    return rollouts.through(dqn.learn(cfg.dqn, learner_of(cfg), replay, workers)).for_each(ReportMetrics())


def learner_of(cfg: QMIXConfig, *, name: str = "learner") -> ActorGroup[Any]:
    """The learner of a config."""
    return actor(
        TeamLearner, cfg.dqn.policy, QMIXLoss(cfg.dqn.double), mixing=cfg.mixing, embedding=cfg.embedding,
        learning_rate=cfg.dqn.learning_rate, max_grad_norm=cfg.dqn.max_grad_norm, policy_id=SHARED, name=name,
    )  # fmt: skip
