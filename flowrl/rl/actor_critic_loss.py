"""The loss of an advantage actor-critic."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flowrl.numbers import check_fields
from flowrl.rl.loss import LossOut
from flowrl.rl.policy import Policy
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch


@dataclass(frozen=True)
class ActorCriticLoss:
    """The policy gradient with a value loss and an entropy bonus of A3C and A2C (arXiv:1602.01783, section 4).

    loss = −mean(A · log π) + value_cost·mean((V − return)²) − entropy_cost·mean(H)

    For the policy that acted: A and return are those of AddAdvantages, and nothing corrects for an older policy.

    value_cost: weight of the mean squared error of the values. There is no further 1/2 in it.
    entropy_cost: weight of the entropy bonus; a number or a schedule (H as PPOLoss has it).

    Metrics: policy_loss, value_loss, entropy, and the present value of entropy_cost if it is a schedule.
    """

    value_cost: float = 0.5
    entropy_cost: Rate = 0.0

    needs = frozenset({"obs", "actions", "advantages", "returns"})

    def __post_init__(self) -> None:
        check_fields(self, not_negative=("value_cost",))
        check_rate("entropy_cost", self.entropy_cost, above_0=False)

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of a batch."""
        entropy_cost = value_at(self.entropy_cost, now.env_steps, "entropy_cost")
        out = net.forward(batch)
        logp_B, entropy_B = out.dist.logp_and_entropy(batch["actions"])
        policy_loss = -(batch["advantages"] * logp_B).mean()
        value_loss = (out.values - batch["returns"]).square().mean()
        entropy = entropy_B.mean()
        metrics: dict[str, Tensor | float] = {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            **({"entropy_cost": entropy_cost} if callable(self.entropy_cost) else {}),
        }
        return LossOut(policy_loss + self.value_cost * value_loss - entropy_cost * entropy, metrics)
