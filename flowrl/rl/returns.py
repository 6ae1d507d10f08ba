"""Advantages and returns over time-major arrays (NumPy)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


def gae(
    rewards_TN: npt.ArrayLike,
    values_TN: npt.ArrayLike,
    next_values_TN: npt.ArrayLike,
    terminated_TN: npt.ArrayLike,
    truncated_TN: npt.ArrayLike,
    *,
    discount: float,
    gae_lambda: float,
    valid_TN: npt.ArrayLike | None = None,
) -> tuple[Float32, Float32]:
    """Advantages and returns, two float32 arrays (T, N): generalized advantage estimation (arXiv:1506.02438, eq. 16).

    A_t = δ_t + discount·gae_lambda·A_{t+1}, δ_t = r_t + discount·V'_t − V_t, return_t = A_t + V_t, where V' is
    `next_values_TN`, the value of the state that followed step t (at an episode's end the final observation's,
    never the reset one's). A terminated step bootstraps from 0, a truncated one from V'; after either the
    recursion starts anew; both set counts as terminated. The last step bootstraps from V'. An invalid row
    (a reset that is no transition) has advantage 0 and return V_t, and nothing passes through it, NaN neither.
    Sums are carried in float64.

    Raises:
        ValueError: an array is not (T, N) or not of the shape of the rewards; discount or gae_lambda outside [0, 1].
    """
    check_fractions(discount=discount, gae_lambda=gae_lambda)
    rewards = _time_major("rewards_TN", rewards_TN, None)
    values = _time_major("values_TN", values_TN, rewards.shape)
    next_values = _time_major("next_values_TN", next_values_TN, rewards.shape)
    terminated = _time_major("terminated_TN", terminated_TN, rewards.shape).astype(np.bool_)
    truncated = _time_major("truncated_TN", truncated_TN, rewards.shape).astype(np.bool_)
    valid = np.ones_like(terminated) if valid_TN is None else _time_major("valid_TN", valid_TN, rewards.shape) != 0

    values_TN = values.astype(np.float64)
    bootstrap_TN = np.where(terminated, 0.0, next_values.astype(np.float64))
    # where, not a product: 0·NaN is NaN, and what stands in a row that is no transition must not matter.
    delta_TN = np.where(valid, rewards.astype(np.float64) + discount * bootstrap_TN - values_TN, 0.0)
    carry_TN = np.where(valid & ~(terminated | truncated), discount * gae_lambda, 0.0)

    advantages_TN = np.empty_like(delta_TN)
    advantage_N = np.zeros(rewards.shape[1])
    for t in range(len(delta_TN) - 1, -1, -1):
        advantage_N = delta_TN[t] + carry_TN[t] * advantage_N
        advantages_TN[t] = advantage_N
    returns_TN = advantages_TN + values_TN
    return advantages_TN.astype(np.float32), returns_TN.astype(np.float32)


def check_fractions(**fractions: float) -> None:
    """Raises a ValueError that names the first of the given numbers outside [0, 1]."""
    for name, value in fractions.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must be between 0 and 1, got {value}")


def _time_major(name: str, value: npt.ArrayLike, shape: tuple[int, ...] | None) -> Array:
    array = np.asarray(value)
    if array.ndim != 2:
        raise ValueError(f"{name} must be time-major (T, N), got shape {array.shape}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, but rewards_TN has {shape}; all must be (T, N)")
    return array
