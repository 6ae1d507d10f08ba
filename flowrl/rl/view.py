"""What a policy sees of a vector of environments, step by step: observations, action masks, where episodes begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout
from flowrl.rl.masks import Mask, checked_mask
from flowrl.rl.observations import MASK, Obs, ObsLayout
from flowrl.rl.vector import VectorSource

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


class View:
    """A vector of environments as policies step it: stored actions go in, observations come as they are stored.

    mask_N: (N, P), which actions may be taken next; None without masks. They come from the observation (a Dict's
        "action_mask") or else from `info["action_mask"]`, if it is there at the reset.
    final_masks: (P,) each, of the final observations that the last step gave; everything where a mask is not known.
    starts_N: (N,), whose observation is the first of an episode. resets_N: (N,), whose next step only resets.

    `follow`: whether `starts_N` and `resets_N` are kept up to date; with masks they always are.
    """

    def __init__(self, source: VectorSource, actions: ActionLayout, *, follow: bool):
        self.layout = ObsLayout.of(source.spaces.observation)
        self.mask_N: Mask | None = None
        self.final_masks: list[Mask] = []
        self.starts_N, self.resets_N = np.ones(source.num_envs, np.bool_), np.zeros(source.num_envs, np.bool_)
        self._source, self._actions, self._follow = source, actions, follow
        self._masked, self._nested = False, self.layout.nested

    def reset(self, at_step: int = 0) -> Obs:
        """The first observations (N, ...) of new episodes.

        Raises:
            ValueError: a mask that allows nothing, or of another shape; names the environment.
        """
        obs = self._source.reset(at_step)
        self.starts_N, self.resets_N = np.ones_like(self.starts_N), np.zeros_like(self.resets_N)
        from_info = bool(self._actions.choices) and MASK in self._source.info
        self._masked = self.layout.mask is not None or from_info
        self.mask_N = self._mask(obs) if self._masked else None
        return self.layout.split(obs)

    def step(self, actions_N: Array) -> tuple[Obs, Array, Array, Array, list[tuple[int, Obs]]]:
        """One step: observations, rewards, terminated, truncated (N, ...), and final observations not shown by these.

        The arrays belong to the environment and change at the next call; final observations are copies.

        Raises:
            ValueError: a mask that allows nothing, of another shape, or missing; names the environment.
            Whatever an environment raises.
        """
        return self.seen(*self._source.step(self._actions.to_env(actions_N)))

    def seen(
        self, obs: Any, rewards_N: Array, terminated_N: Array, truncated_N: Array, finals: list[tuple[int, Any]]
    ) -> tuple[Obs, Array, Array, Array, list[tuple[int, Obs]]]:
        """What `step` gives, of what the environments gave for the step."""
        if self._follow or self._masked:
            self._after(np.logical_or(terminated_N, truncated_N))
            if self._masked:
                self.mask_N = self._mask(obs)
                self.final_masks = [self._final_mask(n, final) for n, final in finals]
        if self._nested:
            return (
                self.layout.split(obs),
                rewards_N,
                terminated_N,
                truncated_N,
                [(n, self.layout.split(final)) for n, final in finals],
            )
        return obs, rewards_N, terminated_N, truncated_N, finals

    def _after(self, done_N: Bools) -> None:
        if self._source.phantom_rows:
            self.starts_N, self.resets_N = self.resets_N, done_N & ~self.resets_N
        else:
            self.starts_N = done_N

    def _mask(self, obs: Any) -> Mask:
        name, rows = self._source.name, self._source.num_envs
        mask = self.layout.mask_of(obs)
        if mask is None:
            mask = self._mask_of_info(name, rows)
        return checked_mask(mask, self._actions, name, rows, unused=self.resets_N)

    def _final_mask(self, n: int, final: Any) -> Mask:
        mask = self.layout.mask_of(final)
        if mask is None:
            info = self._source.info.get("final_info", {})
            there = MASK in info and bool(np.broadcast_to(info.get(f"_{MASK}", True), (self._source.num_envs,))[n])
            mask = np.asarray(info[MASK][n]).astype(np.bool_) if there else None
        # At an episode's end there may be nothing left to do.
        usable = mask is not None and mask.shape == (self._actions.num_params,) and mask.any()
        return mask if mask is not None and usable else np.ones(self._actions.num_params, np.bool_)

    def _mask_of_info(self, name: str, rows: int) -> Array:
        info = self._source.info
        there_N = np.broadcast_to(info.get(f"_{MASK}", MASK in info), (rows,))
        missing_N = ~there_N & ~self.resets_N
        if missing_N.any():
            raise ValueError(
                f"environment {int(np.flatnonzero(missing_N)[0])} of {name} gave info[{MASK!r}] at its reset but none "
                "with this step; give it with every step"
            )
        if MASK not in info:
            return np.ones((rows, self._actions.num_params), np.bool_)
        return np.asarray(info[MASK])

    def get_state(self) -> dict[str, Any]:
        """Masks and where episodes begin."""
        return {
            "mask": None if self.mask_N is None else self.mask_N.copy(),
            "starts": self.starts_N.copy(),
            "resets": self.resets_N.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        self.mask_N = None if state["mask"] is None else np.array(state["mask"])
        self.starts_N, self.resets_N = np.array(state["starts"]), np.array(state["resets"])
        self._masked = self.mask_N is not None
