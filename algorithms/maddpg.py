"""MADDPG (arXiv:1706.02275): deterministic actors that act apart, each trained by a critic that sees all agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flowrl import Flow, actor, actors, rl
from flowrl.algorithms import continuous
from flowrl.algorithms.collecting import check_policies
from flowrl.algorithms.ddpg import DDPGConfig
from flowrl.algorithms.replaying import replay_of
from flowrl.algorithms.several import OF_THE_MIX, OfItsName, check_fixed, names_of
from flowrl.failures import Ignore, Raise, Restart
from flowrl.numbers import check_fields
from flowrl.operators import JoinAgents, ParallelRollouts, ReportMetrics, Summary
from flowrl.rl.maddpg import MADDPGLearner


@dataclass(frozen=True)
class MADDPGConfig:
    """The settings of MADDPG. All agents act at every step, by Box actions between finite bounds; their spaces and
    their rewards may differ, so they may work together or against each other."""

    several_agents: ClassVar[bool] = True
    fixed_inside: ClassVar[Mapping[str, frozenset[str]]] = {"ddpg": OF_THE_MIX | {"n_step", "prioritized"}}

    env: Any = "flowrl.rl.cartpoles:MultiAgentPendulum"
    """A factory of an environment of several agents, "package.module:Name", or a module such as
    "mpe2.simple_spread_v3", which takes env_kwargs continuous_actions=true."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    critic_hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of the critics."""
    num_workers: int = 1
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 4
    """Copies of the environment that a worker steps together."""
    unroll: int = 8
    """Steps of each environment in a fragment."""
    on_worker_failure: Restart | Ignore | Raise = Restart(3)  # noqa: RUF009  (frozen)
    """What the death of a rollout worker's process means: it is started again, left out, or the run stops."""
    ddpg: DDPGConfig = field(
        default_factory=lambda: DDPGConfig(samples_per_step=64.0, discount=0.95, learning_rate=1e-3, tau=0.01)
    )
    """How each agent's policy is made and trained, on steps of all agents from replay."""

    def __post_init__(self) -> None:
        check_fields(self, whole=("num_workers", "envs_per_worker", "unroll"))
        check_policies(self, on_worker_failure=(Restart, Ignore, Raise))
        check_fixed(self)
        if self.ddpg.policy.normalize_obs:
            raise ValueError("normalize_obs has no part in MADDPG: critics see observations as they are")

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: MADDPGConfig) -> Flow[Summary]:
    """DDPG's tail behind rows of all agents, with one learner for all."""
    ids = tuple(names_of(cfg.env, cfg.env_kwargs).values())
    workers = actors(
        rl.MultiAgentWorker, cfg.env, dict.fromkeys(ids, cfg.ddpg.policy), OfItsName(), steps=cfg.unroll,
        num_envs=cfg.envs_per_worker, env_kwargs=cfg.env_kwargs, next_obs=True, joint=True, count=cfg.num_workers,
        name="workers",
    )  # fmt: skip
    learner = actor(
        MADDPGLearner, cfg.ddpg.policy, policy_id=ids, discount=cfg.ddpg.discount, critic_hidden=cfg.critic_hidden,
        learning_rate=cfg.ddpg.learning_rate, critic_learning_rate=cfg.ddpg.critic_learning_rate,
        max_grad_norm=cfg.ddpg.max_grad_norm, name="learner",
    )  # fmt: skip
    replay = replay_of(cfg.ddpg, prioritized=False)
    rollouts = (
        ParallelRollouts(workers).for_each(JoinAgents(stack=False)).gather_async(on_failure=cfg.on_worker_failure)
    )
    return rollouts.through(continuous.learn(cfg.ddpg, learner, replay, workers)).for_each(ReportMetrics())
