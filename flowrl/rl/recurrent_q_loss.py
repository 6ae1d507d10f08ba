"""R2D2's loss: Q-learning over sequences, for policies of values of actions that have a memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flowrl.rl.heads import QHead
from flowrl.rl.loss import LossOut
from flowrl.rl.observations import MASK, NEXT_MASK
from flowrl.rl.policy import Policy, TensorObs, map_obs
from flowrl.rl.q_losses import COLUMNS
from flowrl.rl.rescaling import rescaled, unscaled
from flowrl.rl.sequences import STARTS, SequenceBatch, map_pairs
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch


@dataclass(frozen=True)
class R2D2Loss:
    """The loss of Q-learning over sequences with a burn-in (Kapturowski et al., ICLR 2019, section 2.3).

    loss = mean(w · ½ δ²) over the valid rows behind the burn-in, δ = h(Σ_k γ^k r + γ^m h⁻¹(Q'(s_m, a*))) − Q(s, a),
    where m is n_step or less, at the end of an episode or of the sequence, and w are importance weights, if any.

    burn_in: rows at the beginning of each sequence that only bring the memory to its state, without gradient.
    n_step: steps whose rewards are summed before the value of what follows; rows are stored a step each (NStep(1)).
    double: a* is the greatest by the policy's own Q; otherwise by the target's. Masked actions are left out.
    rescale: ε of the value rescaling h (`flowrl.rl.rescaling`); None leaves values as they are.
    max_share: η, of the largest |δ| in a sequence's priority, η max |δ| + (1 − η) mean |δ|.

    A truncated row that is followed by the next episode at once (environments that reset in the same step) has no row
    for its last observation; it is no part of the loss, and rows before it take the value of the state it was in.
    per_row["priorities"] is one a sequence. Metrics: q, td_error (means over the same rows).
    """

    burn_in: int = 0
    n_step: int = 5
    double: bool = True
    rescale: float | None = 1e-3
    max_share: float = 0.9

    def __post_init__(self) -> None:
        if self.burn_in < 0 or self.n_step < 1:
            raise ValueError(f"burn_in must be at least 0 and n_step 1, got {self.burn_in} and {self.n_step}")
        if self.rescale is not None and not 0.0 < self.rescale < math.inf:
            raise ValueError(f"rescale must be above 0 and finite, or None, got {self.rescale}")
        if not 0.0 <= self.max_share <= 1.0:
            raise ValueError(f"max_share must be from 0 to 1, got {self.max_share}")

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it reads, besides the state and where episodes begin."""
        return COLUMNS

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of sequences."""
        if not isinstance(batch, SequenceBatch) or not isinstance(net.head, QHead) or net.head.support is not None:
            raise ValueError(
                "R2D2Loss trains policies of PolicySpec(head='q', recurrent=...) without atoms, on sequences; got "
                f"{net.spec}"
            )
        steps = batch.steps
        if len(steps["rewards"]) <= self.burn_in:
            raise ValueError(f"burn_in={self.burn_in} leaves nothing of sequences of {len(steps['rewards'])} steps")
        seen = seen_by(batch)
        q_SNA, next_values_SN = self._values(net, seen, dict(batch.initial))
        rewards_TN, discounts_TN, actions_TN = (
            steps[name][self.burn_in :] for name in ("rewards", "discounts", "actions")
        )
        valid_TN, alone_TN = batch.valid_TN[self.burn_in :], seen.alone_TN[self.burn_in :]
        returns_TN = n_step_returns(
            next_values_SN, rewards_TN, discounts_TN, seen.cut_TN[self.burn_in :], alone_TN, self.n_step
        )
        target_TN = returns_TN if self.rescale is None else rescaled(returns_TN, self.rescale)
        q_TN = q_SNA[:-1].gather(-1, actions_TN.unsqueeze(-1)).squeeze(-1)
        error_TN = target_TN - q_TN
        counted_TN = valid_TN & ~alone_TN
        count = counted_TN.sum().clamp(min=1)
        # where, not a product with 0: rows that are no transitions may hold anything.
        squares_TN = torch.where(counted_TN, error_TN, 0.0).square()
        if "weights" in steps:
            squares_TN = squares_TN * steps["weights"][self.burn_in :]
        sizes_TN = torch.where(counted_TN, error_TN.detach().abs(), 0.0)
        metrics = {
            "q": torch.where(counted_TN, q_TN.detach(), 0.0).sum() / count,
            "td_error": sizes_TN.sum() / count,
        }
        mean_N = sizes_TN.sum(0) / counted_TN.sum(0).clamp(min=1)
        priorities_N = self.max_share * sizes_TN.amax(0) + (1.0 - self.max_share) * mean_N
        return LossOut(0.5 * squares_TN.sum() / count, metrics, {"priorities": priorities_N})

    def _values(self, net: Policy, seen: Seen, initial: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Q (S, N, A) with gradient and the value (S, N) of each state behind the burn-in, the last one's too."""
        cut = self.burn_in
        with torch.no_grad():
            target_SNA = net.target.run_sequence(seen.obs, seen.mask_SNA, initial, seen.starts_SN).dist.params[cut:]
            state = initial
            if cut:
                before = map_obs(lambda x: x[:cut], seen.obs)
                state = net.run_sequence(before, None, initial, seen.starts_SN[:cut]).state
        mask_SNA = None if seen.mask_SNA is None else seen.mask_SNA[cut:]
        out = net.run_sequence(map_obs(lambda x: x[cut:], seen.obs), mask_SNA, state, seen.starts_SN[cut:])
        chooser_SNA = out.dist.params.detach() if self.double else target_SNA
        values_SN = target_SNA.gather(-1, chooser_SNA.argmax(-1, keepdim=True)).squeeze(-1)
        return out.dist.params, values_SN if self.rescale is None else unscaled(values_SN, self.rescale)


class Seen(NamedTuple):
    """What the network sees of sequences: T + 1 observations, each that which followed the one before.

    cut_TN: whether what comes after the next observation belongs to something else (another episode, or nothing).
    alone_TN: rows whose next observation is not among those seen.
    """

    obs: TensorObs
    mask_SNA: Tensor | None
    starts_SN: Tensor
    cut_TN: Tensor
    alone_TN: Tensor


def seen_by(batch: SequenceBatch) -> Seen:
    """The observations of sequences with the last one's next, and with a row's next wherever no valid row follows."""
    steps, valid_TN = batch.steps, batch.valid_TN
    last_1N = torch.zeros_like(valid_TN[:1])
    # Behind these rows stands nothing, or a row that only resets: there is place for their next observation.
    ends_TN = valid_TN & ~torch.cat((valid_TN[1:], last_1N))
    starts_SN = torch.cat((steps[STARTS], last_1N))
    starts_SN[1:] &= ~ends_TN
    begins_next_TN = starts_SN[1:]
    alone_TN = valid_TN & begins_next_TN & (steps["discounts"] != 0)

    def shown(now: Tensor, after: Tensor) -> Tensor:
        extended = torch.cat((now, after[-1:]))
        place = ends_TN.reshape(*ends_TN.shape, *(1,) * (now.dim() - 2))
        extended[1:] = torch.where(place, after, extended[1:])
        return extended

    seen = map_pairs(shown, batch.steps_of("obs"), batch.steps_of("next_obs"))
    mask_SNA = shown(steps[MASK], steps[NEXT_MASK]) if MASK in steps and NEXT_MASK in steps else None
    return Seen(seen, mask_SNA, starts_SN, ends_TN | begins_next_TN, alone_TN)


def n_step_returns(
    values_SN: Tensor, rewards_TN: Tensor, discounts_TN: Tensor, cut_TN: Tensor, alone_TN: Tensor, n: int
) -> Tensor:
    """Σ_{k<m} γ^k r_{t+k} + γ^m V_{t+m} (T, N), m = n or fewer steps: a row that is `cut` is the last of its sum.

    values_SN: V of T + 1 states. discounts_TN: γ of one step, 0 where it terminated. Of a row that is `alone` there is
    only the value of its own state.
    """
    whole_SN = values_SN
    for _ in range(n):
        following_TN = torch.where(cut_TN, values_SN[1:], whole_SN[1:])
        # where, not a product: a state behind a termination counts as 0 whatever its value.
        summed_TN = rewards_TN + torch.where(discounts_TN == 0, 0.0, discounts_TN * following_TN)
        whole_SN = torch.cat((torch.where(alone_TN, values_SN[:-1], summed_TN), values_SN[-1:]))
    return whole_SN[:-1]
