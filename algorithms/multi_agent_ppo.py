"""PPO of several agents: a policy each or one for all, with own values or a central critic (arXiv:2103.01955)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from flowrl import ActorGroup, Flow, actor, actors, rl
from flowrl.algorithms import ppo
from flowrl.algorithms.collecting import check_policies
from flowrl.algorithms.ppo import PPOConfig
from flowrl.algorithms.several import OF_THE_MIX, OfItsName, check_fixed, names_of
from flowrl.failures import Ignore, Raise, Restart
from flowrl.numbers import check_fields
from flowrl.operators import AddAdvantages, ParallelRollouts, ReportMetrics, Summary, Union
from flowrl.rl.central_critic import CentralCriticLearner, CentralPPOLoss
from flowrl.rl.schedules import Rate, check_rate

SHARED = "shared"


@dataclass(frozen=True)
class MultiAgentPPOConfig:
    """The settings of PPO of several agents. With `critic="central"` it is MAPPO, or, of policies apart, PPO with
    central critics; with `critic="own"` independent PPO."""

    several_agents: ClassVar[bool] = True
    fixed_inside: ClassVar[Mapping[str, frozenset[str]]] = {"ppo": OF_THE_MIX | {"normalize_rewards"}}

    env: Any = "flowrl.rl.cartpoles:MultiAgentCartPole"
    """A factory of an environment of several agents, "package.module:Name", or a module such as
    "mpe2.simple_spread_v3"."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    policies: Literal["shared", "independent"] = "shared"
    """"shared": one policy that all agents play, of equal spaces. "independent": one each, of the agent's name."""
    critic: Literal["own", "central"] = "own"
    """"own": values of what an agent sees itself. "central": of the global state, the environment's `state()` or else
    all observations joined."""
    agent_ids: bool = True
    """Whether agents that share a policy see their own number."""
    critic_hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of a central critic."""
    critic_learning_rate: Rate | None = None
    """Adam's step size for a central critic; None: that of the policy."""
    num_workers: int = 2
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 4
    """Copies of the environment that a worker steps together."""
    unroll: int = 128
    """Steps of each environment in a fragment."""
    on_worker_failure: Restart | Ignore | Raise = Restart(3)  # noqa: RUF009  (frozen)
    """What the death of a rollout worker's process means: it is started again, left out, or the run stops."""
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(batch_steps=1000, learning_rate=2e-3, gae_lambda=0.95))
    """How each policy is made and trained; batch_steps are the environment's, in each of which all its agents act."""

    def __post_init__(self) -> None:
        check_fields(self, whole=("num_workers", "envs_per_worker", "unroll"))
        check_policies(self, on_worker_failure=(Restart, Ignore, Raise))
        check_fixed(self)
        for name, known in (("policies", ("shared", "independent")), ("critic", ("own", "central"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        if self.critic_learning_rate is not None:
            check_rate("critic_learning_rate", self.critic_learning_rate, above_0=True)
        if self.critic == "central":
            for name in ("clip_value", "value_cost"):
                if getattr(self.ppo, name) != getattr(PPOConfig(), name):
                    raise ValueError(
                        f"ppo.{name} has no part beside a central critic, which has an optimizer of its own"
                    )
            if self.ppo.policy.recurrent is not None:
                raise ValueError("a central critic sees the global state and keeps no memory: leave recurrent out")
        elif self.critic_learning_rate is not None:
            raise ValueError("critic_learning_rate is for critic='central'; values of one's own go with the policy's")

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: MultiAgentPPOConfig) -> Flow[Summary]:
    """PPO's tail once for each policy, behind the same rollouts."""
    agents = names_of(cfg.env, cfg.env_kwargs) if cfg.policies == "independent" else {}
    ids = tuple(agents.values()) or (SHARED,)
    central = cfg.critic == "central"
    workers = actors(
        rl.MultiAgentWorker, cfg.env, dict.fromkeys(ids, cfg.ppo.policy), OfItsName() if agents else None,
        steps=cfg.unroll, num_envs=cfg.envs_per_worker, env_kwargs=cfg.env_kwargs,
        agent_ids=cfg.agent_ids and not agents, joint=central, count=cfg.num_workers, name="workers",
    )  # fmt: skip
    rollouts = ParallelRollouts(workers)
    if not central:
        rollouts = rollouts.for_each(AddAdvantages(cfg.ppo.discount, cfg.ppo.gae_lambda))
    learners = {name: learner_of(cfg, name, "learner" if len(ids) == 1 else f"learner_{name}") for name in ids}
    parts = rollouts.gather_sync(on_failure=cfg.on_worker_failure).by_policy(*ids)
    trained = [part.through(ppo.learn(cfg.ppo, learners[name], workers)) for name, part in zip(ids, parts, strict=True)]
    whole = trained[0] if len(trained) == 1 else Union(trained, mode="round_robin")
    return whole.for_each(ReportMetrics())


def learner_of(cfg: MultiAgentPPOConfig, policy_id: str, name: str) -> ActorGroup[Any]:
    """The learner of one policy."""
    if cfg.critic == "own":
        return ppo.learner_of(cfg.ppo, name=name, policy_id=policy_id)
    return actor(
        CentralCriticLearner, cfg.ppo.policy, CentralPPOLoss(cfg.ppo.clip, cfg.ppo.entropy_cost),
        discount=cfg.ppo.discount, gae_lambda=cfg.ppo.gae_lambda, critic_hidden=cfg.critic_hidden,
        critic_learning_rate=cfg.critic_learning_rate, learning_rate=cfg.ppo.learning_rate,
        max_grad_norm=cfg.ppo.max_grad_norm, target_kl=cfg.ppo.target_kl, policy_id=policy_id, name=name,
    )  # fmt: skip
