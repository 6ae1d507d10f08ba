"""Running statistics of observations inside a torch policy: kept by the learner, used wherever the policy acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowrl.batch import Batch
from flowrl.rl.encoding import num_numbers, numbers_of
from flowrl.rl.normalize import CLIP, EPSILON, RunningMoments
from flowrl.rl.observations import ObsLayout

Obs = Tensor | dict[str, Tensor]


class ObsStatistics(nn.Module):
    """Mean and variance (float32 buffers) of the numbers of observations, and the exact moments they come from.

    Only Boxes that are no images are normalized; indices, bits and images pass. The moments (float64) change by
    `update` alone, so an acting or evaluating policy never changes them.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, layout: ObsLayout):
        super().__init__()
        self._layout = layout
        size = num_numbers(layout)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.moments = RunningMoments.empty((size,))

    def forward(self, obs: Obs) -> Obs:
        """The observations (B, ...) with their numbers normalized, float32: (x − mean) / √(var + 1e-8), within ±10."""
        at, parts = 0, {}
        for leaf in self._layout.leaves:
            x = obs if isinstance(obs, Tensor) else obs[leaf.path]
            if leaf.kind == "numbers":
                span = slice(at, at + leaf.size)
                scale = torch.sqrt(self.var[span].view(leaf.shape) + EPSILON)
                x = ((x - self.mean[span].view(leaf.shape)) / scale).clamp(-CLIP, CLIP)
                at += leaf.size
            parts[leaf.path] = x
        return parts if self._layout.nested else parts[""]

    def update(self, batch: Batch) -> None:
        """Merges in the observations of a batch's valid rows."""
        self.merge(self.moments_of(batch))

    def moments_of(self, batch: Batch) -> RunningMoments:
        """The moments of a batch's valid rows; these statistics stay as they are."""
        obs, valid = batch.tree("obs"), batch.valid
        rows = {path: column[valid] for path, column in obs.items()} if isinstance(obs, dict) else obs[valid]
        return RunningMoments.of(numbers_of(self._layout, rows))

    def merge(self, moments: RunningMoments) -> None:
        """Merges in what `moments_of` gave, here or elsewhere."""
        self._set(self.moments.merge(moments))

    def exact(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of count, mean and M2 of the moments, by name."""
        return {
            "obs_statistics.count": np.array(self.moments.count, np.int64),
            "obs_statistics.mean": self.moments.mean.copy(),
            "obs_statistics.m2": self.moments.m2.copy(),
        }

    def set_exact(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Takes over what `exact` gave."""
        count, mean, m2 = (state[f"obs_statistics.{name}"] for name in ("count", "mean", "m2"))
        self._set(RunningMoments(int(count), np.array(mean), np.array(m2)))

    def _set(self, moments: RunningMoments) -> None:
        self.moments = moments
        if moments.count:
            with torch.no_grad():
                self.mean.copy_(torch.tensor(moments.mean))
                self.var.copy_(torch.tensor(moments.var))
