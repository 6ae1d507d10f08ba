"""PPO and DQN side by side: two policies in one environment, each trained by its own algorithm's tail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flowrl import Flow, actors, rl
from flowrl.algorithms import dqn, ppo
from flowrl.algorithms.collecting import check_policies
from flowrl.algorithms.dqn import DQNConfig
from flowrl.algorithms.ppo import PPOConfig
from flowrl.algorithms.replaying import replay_of
from flowrl.algorithms.several import OF_THE_MIX, check_fixed
from flowrl.failures import Ignore, Raise, Restart
from flowrl.numbers import check_fields
from flowrl.operators import AddAdvantages, NStep, ParallelRollouts, ReportMetrics, Summary, Union
from flowrl.operators.training import TrainInfo


@dataclass(frozen=True)
class PPOAndDQNConfig:
    """The settings of the mix. What concerns environments and workers is said here; `ppo` and `dqn` say how each policy
    is made and trained. The defaults bring both to 450 and more on four cart-poles in some 50,000 environment steps."""

    several_agents: ClassVar[bool] = True
    fixed_inside: ClassVar[Mapping[str, frozenset[str]]] = {
        "ppo": OF_THE_MIX | {"normalize_rewards"},
        "dqn": OF_THE_MIX,
    }

    env: Any = "flowrl.rl.cartpoles:MultiAgentCartPole"
    """A factory of an environment of several agents, "package.module:Name", or a module such as
    "mpe2.simple_spread_v3"."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    env_options: rl.EnvOptions = field(default_factory=rl.EnvOptions)
    """What an environment's fault means: on_fault, env_timeout_s, crash_dir. The other options are for one agent."""
    dqn_agents: tuple[str, ...] = ("agent_2", "agent_3")
    """The agents that play the policy of DQN; all others play that of PPO."""
    num_workers: int = 2
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 4
    """Copies of the environment that a worker steps together."""
    unroll: int = 128
    """Steps of each environment in a fragment."""
    on_worker_failure: Restart | Ignore | Raise = Restart(3)  # noqa: RUF009  (frozen)
    """What the death of a rollout worker's process means: it is started again, left out, or the run stops."""
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(batch_steps=1900, learning_rate=2e-3, gae_lambda=0.95))
    """How PPO's policy is made and trained, and what its learner's death means; batch_steps are the environment's, in
    each of which all its agents act."""
    dqn: DQNConfig = field(default_factory=lambda: DQNConfig(samples_per_step=8.0))
    """How DQN's policy is made and trained; samples_per_step and min_size count its agents' steps."""

    def __post_init__(self) -> None:
        check_fields(self, whole=("num_workers", "envs_per_worker", "unroll"))
        check_policies(self, on_worker_failure=(Restart, Ignore, Raise))
        check_fixed(self)

    def policy_of(self, agent: Any, episode: Any) -> str:
        """Who plays which policy."""
        return "dqn" if agent in self.dqn_agents else "ppo"

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: PPOAndDQNConfig) -> Flow[Summary]:
    """Both tails behind the same rollouts."""
    workers = actors(
        rl.MultiAgentWorker, cfg.env, {"ppo": cfg.ppo.policy, "dqn": cfg.dqn.policy}, cfg.policy_of, steps=cfg.unroll,
        num_envs=cfg.envs_per_worker, env_kwargs=cfg.env_kwargs, env_options=cfg.env_options, next_obs=True,
        count=cfg.num_workers, name="workers",
    )  # fmt: skip
    ppo_learner = ppo.learner_of(cfg.ppo, policy_id="ppo", name="ppo_learner")
    dqn_learner = dqn.learner_of(cfg.dqn, policy_id="dqn", name="dqn_learner")
    replay = replay_of(cfg.dqn, prioritized=cfg.dqn.prioritized)
    for_ppo, for_dqn = (
        ParallelRollouts(workers)
        .for_each(AddAdvantages(cfg.ppo.discount, cfg.ppo.gae_lambda, policy="ppo"))
        .for_each(NStep(cfg.dqn.n_step, cfg.dqn.discount, policy="dqn"))
        .gather_async(on_failure=cfg.on_worker_failure)
        .by_policy("ppo", "dqn")
    )
    trained: Flow[TrainInfo] = Union(
        [
            for_ppo.through(ppo.learn(cfg.ppo, ppo_learner, workers)),
            for_dqn.through(dqn.learn(cfg.dqn, dqn_learner, replay, workers)),
        ],
        mode="async",
    )
    return trained.for_each(ReportMetrics())
