"""SAC (arXiv:1801.01290, 1812.05905), for Box actions and, in its exact form (arXiv:1910.07207), Discrete ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowrl import Flow, actor, rl
from flowrl.algorithms.collecting import check_head
from flowrl.algorithms.continuous import ContinuousConfig, graph_of, learn
from flowrl.numbers import check_finite
from flowrl.operators import Summary

__all__ = ["SACConfig", "graph", "learn"]


@dataclass(frozen=True)
class SACConfig(ContinuousConfig):
    """The settings of SAC. The defaults are tuned to reach −200 on Pendulum-v1 in few steps on two cores; harder
    environments want wider networks (256, 256) and a smaller learning_rate (3e-4)."""

    policy: rl.PolicySpec = field(
        default_factory=lambda: rl.PolicySpec(head="soft_actor", hidden=(64, 64), activation="relu")
    )
    """What the policy is made of, of head "soft_actor": its actor, its critics, α at the start."""
    target_entropy: float | None = None
    """The entropy that α is learned to keep, of actions between −1 and 1; None: −D for D numbers of an action, and
    0.98 · log A for A Discrete actions."""
    learn_temperature: bool = True
    """Whether α is learned; otherwise it stays as the policy's initial_temperature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head(self.policy, "soft_actor")
        if self.target_entropy is not None:
            check_finite("target_entropy", self.target_entropy)

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: SACConfig) -> Flow[Summary]:
    """SAC: actor, critics and temperature trained on what replay shards give."""
    learner = actor(
        rl.SACLearner, cfg.policy,
        rl.losses.SACLoss(cfg.target_entropy, learn_temperature=cfg.learn_temperature),
        learning_rate=cfg.learning_rate, critic_learning_rate=cfg.critic_learning_rate,
        max_grad_norm=cfg.max_grad_norm, name="learner",
    )  # fmt: skip
    return graph_of(cfg, learner)
