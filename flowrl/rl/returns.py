"""Advantages and returns over time-major arrays (NumPy)."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.numbers import check_whole

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


def n_step(batch: Batch, *, discount: float, n: int) -> Batch:
    """The batch as n-step rows, over one complete time-major batch (T, N); its shape stays.

    Of row t, with k ≤ n steps from t up to the first that ended its episode, or the last that there is,

        rewards_t = Σ_{i<k} discount^i · r_{t+i}        discounts_t = discount^k, 0 if step t+k-1 terminated

    and `terminated`, `truncated`, `next_obs` and every other column named `next_…` are those of step t+k-1: a truncated
    episode bootstraps from its final observation. The rest stays row t's. An invalid row (a reset that is no
    transition) ends the sums before it, and stays as it is. Sums are carried in float64.

    Raises:
        ValueError: the batch is not time-major, n is below 1, or discount outside [0, 1].
    """
    check_whole("n", n)
    check_fractions(discount=discount)
    if not batch.time_major:
        raise ValueError(f"n_step needs a time-major batch (T, N), got {batch!r}")
    return Batch(n_step_columns(dict(batch), discount=discount, n=n), time_major=True)


def n_step_columns(columns: Mapping[str, Array], *, discount: float, n: int) -> dict[str, Array]:
    """The columns (T, N, ...) of `n_step`, unchecked."""
    rewards, terminated = columns["rewards"], columns["terminated"]
    goes_on_TN = ~(terminated | columns["truncated"])
    valid_TN = columns.get("valid")
    if valid_TN is not None:
        goes_on_TN &= valid_TN
    sums_TN, steps_TN = rewards.astype(np.float64), np.ones(rewards.shape, np.intp)
    open_TN = goes_on_TN
    for i in range(1, min(n, len(rewards))):
        open_TN = open_TN[: len(rewards) - i]
        if valid_TN is not None:
            open_TN = open_TN & valid_TN[i:]
        sums_TN[:-i] += np.where(open_TN, discount**i * rewards[i:].astype(np.float64), 0.0)
        steps_TN[:-i] += open_TN
        open_TN = open_TN & goes_on_TN[i:]
    made = dict(columns)
    if n > 1:
        last_TN = steps_TN + (np.arange(len(rewards)) - 1)[:, None]
        at = last_TN, np.arange(rewards.shape[1])
        for name, array in columns.items():
            if name.startswith("next_") or name in ("terminated", "truncated"):
                made[name] = array[at]
        made["rewards"] = sums_TN.astype(rewards.dtype)
    discounts_TN = float(discount) ** steps_TN
    discounts_TN[made["terminated"]] = 0.0
    made["discounts"] = discounts_TN.astype(np.float32)
    return made


def check_fractions(**fractions: float) -> None:
    """Raises a ValueError that names the first of the given numbers outside [0, 1]."""
    for name, value in fractions.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a number between 0 and 1, got {value!r}")
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must be between 0 and 1, got {value}")


def _time_major(name: str, value: npt.ArrayLike, shape: tuple[int, ...] | None) -> Array:
    array = np.asarray(value)
    if array.ndim != 2:
        raise ValueError(f"{name} must be time-major (T, N), got shape {array.shape}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, but rewards_TN has {shape}; all must be (T, N)")
    return array
