"""How a fragment is filled: the policy's turn and the environments', step by step, and the columns made of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.checked import NotFinite
from flowrl.rl.fragment import Fragment
from flowrl.rl.halves import HalvesView, collect_halves
from flowrl.rl.masks import Mask
from flowrl.rl.observations import MASK, NEXT_MASK, Obs
from flowrl.rl.unroll import Unroll
from flowrl.rl.view import View


def first_obs(view: View | HalvesView, at_step: int) -> Obs:
    """The first observations (N, ...) of new episodes, seeded by the worker's step.

    Raises:
        FloatingPointError: an observation is not finite; names the environment.
    """
    obs_N = view.reset(at_step)
    for leaf in view.layout.leaves:
        array = view.layout.part(leaf, obs_N)
        if leaf.dtype.kind == "f" and not np.isfinite(array).all():
            n, *at = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
            text = f"environment {n} gave {leaf.column}{at} = {array[(n, *at)]} at its reset (step 0 of its episode)"
            raise NotFinite.of(n, None, f"{text}; mend its reset")
    return obs_N


def collect(fragment: Fragment, unroll: Unroll, view: View | HalvesView) -> None:
    """Fills the fragment from its first observations on; `fragment.taken` counts the steps."""
    if isinstance(view, HalvesView):
        collect_halves(fragment, unroll, view)
        return
    # What a loop iteration leaves out is done once for the fragment: probabilities, values, checks, episodes.
    rewards_TN, terminated_TN, truncated_TN = fragment.rewards_TN, fragment.terminated_TN, fragment.truncated_TN
    # An array is read and written without a call; a nested observation goes through the fragment.
    plain_SN = None if isinstance(fragment.obs_SN, dict) else fragment.obs_SN
    act, step, memory = unroll.act, view.step, bool(unroll.state_SN)
    for t in range(len(rewards_TN)):
        if memory:
            fragment.starts_TN[t] = view.starts_N
        obs_N = fragment.at(t) if plain_SN is None else plain_SN[t]
        actions_N = act(t, obs_N, view.mask_N, view.starts_N)
        obs_N, rewards_TN[t], terminated_TN[t], truncated_TN[t], finals = step(actions_N)
        if plain_SN is None:
            fragment.put(t + 1, obs_N)
        else:
            plain_SN[t + 1] = obs_N
        if finals:
            fragment.finals.extend((t, n, obs) for n, obs in finals)
            fragment.final_masks.extend(view.final_masks)
        fragment.taken += 1


def columns_of(
    fragment: Fragment, unroll: Unroll, last_mask_N: Mask | None = None, *, next_obs: bool, values: bool = True
) -> dict[str, npt.NDArray[Any]]:
    """The columns of a filled fragment (T, N, ...), but for `valid`; rewards as the environment gave them.

    last_mask_N: which actions may be taken after the last step.

    Raises:
        FloatingPointError: the policy's outputs or values are not finite.
    """
    final_masks = np.stack(fragment.final_masks) if fragment.final_masks else None
    columns = {**fragment.columns(), "actions": unroll.actions_TN}
    unroll.check()
    if unroll.judges:
        columns["logp"] = unroll.logp()
        columns |= _values(fragment, unroll, last_mask_N, final_masks) if values else {}
        q_taken_TN = unroll.q_taken()
        columns |= {} if q_taken_TN is None else {"q_taken": q_taken_TN}
    if unroll.masks_TN is not None:
        columns[MASK] = unroll.masks_TN
        if next_obs and last_mask_N is not None:
            masks_SN = np.concatenate((unroll.masks_TN, last_mask_N[None]))
            columns[NEXT_MASK] = fragment.following(masks_SN, final_masks)
    if unroll.state_SN:
        columns["starts"] = fragment.starts_TN
        columns |= {f"state/{name}": h_SN[:-1] for name, h_SN in unroll.state_SN.items()}
    if next_obs:
        columns |= fragment.layout.columns("next_obs", fragment.following_obs())
    return columns


def _values(
    fragment: Fragment, unroll: Unroll, last_mask_N: Mask | None, final_masks: Mask | None
) -> dict[str, npt.NDArray[Any]]:
    """The columns of values (T, N)."""
    values_SN = unroll.values(fragment.obs_SN, last_mask_N)
    final_obs = fragment.final_obs()
    places = [(t, n) for t, n, _ in fragment.finals]
    final_values = None if final_obs is None else unroll.final_values(final_obs, places, final_masks)
    return {"values": values_SN[:-1], "next_values": fragment.following(values_SN, final_values)}
