"""Advantages and returns over time-major arrays: NumPy, and torch for what is computed anew at every update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.numbers import check_whole

if TYPE_CHECKING:
    from torch import Tensor

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


class VTrace(NamedTuple):
    """What values are trained towards, and what policy gradients are weighted by; (T, N) each, without gradient."""

    targets_TN: Tensor
    pg_advantages_TN: Tensor


def vtrace(
    behaviour_logp_TN: Tensor,
    target_logp_TN: Tensor,
    rewards_TN: Tensor,
    values_TN: Tensor,
    next_values_TN: Tensor,
    terminated_TN: Tensor,
    truncated_TN: Tensor,
    *,
    discount: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
    vtrace_lambda: float = 1.0,
    valid_TN: Tensor | None = None,
) -> VTrace:
    """V-trace targets and advantages (arXiv:1802.01561, section 4.1, remark 2), float32 tensors (T, N).

    With r_t = exp(target_logp − behaviour_logp), ρ = min(rho_clip, r), c = vtrace_lambda · min(c_clip, r),

        v_t = V_t + δ_t + discount·c_t·(v_{t+1} − V_{t+1}),   δ_t = ρ_t·(reward_t + discount·V'_t − V_t)
        A_t = min(pg_rho_clip, r_t)·(reward_t + discount·(V'_t + vtrace_lambda·(v_{t+1} − V_{t+1})) − V_t)

    where V' is `next_values_TN`, the value of the state that followed (at an episode's end the final observation's).
    A terminated step bootstraps from 0, a truncated one from V'; over both v − V is not carried, nor behind the last
    step, which counts as the others do; both set counts as terminated. Of equal policies these are the λ-returns and
    advantages of `gae` (vtrace_lambda=1: n-step returns). An invalid row (a reset that is no transition) has
    advantage 0 and target V_t, and nothing passes through it, NaN neither. A clip of infinity clips nothing. A target
    log-probability of −inf, of what the policy now never does, has the ratio 0. Sums are carried in float64.

    Raises:
        ValueError: a tensor is not (T, N) or not of the shape of the rewards; a number is out of range; a behaviour
            log-probability of a valid row is −inf, though that action was taken.
    """
    check_fractions(discount=discount, vtrace_lambda=vtrace_lambda)
    for name, clip in (("rho_clip", rho_clip), ("c_clip", c_clip), ("pg_rho_clip", pg_rho_clip)):
        if not clip >= 0.0:
            raise ValueError(f"{name} must be at least 0, got {clip}")
    import torch  # here, as workers that use the functions above do without it

    rest = {
        "behaviour_logp_TN": behaviour_logp_TN, "target_logp_TN": target_logp_TN, "values_TN": values_TN,
        "next_values_TN": next_values_TN, "terminated_TN": terminated_TN, "truncated_TN": truncated_TN,
        **({} if valid_TN is None else {"valid_TN": valid_TN}),
    }  # fmt: skip
    _check_shape("rewards_TN", rewards_TN.shape, None)
    for name, tensor in rest.items():
        _check_shape(name, tensor.shape, rewards_TN.shape)
    terminated_TN, truncated_TN = terminated_TN.bool(), truncated_TN.bool()
    valid_TN = None if valid_TN is None else valid_TN.bool()
    impossible_TN = torch.isneginf(behaviour_logp_TN.detach())
    if impossible_TN.any():
        _check_possible(_where(valid_TN, impossible_TN))
    ratio_TN = (target_logp_TN.detach().double() - behaviour_logp_TN.detach().double()).exp()
    rewards_TN, v_TN = rewards_TN.double(), values_TN.detach().double()
    goes_on_TN = ~(terminated_TN | truncated_TN)
    bootstrap_TN = next_values_TN.detach().double().masked_fill(terminated_TN, 0.0)
    delta_TN = ratio_TN.clamp(max=rho_clip) * (rewards_TN + discount * bootstrap_TN - v_TN)
    carry_TN = ratio_TN.clamp(max=c_clip) * (discount * vtrace_lambda)
    error_SN = _summed_backwards(_where(valid_TN, delta_TN), _where(valid_TN, _where(goes_on_TN, carry_TN)))
    following_TN = bootstrap_TN + vtrace_lambda * _where(goes_on_TN, error_SN[1:])
    advantages_TN = ratio_TN.clamp(max=pg_rho_clip) * (rewards_TN + discount * following_TN - v_TN)
    return VTrace((v_TN + error_SN[:-1]).float(), _where(valid_TN, advantages_TN).float())


def _check_possible(impossible_TN: Tensor) -> None:
    places = impossible_TN.nonzero().tolist()
    if places:
        (t, n), count = places[0], len(places)
        raise ValueError(
            f"behaviour_logp_TN is −inf in {count} valid row(s), first at step {t} of environment {n}: an action of "
            "probability 0 was taken, so there is no ratio. Give the log-probability with which the action was drawn, "
            "exploration included (a worker of a policy of action values writes −inf for all but the greedy action)"
        )


def _where(mask_TN: Tensor | None, x_TN: Tensor) -> Tensor:
    """x where the mask is true, else 0: no product, as what stands in a row that is no transition must not matter."""
    return x_TN if mask_TN is None else x_TN.masked_fill(~mask_TN, 0.0)


def _summed_backwards(delta_TN: Tensor, carry_TN: Tensor) -> Tensor:
    """e_t = δ_t + carry_t·e_{t+1} from e_T = 0 on: (T + 1, N). In NumPy, whose calls take a fifth of torch's time."""
    import torch  # here, as workers that use the functions above do without it

    errors_SN = np.zeros((len(delta_TN) + 1, *delta_TN.shape[1:]))
    carries_TN = carry_TN.cpu().numpy()
    errors_SN[:-1] = delta_TN.cpu().numpy()
    following_N = errors_SN[-1]
    for error_N, carry_N in zip(errors_SN[-2::-1], carries_TN[::-1], strict=True):
        error_N += carry_N * following_N
        following_N = error_N
    return torch.from_numpy(errors_SN).to(delta_TN.device)


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
    _check_shape(name, array.shape, shape)
    return array


def _check_shape(name: str, found: Sequence[int], shape: Sequence[int] | None) -> None:
    if len(found) != 2:
        raise ValueError(f"{name} must be time-major (T, N), got shape {tuple(found)}")
    if shape is not None and found != shape:
        raise ValueError(f"{name} has shape {tuple(found)}, but rewards_TN has {tuple(shape)}; all must be (T, N)")
