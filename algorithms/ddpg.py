"""DDPG (arXiv:1509.02971): a deterministic actor that ascends its critic."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowrl import Flow, actor, rl
from flowrl.algorithms.collecting import check_head
from flowrl.algorithms.continuous import ContinuousConfig, graph_of, learn
from flowrl.operators import Summary
from flowrl.rl.schedules import Linear, Rate

__all__ = ["DDPGConfig", "graph", "learn"]


@dataclass(frozen=True)
class DDPGConfig(ContinuousConfig):
    """The settings of DDPG: TD3 with one critic, without delay and without noise on the target's actions.

    Exploration is Gaussian noise, uncorrelated in time, in units of −1..1 between an action's bounds: the policy's
    exploration_noise.
    """

    policy: rl.PolicySpec = field(
        default_factory=lambda: rl.PolicySpec(head="deterministic_actor", hidden=(64, 64), activation="relu", critics=1)
    )
    """What the policy is made of, of head "deterministic_actor": its actor, its critic, its exploration_noise."""
    epsilon: Rate = field(default_factory=lambda: Linear(1.0, 0.0, 1000))
    """Share of actions that are uniform between the bounds: a number, or a schedule over environment steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head(self.policy, "deterministic_actor")

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: DDPGConfig) -> Flow[Summary]:
    """DDPG: critic and actor trained on what replay shards give."""
    learner = actor(
        rl.TD3Learner, cfg.policy, rl.losses.TD3Loss(target_noise=0.0), policy_delay=1,
        learning_rate=cfg.learning_rate, critic_learning_rate=cfg.critic_learning_rate,
        max_grad_norm=cfg.max_grad_norm, name="learner",
    )  # fmt: skip
    return graph_of(cfg, learner)
