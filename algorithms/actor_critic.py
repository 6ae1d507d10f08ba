"""What A2C and A3C have in common: settings, and shards that give gradients."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl import ActorGroup, ParallelFlow, actor, rl
from flowrl.algorithms.collecting import CollectingConfig, check_head
from flowrl.numbers import check_fields
from flowrl.operators import AddAdvantages, ComputeGradients, ParallelRollouts
from flowrl.rl.gradient_batch import Gradients
from flowrl.rl.schedules import Rate, check_rate


@dataclass(frozen=True)
class ActorCriticConfig(CollectingConfig):
    """The settings that A2C and A3C share."""

    unroll: int = 20
    """Steps of each environment in a fragment, of which one gradient is computed."""
    microbatch: int | None = None
    """What of a fragment goes through the network at once (rows, of a recurrent policy sequences); the gradient is
    accumulated and stays the same."""
    learning_rate: Rate = 1e-3
    """Adam's step size: a number, or a schedule over environment steps such as Linear(1e-3, 0, 500_000)."""
    discount: float = 0.99
    """γ, of future rewards."""
    gae_lambda: float = 1.0
    """λ of generalized advantage estimation; 1, as in the paper, sums all the rewards that a fragment has."""
    value_cost: float = 0.5
    """Weight of the value loss, the mean squared error of the returns."""
    entropy_cost: Rate = 0.01
    """Weight of the entropy bonus; a number or a schedule."""
    max_grad_norm: float = 0.5
    """The gradient's global norm is clipped to it, once it is averaged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head(self.policy, "actor_critic")
        check_fields(
            self,
            whole=() if self.microbatch is None else ("microbatch",),
            positive=("max_grad_norm",),
            not_negative=("value_cost",),
            fraction=("discount", "gae_lambda"),
        )
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("entropy_cost", self.entropy_cost, above_0=False)


def loss_of(cfg: ActorCriticConfig) -> rl.losses.ActorCriticLoss:
    """What is minimized."""
    return rl.losses.ActorCriticLoss(cfg.value_cost, cfg.entropy_cost)


def learner_of(cfg: ActorCriticConfig) -> ActorGroup[rl.Learner]:
    """The learner of a config, which applies gradients."""
    return actor(
        rl.Learner, cfg.policy, loss_of(cfg), learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm,
        name="learner",
    )  # fmt: skip


def gradients_of(cfg: ActorCriticConfig, workers: ActorGroup[rl.RolloutWorker]) -> ParallelFlow[Gradients]:
    """A gradient of each fragment, computed by the worker that made it."""
    return (
        ParallelRollouts(workers)
        .for_each(AddAdvantages(cfg.discount, cfg.gae_lambda))
        .for_each(ComputeGradients(cfg.policy, loss_of(cfg), cfg.microbatch))
    )
