"""Sequences as a network sees them when it also values what followed each row: one more observation, or several."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flowrl.rl.distributions import Distribution
from flowrl.rl.observations import MASK
from flowrl.rl.policy import Policy
from flowrl.rl.sequences import STARTS, SequenceBatch, map_pairs

# What the batch must have, beside what a loss reads itself.
SUCCESSOR_COLUMNS = frozenset({"obs", "next_obs", "terminated", "truncated"})


class Judged(NamedTuple):
    """What a policy says of sequences: of the B valid rows, by time and then sequence; and of all T × N, without
    gradient, `values_TN` and the values of what followed them, `next_values_TN`."""

    dist: Distribution
    values: Tensor
    values_TN: Tensor
    next_values_TN: Tensor


class WithSuccessors:
    """Sequences (T, N) in which every valid row stands before the observation that followed it, (S, N) with S > T.

    Behind the last row stands its `next_obs`, also in place of a row that only resets. Where a truncated episode is
    followed by the next one at once, its final observation is put in between, so that also a memory sees it after what
    came before. What followed a terminated step has no value, and is not put in.
    """

    def __init__(self, batch: SequenceBatch):
        steps, valid_TN = batch.steps, batch.valid_TN
        length, width = valid_TN.shape
        last_1N = torch.zeros_like(valid_TN[:1])
        followed_TN = torch.cat((valid_TN[1:], last_1N))
        alone_TN = followed_TN & valid_TN & steps["truncated"] & ~steps["terminated"]
        insert_TN = alone_TN | torch.cat((torch.zeros_like(valid_TN[1:]), ~last_1N))
        before_TN = insert_TN.cumsum(0) - insert_TN.long()
        t_T1 = torch.arange(length).unsqueeze(1)
        self._place_TN = t_T1 + before_TN
        # Of T rows and then the next observations of T rows: which of them stands in each place.
        self._from_SN = torch.full((length + int(insert_TN.sum(0).max()), width), 2 * length - 1)
        self._from_SN.scatter_(0, self._place_TN, t_T1.expand(length, width))
        t_K, n_K = (valid_TN & (alone_TN | ~followed_TN)).nonzero(as_tuple=True)
        self._from_SN[self._place_TN[t_K, n_K] + 1, n_K] = t_K + length
        self._n_N = torch.arange(width)
        self._t_B, self._n_B = valid_TN.nonzero(as_tuple=True)
        self._initial = dict(batch.initial)
        self._obs = map_pairs(self._shown, batch.steps_of("obs"), batch.steps_of("next_obs"))
        # Values know no masks, so a row's next observation may have any.
        masks = steps.get(MASK)
        self._mask_SNP = None if masks is None else self._shown(masks, torch.ones_like(masks))
        starts = steps.get(STARTS)
        self._starts_SN = None if starts is None else self._shown(starts, torch.zeros_like(starts))

    def _shown(self, now_TN: Tensor, after_TN: Tensor) -> Tensor:
        return torch.cat((now_TN, after_TN))[self._from_SN, self._n_N]

    def judged_by(self, net: Policy) -> Judged:
        """What a policy says of them."""
        if net.state_shapes:
            assert self._starts_SN is not None
            out = net.run_sequence(self._obs, self._mask_SNP, self._initial, self._starts_SN)
        else:
            out = net.run(self._obs, self._mask_SNP)
        rows = net.head.rows(out, (self._place_TN[self._t_B, self._n_B], self._n_B))
        values_SN = out.values.detach()
        return Judged(
            rows.dist, rows.values, values_SN.gather(0, self._place_TN), values_SN.gather(0, self._place_TN + 1)
        )
