"""The loss of a team whose value is mixed of its agents' values (QMIX; summed: VDN)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flowrl.rl.distributions import MASKED
from flowrl.rl.heads import QHead
from flowrl.rl.loss import LossOut
from flowrl.rl.mixing import TeamValues
from flowrl.rl.observations import NEXT_MASK
from flowrl.rl.policy import Policy, map_obs
from flowrl.rl.q_losses import COLUMNS
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch


@dataclass(frozen=True)
class QMIXLoss:
    """Q-learning of a team's value (arXiv:1803.11485, equation 6; arXiv:1706.05296 where the values are summed).

    loss = mean(w · ½ δ²), δ = r + discounts · Q'_tot(s', q') − Q_tot(s, q), q the agents' values of their actions and
    q' those of their best next ones by the target, w importance weights if there are any.

    double: an agent's best next action is the one of the policy's own Q; otherwise of the target's. Either way only
        among those that may be taken.

    Rows are `JoinAgents`': an agent that is not alive has the value 0. per_row["priorities"] is |δ|. Metrics: q (the
    mean of Q_tot), td_error (of |δ|).
    """

    double: bool = True

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it reads."""
        return COLUMNS | {"alive", "next_alive", "global_state", "next_global_state"}

    def __call__(self, net: TeamValues, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of a batch."""
        alive_BK, next_alive_BK = batch["alive"], batch["next_alive"]
        with torch.no_grad():
            next_obs = batch.tree("next_obs")
            next_q_BKA = agents_q(net.policy, next_obs, next_alive_BK, of_target=True)
            chooser_BKA = agents_q(net.policy, next_obs, next_alive_BK) if self.double else next_q_BKA
            mask_BKA = batch.get(NEXT_MASK)
            best_BK = (chooser_BKA if mask_BKA is None else chooser_BKA.masked_fill(~mask_BKA, MASKED)).argmax(-1)
            next_total_B = net.total(
                chosen(next_q_BKA, best_BK, next_alive_BK), batch["next_global_state"], of_target=True
            )
            target_B = torch.addcmul(batch["rewards"], batch["discounts"], next_total_B)
        q_BKA = agents_q(net.policy, batch.tree("obs"), alive_BK)
        total_B = net.total(chosen(q_BKA, batch["actions"], alive_BK), batch["global_state"])
        error_B = target_B - total_B
        squares_B = error_B.square()
        weights_B = batch.get("weights")
        loss = 0.5 * (squares_B if weights_B is None else squares_B * weights_B).mean()
        size_B = error_B.detach().abs()
        return LossOut(loss, {"q": total_B.detach().mean(), "td_error": size_B.mean()}, {"priorities": size_B})


def agents_q(policy: Policy, obs: Any, alive_BK: Tensor, *, of_target: bool = False) -> Tensor:
    """Q (B, K, A) of observations (B, K, ...) by the policy that the agents share, or by its target."""
    head = policy.head
    if not isinstance(head, QHead) or head.support is not None:
        raise ValueError(f"a team's values need PolicySpec(head='q') without atoms, got {policy.spec}")
    rows = map_obs(lambda x: x.flatten(0, 1), obs)
    outputs = policy.outputs_of_target(rows) if of_target else policy.outputs(rows)
    return head.q(outputs)[0].unflatten(0, alive_BK.shape)


def chosen(q_BKA: Tensor, actions_BK: Tensor, alive_BK: Tensor) -> Tensor:
    """The values (B, K) of the agents' actions; 0 of those that are not alive."""
    q_BK = q_BKA.gather(-1, actions_BK.unsqueeze(-1)).squeeze(-1)
    return torch.where(alive_BK, q_BK, 0.0)
