"""TD3 (arXiv:1802.09477): a deterministic actor, the lesser of two critics, targets smoothed by noise."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowrl import Flow, actor, rl
from flowrl.algorithms.collecting import check_head
from flowrl.algorithms.continuous import ContinuousConfig, graph_of, learn
from flowrl.numbers import check_fields
from flowrl.operators import Summary
from flowrl.rl.schedules import Linear, Rate

__all__ = ["TD3Config", "graph", "learn"]


@dataclass(frozen=True)
class TD3Config(ContinuousConfig):
    """The settings of TD3. The defaults are tuned to reach −200 on Pendulum-v1 in few steps on two cores; harder
    environments want wider networks (256, 256) and a smaller learning_rate (3e-4).

    All noise is Gaussian and in units of −1..1 between an action's bounds; how much of it workers add is the policy's
    exploration_noise.
    """

    policy: rl.PolicySpec = field(
        default_factory=lambda: rl.PolicySpec(head="deterministic_actor", hidden=(64, 64), activation="relu")
    )
    """What the policy is made of, of head "deterministic_actor": its actor, its critics, its exploration_noise."""
    policy_delay: int = 2
    """Updates of the critics for one of the actor and of the target."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target's actions."""
    noise_clip: float = 0.5
    """What that noise is clipped to."""
    tau: float = 0.02
    """How far the target moves towards the policy at each update of it, which is one of `policy_delay`."""
    epsilon: Rate = field(default_factory=lambda: Linear(1.0, 0.0, 1000))
    """Share of actions that are uniform between the bounds: a number, or a schedule over environment steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head(self.policy, "deterministic_actor")
        check_fields(self, whole=("policy_delay",), not_negative=("target_noise", "noise_clip"))

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: TD3Config) -> Flow[Summary]:
    """TD3: critics, and less often the actor, trained on what replay shards give."""
    learner = actor(
        rl.TD3Learner, cfg.policy, rl.losses.TD3Loss(cfg.target_noise, cfg.noise_clip),
        policy_delay=cfg.policy_delay, learning_rate=cfg.learning_rate,
        critic_learning_rate=cfg.critic_learning_rate, max_grad_norm=cfg.max_grad_norm, name="learner",
    )  # fmt: skip
    return graph_of(cfg, learner)
