"""ε, how often a uniform action is taken: one number, or one for each environment of a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.inference import Inference

Epsilon = float | npt.NDArray[np.float64]


def checked_epsilon(value: npt.ArrayLike, num_envs: int, net: Inference) -> Epsilon:
    """The number, or the numbers (N,) as an array of their own.

    Raises:
        ValueError: one is outside 0..1, they are neither one nor N, or the actions are not Discrete, nor a soft or
            deterministic actor's.
    """
    array = np.array(value, np.float64)
    if array.shape not in ((), (num_envs,)):
        raise ValueError(
            f"epsilon must be a number, or an array ({num_envs},) of one for each of this worker's environments, got "
            f"one of shape {array.shape}"
        )
    wrong = ~((array >= 0.0) & (array <= 1.0))
    if wrong.any():
        raise ValueError(f"epsilon is a probability, from 0 to 1, got {float(array[wrong].flat[0])}")
    if array.any() and net.actions.kind != "discrete" and (net.judges or not net.actions.bounded):
        raise ValueError(
            f"epsilon mixes in uniform actions, which are for Discrete spaces, not for {net.actions.kind} actions, "
            "or else for soft and deterministic actors"
        )
    return array if array.ndim else float(array)


def restored_epsilon(value: Any, num_envs: int, net: Inference) -> Epsilon:
    """The ε of a saved state; the mean of its numbers where there were other than N environments then."""
    array = np.array(value, np.float64)
    kept = array if array.shape in ((), (num_envs,)) else array.mean()
    return checked_epsilon(kept, num_envs, net)
