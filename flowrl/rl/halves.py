"""Double-buffered sampling: one half of the environments steps while the actions of the other are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout
from flowrl.rl.fragment import Fragment
from flowrl.rl.masks import Mask
from flowrl.rl.observations import Obs
from flowrl.rl.unroll import Unroll
from flowrl.rl.vector import VectorSource
from flowrl.rl.view import View

Array = npt.NDArray[Any]
Stepped = tuple[Obs, Array, Array, Array, list[tuple[int, Obs]]]


class HalfSources:
    """Two vectors of environments that are one to those who ask what they are.

    make: makes so many copies, of which the first has a given place.
    """

    def __init__(self, make: Callable[[int, int], VectorSource], num_envs: int):
        self.num_envs = num_envs
        half = num_envs // 2
        first = make(half, 0)
        try:
            self.halves = (first, make(half, half))
        except Exception:
            first.close()
            raise
        self.spaces, self.name = first.spaces, first.name
        self.phantom_rows, self.frame_skip = first.phantom_rows, first.frame_skip

    def close(self) -> None:
        """Closes every environment."""
        for half in self.halves:
            half.close()


class HalvesView:
    """What a policy sees of two vectors: each half by itself, and both as one (`flowrl.rl.view.View`)."""

    def __init__(self, source: HalfSources, actions: ActionLayout, *, follow: bool):
        self.views = tuple(View(half, actions, follow=follow) for half in source.halves)
        half = source.num_envs // 2
        self.rows = (slice(0, half), slice(half, source.num_envs))
        self.layout = self.views[0].layout
        self.final_masks: list[Mask] = []

    @property
    def mask_N(self) -> Mask | None:  # noqa: N802
        """(N, P), which actions may be taken next."""
        masks = [view.mask_N for view in self.views if view.mask_N is not None]
        return np.concatenate(masks) if len(masks) == len(self.views) else None

    @property
    def starts_N(self) -> npt.NDArray[np.bool_]:  # noqa: N802
        """(N,), whose observation is the first of an episode."""
        return np.concatenate([view.starts_N for view in self.views])

    def reset(self, at_step: int = 0) -> Obs:
        """The first observations (N, ...) of new episodes."""
        return _together([view.reset(at_step) for view in self.views])

    def step(self, actions_N: Array) -> Stepped:
        """One step of both halves, begun one after the other."""
        for view, rows in zip(self.views, self.rows, strict=True):
            view.send(actions_N[rows])
        answers = [view.receive() for view in self.views]
        self.final_masks = [mask for view in self.views for mask in view.final_masks]
        finals = [
            (rows.start + n, obs) for answer, rows in zip(answers, self.rows, strict=True) for n, obs in answer[4]
        ]
        rewards_N, terminated_N, truncated_N = (np.concatenate([answer[k] for answer in answers]) for k in (1, 2, 3))
        return _together([answer[0] for answer in answers]), rewards_N, terminated_N, truncated_N, finals

    def get_state(self) -> dict[str, Any]:
        """Masks and where episodes begin, of each half."""
        return {str(k): view.get_state() for k, view in enumerate(self.views)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        for k, view in enumerate(self.views):
            view.set_state(state[str(k)])


class Half:
    """A half of a fragment that is being filled."""

    def __init__(self, fragment: Fragment, unroll: Unroll, view: View, rows: slice):
        self.fragment, self.unroll, self.view, self.rows = fragment, unroll.part(rows), view, rows
        self.finals: list[tuple[tuple[int, int, Obs], Mask | None]] = []

    def act(self, t: int) -> None:
        """Computes the actions of step t, and begins it."""
        view, rows = self.view, self.rows
        if self.unroll.state_SN:
            self.fragment.starts_TN[t, rows] = view.starts_N
        obs_N = self.fragment.at(t)
        mine = {path: part[rows] for path, part in obs_N.items()} if isinstance(obs_N, dict) else obs_N[rows]
        view.send(self.unroll.act(t, mine, view.mask_N, view.starts_N))

    def receive(self, t: int) -> None:
        """Waits for step t, and writes what came of it."""
        fragment, rows = self.fragment, self.rows
        obs_N, rewards_N, terminated_N, truncated_N, finals = self.view.receive()
        fragment.rewards_TN[t, rows] = rewards_N
        fragment.terminated_TN[t, rows], fragment.truncated_TN[t, rows] = terminated_N, truncated_N
        if isinstance(fragment.obs_SN, dict):
            for path, part in obs_N.items():  # type: ignore[union-attr]
                fragment.obs_SN[path][t + 1, rows] = part
        else:
            fragment.obs_SN[t + 1, rows] = obs_N
        masks: Sequence[Mask | None] = self.view.final_masks or [None] * len(finals)
        for (n, obs), mask in zip(finals, masks, strict=True):
            self.finals.append(((t, rows.start + n, obs), mask))


def collect_in_halves(fragment: Fragment, unroll: Unroll, view: HalvesView) -> None:
    """Fills the fragment as `flowrl.rl.collect.collect` does, with one half a step behind the other."""
    unroll.expects(masks=view.mask_N is not None)
    halves = [Half(fragment, unroll, own, rows) for own, rows in zip(view.views, view.rows, strict=True)]
    steps = len(fragment.rewards_TN)
    for half in halves:
        half.act(0)
    for t in range(1, steps + 1):
        for half in halves:
            half.receive(t - 1)
            if t < steps:
                half.act(t)
        fragment.taken = t
    unroll.joined(halves[0].unroll)
    for final, mask in sorted((entry for half in halves for entry in half.finals), key=lambda entry: entry[0][:2]):
        fragment.finals.append(final)
        if mask is not None:
            fragment.final_masks.append(mask)


def _together(parts: list[Obs]) -> Obs:
    first = parts[0]
    if isinstance(first, dict):
        return {path: np.concatenate([part[path] for part in parts]) for path in first}
    joined: Obs = np.concatenate(parts)  # type: ignore[arg-type]
    return joined
