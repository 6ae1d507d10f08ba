"""Means of metrics over the updates of a train call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        numbers = _numbers([value for values, _ in self._found.values() for value in values])
        means, at = {}, 0
        for name, (_, rows) in self._found.items():
            weights = np.array(rows)
            means[name] = float((numbers[at : at + len(rows)] * weights).sum() / weights.sum())
            at += len(rows)
        return means

    def sums(self) -> dict[str, tuple[float, int]]:
        """By metric, its values times their rows, added up, and those rows: what tallies of other rows add to."""
        return {name: (float(_numbers(vs) @ np.array(rows)), sum(rows)) for name, (vs, rows) in self._found.items()}


def _numbers(values: Sequence[Tensor | float]) -> npt.NDArray[np.float64]:
    numbers = np.array([0.0 if isinstance(value, Tensor) else float(value) for value in values])
    tensors = [value for value in values if isinstance(value, Tensor)]
    if tensors:
        read = torch.stack([tensor.detach().double() for tensor in tensors]).numpy()
        numbers[[isinstance(value, Tensor) for value in values]] = read
    return numbers
