"""A multilayer perceptron in NumPy, forward only, on preallocated memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
# OpenBLAS runs a product of up to this many multiplications on one thread, so that its bits do not
# depend on how many cores a process was given.
ONE_THREAD_PRODUCTS = 262_144


class _Plan(NamedTuple):
    """The memory of a pass over so many rows; a layer is (weight, what goes in, what comes out)."""

    inputs: Floats
    hidden: list[tuple[Floats, Floats, Floats]]
    head: tuple[Floats, Floats, Floats]


class Perceptron:
    """One multilayer perceptron on preallocated memory.

    Activations are kept features first, (width + 1, rows), with a last row of ones, so that a bias is
    one more column of its weight and a layer is one product and one activation: at 8 rows the cost is
    that of the calls, not of the arithmetic.
    """

    def __init__(self, shapes: tuple[tuple[int, int], ...], activation: str):
        self._weights = [np.zeros((out, into + 1), np.float32) for out, into in shapes]
        self._relu = activation == "relu"
        self._max_rows = max(8, ONE_THREAD_PRODUCTS // max(weight.size for weight in self._weights))
        self._plans: dict[int, _Plan] = {}

    def load(self, flat: Floats) -> int:
        """Copies the weights in from the start of a flat vector; returns how many numbers it took."""
        at = 0
        for weight in self._weights:
            out, columns = weight.shape
            end = at + out * (columns - 1)
            weight[:, :-1] = flat[at:end].reshape(out, columns - 1)
            weight[:, -1] = flat[end : end + out]
            at = end + out
        return at

    def __call__(self, obs_N: Array) -> Floats:
        """The outputs (out, N), in memory that the next call overwrites."""
        rows = len(obs_N)
        x_NF = obs_N if obs_N.ndim == 2 else obs_N.reshape(rows, -1)
        if rows <= self._max_rows:
            return self._block(x_NF)
        result = np.empty((len(self._weights[-1]), rows), np.float32)
        for at in range(0, rows, self._max_rows):
            result[:, at : at + self._max_rows] = self._block(x_NF[at : at + self._max_rows])
        return result

    def _block(self, x_NF: Array) -> Floats:
        plan = self._plans.get(len(x_NF)) or self._allocate(len(x_NF))
        plan.inputs[...] = x_NF.T
        for weight, into, out in plan.hidden:
            np.dot(weight, into, out)
            if self._relu:
                np.maximum(out, 0, out=out)
            else:
                np.tanh(out, out)
        return np.dot(*plan.head)

    def _allocate(self, rows: int) -> _Plan:
        if len(self._plans) >= 8:
            self._plans.clear()
        wholes = [np.ones((weight.shape[1], rows), np.float32) for weight in self._weights]
        outs = [*(whole[:-1] for whole in wholes[1:]), np.empty((len(self._weights[-1]), rows), np.float32)]
        layers = list(zip(self._weights, wholes, outs, strict=True))
        self._plans[rows] = _Plan(wholes[0][:-1], layers[:-1], layers[-1])
        return self._plans[rows]
