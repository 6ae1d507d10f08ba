"""Action masks: which actions may be taken, checked where they come in and applied to logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
LEAST = np.finfo(np.float32).min


def masked(logits: npt.NDArray[np.float32], mask: Mask | None) -> npt.NDArray[np.float32]:
    """The logits, with the least finite float32 where the mask is false: never drawn, probability exactly 0.

    Finite, so that a difference or product of two of them is no NaN.
    """
    return logits if mask is None else np.where(mask, logits, LEAST)


def checked_mask(mask: Array, layout: ActionLayout, where: str, rows: int, *, unused: Mask | None = None) -> Mask:
    """The mask of a vector of environments as booleans (N, P); rows that are `unused` may allow nothing.

    Args:
        mask: (N, P), true where an action may be taken; for MultiDiscrete the choices side by side.
        where: names the environment in the message.
        rows: N.
        unused: (N,), rows whose action nobody takes, as the step only resets: a choice that allows nothing there
            allows everything.

    Raises:
        ValueError: another shape, actions that are not Discrete or MultiDiscrete, or a row without any valid
            action; names the environment.
    """
    mask = np.asarray(mask)
    expected = (rows, layout.num_params)
    if not layout.choices:
        raise ValueError(f"environment {where} gives action masks, which are for Discrete and MultiDiscrete actions")
    if mask.shape != expected or mask.dtype.kind not in "biuf":
        raise ValueError(
            f"environment {where} gave action masks of dtype {mask.dtype} and shape {mask.shape}; "
            f"its actions need numbers or booleans of shape {expected}, a row an environment"
        )
    mask = mask.astype(np.bool_)
    start = 0
    for choice, count in enumerate(layout.choices):
        none_N = ~mask[:, start : start + count].any(1)
        if unused is not None and unused.any():
            mask[none_N & unused, start : start + count] = True
            none_N &= ~unused
        if none_N.any():
            which = f" of choice {choice}" if len(layout.choices) > 1 else ""
            raise ValueError(
                f"environment {int(np.flatnonzero(none_N)[0])} of {where} gave an action mask that allows none of the "
                f"{count} actions{which}; end the episode there, or allow an action that does nothing"
            )
        start += count
    return mask
