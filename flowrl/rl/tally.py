"""Means of metrics over the updates of a train call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Tally:
    """Means of metrics over updates, weighted by rows. Tensors are read once, at the end."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[list[Tensor | float], list[int]]] = {}

    def add(self, metrics: Mapping[str, Tensor | float], rows: int) -> None:
        """Adds the metrics (scalars) of an update over so many rows; not every update need have the same names."""
        for name, value in metrics.items():
            values, weights = self._found.setdefault(name, ([], []))
            values.append(value)
            weights.append(rows)

    def means(self) -> dict[str, float]:
        """The mean of each metric over the updates that had it."""
        return {name: float(np.average(_numbers(values), weights=rows)) for name, (values, rows) in self._found.items()}

    def sums(self) -> dict[str, tuple[float, int]]:
        """By metric, its values times their rows, added up, and those rows: what tallies of other rows add to."""
        return {name: (float(_numbers(vs) @ np.array(rows)), sum(rows)) for name, (vs, rows) in self._found.items()}


def _numbers(values: list[Tensor | float]) -> npt.NDArray[np.float64]:
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) == len(values):
        return torch.stack(tensors).detach().double().numpy()
    return np.array([float(value) for value in values])
