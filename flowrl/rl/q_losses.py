"""Losses of values of actions: DQN's of the mean return, C51's of its distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flowrl.rl.distributions import MASKED
from flowrl.rl.heads import QHead
from flowrl.rl.loss import LossOut
from flowrl.rl.observations import NEXT_MASK
from flowrl.rl.policy import Policy
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch

COLUMNS = frozenset({"obs", "actions", "rewards", "next_obs", "discounts"})


@dataclass(frozen=True)
class DQNLoss:
    """The loss of Q-learning with a target network (Mnih et al., Nature 2015).

    loss = mean(w · f(δ)), δ = r + discounts · Q'(s', a*) − Q(s, a), where w are importance weights if there are any.

    double: a* is the greatest by the policy's own Q (arXiv:1509.06461, equation 4); otherwise by the target's, Q'.
        Where the next state has an action mask, only among what may be taken there.
    huber: f is ½ δ² within ±1 and |δ| − ½ beyond; otherwise ½ δ² everywhere.

    `rewards` and `discounts` may be of several steps (`NStep`): the sum, and γ^k, 0 where the episode terminated.
    per_row["priorities"] is |δ|. Metrics: q (the mean of Q(s, a)), td_error (of |δ|).
    """

    double: bool = True
    huber: bool = True

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it reads."""
        return COLUMNS

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of a batch."""
        head = _head(net, "DQNLoss", atoms=False)
        with torch.no_grad():
            next_obs, mask_BA = batch.tree("next_obs"), next_mask(net, batch)
            next_q_BA, _ = head.q(net.outputs_of_target(next_obs))
            if self.double:
                best_B1 = _allowed(head.q(net.outputs(next_obs))[0], mask_BA).argmax(-1, keepdim=True)
                next_q_B = next_q_BA.gather(-1, best_B1).squeeze(-1)
            else:
                next_q_B = _allowed(next_q_BA, mask_BA).amax(-1)
            target_B = torch.addcmul(batch["rewards"], batch["discounts"], next_q_B)
        q_BA, _ = head.q(net.outputs(batch.tree("obs")))
        weights_B = batch.get("weights")
        loss, q, td_error, priorities_B = _TD.apply(q_BA, batch["actions"], target_B, weights_B, self.huber)
        return LossOut(loss, {"q": q, "td_error": td_error}, {"priorities": priorities_B})


class _TD(torch.autograd.Function):
    """mean(w · f(target − Q(s, a))), its two metrics and |δ|, with the gradient written out: −w · clip(δ) / B at a."""

    @staticmethod
    def forward(
        ctx: Any, q_BA: Tensor, actions_B: Tensor, target_B: Tensor, weights_B: Tensor | None, huber: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        actions_B1 = actions_B.unsqueeze(-1)
        q_B = q_BA.gather(-1, actions_B1).squeeze(-1)
        error_B = target_B - q_B
        size_B = error_B.abs()
        # Huber's f is slope · (δ − ½ slope): ½ δ² where the slope, δ clipped to ±1, is δ itself.
        slope_B = error_B.clamp(-1.0, 1.0) if huber else error_B
        f_B = torch.addcmul(error_B * slope_B, slope_B, slope_B, value=-0.5)
        if weights_B is not None:
            f_B, slope_B = f_B * weights_B, slope_B * weights_B
        ctx.save_for_backward(slope_B, actions_B1)
        ctx.shape = q_BA.shape
        q, td_error = q_B.mean(), size_B.mean()
        ctx.mark_non_differentiable(q, td_error, size_B)
        ctx.set_materialize_grads(False)
        return f_B.mean(), q, td_error, size_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        slope_B, actions_B1 = ctx.saved_tensors
        if dloss is None:
            return None, None, None, None, None
        dq_B1 = (slope_B * (dloss / -len(slope_B))).unsqueeze(-1)
        return slope_B.new_zeros(ctx.shape).scatter_(-1, actions_B1, dq_B1), None, None, None, None


@dataclass(frozen=True)
class C51Loss:
    """The loss of the distribution of returns over fixed atoms (arXiv:1707.06887, algorithm 1).

    loss = mean(w · −Σ_i m_i log p_i(s, a)), where m is the distribution of r + discounts · Z'(s', a*) projected onto
    the atoms, and w are importance weights if there are any.

    double: a* is the greatest by the policy's own Q; otherwise by the target's.

    The rest is as in DQNLoss; per_row["priorities"] is the row's cross entropy less the entropy of m, the divergence
    KL(m ‖ p) (arXiv:1710.02298, section 3). Metrics: q, kl_atoms (the mean of that divergence).
    """

    double: bool = True

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it reads."""
        return COLUMNS

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of a batch."""
        head = _head(net, "C51Loss", atoms=True)
        support_K = cast("Tensor", head.support)
        with torch.no_grad():
            next_obs = batch.tree("next_obs")
            next_q_BA, next_logits_BAK = head.q(net.outputs_of_target(next_obs))
            chooser_BA = head.q(net.outputs(next_obs))[0] if self.double else next_q_BA
            best_B = _allowed(chooser_BA, next_mask(net, batch)).argmax(-1)
            next_p_BK = torch.softmax(_chosen(cast("Tensor", next_logits_BAK), best_B), -1)
            target_BK = project(next_p_BK, batch["rewards"], batch["discounts"], support_K)
        q_BA, logits_BAK = head.q(net.outputs(batch.tree("obs")))
        logp_BK = torch.log_softmax(_chosen(cast("Tensor", logits_BAK), batch["actions"]), -1)
        cross_B = -(target_BK * logp_BK).sum(-1)
        weights_B = batch.get("weights")
        loss = (cross_B if weights_B is None else cross_B * weights_B).mean()
        with torch.no_grad():
            kl_B = (cross_B - torch.special.entr(target_BK).sum(-1)).clamp_(min=0.0)
            q = q_BA.gather(-1, batch["actions"].unsqueeze(-1)).mean()
        return LossOut(loss, {"q": q, "kl_atoms": kl_B.mean()}, {"priorities": kl_B})


def project(p_BK: Tensor, rewards_B: Tensor, discounts_B: Tensor, support_K: Tensor) -> Tensor:
    """The distribution (B, K) over the atoms of r + discounts · Z, Z distributed as `p_BK` over them.

    Each shifted atom, clipped to the range, is shared among its two neighbours by its distance from them
    (arXiv:1707.06887, equation 7).
    """
    least, greatest, last = support_K[0], support_K[-1], len(support_K) - 1
    shifted_BK = (rewards_B.unsqueeze(-1) + discounts_B.unsqueeze(-1) * support_K).clamp(least, greatest)
    places_BK = ((shifted_BK - least) * (last / (greatest - least))).clamp_(0.0, float(last))
    below_BK = places_BK.floor().clamp_(max=last - 1.0)
    share_BK = places_BK - below_BK  # of the upper neighbour
    lower_BK = below_BK.long()
    upper_share_BK = p_BK * share_BK
    made_BK = torch.zeros_like(p_BK).scatter_add_(-1, lower_BK, p_BK - upper_share_BK)
    return made_BK.scatter_add_(-1, lower_BK + 1, upper_share_BK)


def _chosen(logits_BAK: Tensor, actions_B: Tensor) -> Tensor:
    return logits_BAK[torch.arange(len(actions_B)), actions_B]


def next_mask(net: Policy, batch: TensorBatch) -> Tensor | None:
    """Which actions (B, A) may be taken in the next states; None where there are no masks.

    Raises:
        KeyError: the policy's observations hold masks, and the batch has none.
    """
    if net.layout.mask is not None and NEXT_MASK not in batch:
        raise KeyError(
            f"the observations of this policy hold an action mask, but the batch has no column {NEXT_MASK!r}: "
            "workers with next_obs=True give it"
        )
    return batch.get(NEXT_MASK)


def _allowed(q_BA: Tensor, mask_BA: Tensor | None) -> Tensor:
    return q_BA if mask_BA is None else q_BA.masked_fill(~mask_BA, MASKED)


def _head(net: Policy, loss: str, *, atoms: bool) -> QHead:
    head = net.head
    if not isinstance(head, QHead) or (head.support is not None) != atoms:
        wanted = "PolicySpec(head='q', atoms=..., value_range=...)" if atoms else "PolicySpec(head='q') without atoms"
        raise ValueError(f"{loss} trains policies of {wanted}, got {net.spec}")
    return head
