"""Double-buffered sampling: half of a worker's environments step while the actions of the other half are computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
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
from flowrl.rl.wrappers import EnvOptions

Array = npt.NDArray[Any]


def check_double_buffer(options: EnvOptions, num_envs: int) -> None:
    """Nothing, if the environments can be halved where that is asked for.

    Raises:
        ValueError: there is only one.
    """
    if options.double_buffer and num_envs < 2:
        raise ValueError(
            f"EnvOptions(double_buffer=True) steps one half of a worker's environments while the other waits for its "
            f"actions, which takes 2 at least, got {num_envs}; give the worker more, or leave double_buffer out"
        )


class Halves:
    """A worker's environments as two vectors, `parts`, that step apart (Sample Factory, arXiv:2006.11751, section 3.1).

    In processes of their own they step by themselves. Any others step in a thread, one for both halves, so that no two
    environments ever step at once; that gains time only as far as a step releases Python's lock.
    """

    def __init__(self, first: VectorSource, second: VectorSource, name: str):
        self.parts, self.name = (first, second), name
        self.spaces, self.phantom_rows, self.frame_skip = first.spaces, first.phantom_rows, first.frame_skip
        apart = first.apart and second.apart
        self.thread = None if apart else ThreadPoolExecutor(1, thread_name_prefix="environments")

    def give_up(self) -> None:
        """The next reset makes the environments anew."""
        for part in self.parts:
            part.give_up()

    def seed_of(self, env: int, at_step: int | None) -> int | None:
        """As VectorSource's."""
        return self.parts[0].seed_of(env, at_step)

    def close(self) -> None:
        """Closes every environment and ends the thread; again does nothing."""
        try:
            self.parts[0].close()
        finally:
            self.parts[1].close()
            if self.thread is not None:
                self.thread.shutdown()


class Half:
    """One half: its environments, what a policy sees of them, and the step that is under way."""

    def __init__(
        self,
        source: VectorSource,
        rows: slice,
        thread: ThreadPoolExecutor | None,
        actions: ActionLayout,
        *,
        follow: bool,
    ):
        self.view, self.rows = View(source, actions, follow=follow), rows
        self._source, self._thread, self._actions = source, thread, actions
        # What is under way: sent to processes, or handed to the thread.
        self._sent = False
        self._step: Future[Any] | None = None

    def reset(self, at_step: int) -> Obs:
        """The first observations (N / 2, ...) of new episodes."""
        if self._thread is None:
            return self.view.reset(at_step)
        return self._thread.submit(self.view.reset, at_step).result()

    def start(self, actions_N: Array) -> None:
        """Begins a step; `wait` must follow.

        Raises:
            RuntimeError: a process of an environment has ended.
        """
        for_env = self._actions.to_env(actions_N)
        if self._thread is None:
            self._source.start(for_env)
            self._sent = True
        else:
            self._step = self._thread.submit(self._source.step, for_env)

    def wait(self) -> tuple[Obs, Array, Array, Array, list[tuple[int, Obs]]]:
        """What `View.step` gives, of the step that was started.

        Raises:
            As `View.step`.
        """
        if self._step is None:
            self._sent = False  # whatever happens: what has been read of the answers cannot be read again
            return self.view.seen(*self._source.wait())
        answer = self._step.result()
        self._step = None
        return self.view.seen(*answer)

    def settle(self) -> None:
        """Waits for a step that is under way, whatever becomes of it: the other half has failed."""
        sent, step, self._sent, self._step = self._sent, self._step, False, None
        with contextlib.suppress(Exception):  # the first error is raised; a source that is broken by another knows it
            if sent:
                self._source.wait()
            if step is not None:
                step.result()


class HalvesView:
    """What a policy sees of two halves: as `View`; `step` steps both at once, `collect_halves` one after the other.

    mask_N: (N, P), which actions may be taken next; None without masks. starts_N, final_masks: as View's.
    """

    def __init__(self, source: Halves, actions: ActionLayout, *, follow: bool):
        first, second = source.parts
        middle, end = first.num_envs, first.num_envs + second.num_envs
        rows = (slice(0, middle), slice(middle, end))
        self.halves = tuple(
            Half(part, at, source.thread, actions, follow=follow) for part, at in zip(source.parts, rows, strict=True)
        )
        self.layout = self.halves[0].view.layout
        self._names = [part.name for part in source.parts]

    @property
    def mask_N(self) -> Mask | None:  # noqa: N802  (as View's)
        """Both halves' masks."""
        masks = [half.view.mask_N for half in self.halves]
        return None if masks[0] is None else np.concatenate(masks)  # type: ignore[arg-type]

    @property
    def starts_N(self) -> npt.NDArray[np.bool_]:  # noqa: N802  (as View's)
        """Both halves'."""
        return np.concatenate([half.view.starts_N for half in self.halves])

    @property
    def final_masks(self) -> list[Mask]:
        """Those of the final observations that the last step of both gave."""
        return [mask for half in self.halves for mask in half.view.final_masks]

    def step(self, actions_N: Array) -> tuple[Obs, Array, Array, Array, list[tuple[int, Obs]]]:
        """One step of both halves, as `View.step` gives it of all environments."""
        try:
            for half in self.halves:
                half.start(actions_N[half.rows])
            answers = [half.wait() for half in self.halves]
        finally:
            self.settle()
        finals = [
            (half.rows.start + n, obs)
            for half, answer in zip(self.halves, answers, strict=True)
            for n, obs in answer[4]
        ]
        rewards_N, terminated_N, truncated_N = (np.concatenate([answer[k] for answer in answers]) for k in (1, 2, 3))
        return _together(*(answer[0] for answer in answers)), rewards_N, terminated_N, truncated_N, finals

    def reset(self, at_step: int = 0) -> Obs:
        """The first observations (N, ...) of new episodes.

        Raises:
            ValueError: as `View.reset`; or one half gives masks and the other none.
        """
        first, second = (half.reset(at_step) for half in self.halves)
        masked = [half.view.mask_N is not None for half in self.halves]
        if masked[0] != masked[1]:
            raise ValueError(
                f"the environments {self._names[masked[1]]} gave info['action_mask'] at their reset, "
                f"{self._names[masked[0]]} gave none; all must give it, or none"
            )
        return _together(first, second)

    def settle(self) -> None:
        """Leaves no step under way."""
        for half in self.halves:
            half.settle()

    def get_state(self) -> dict[str, Any]:
        """As `View.get_state` gives it of all environments together."""
        first, second = (half.view.get_state() for half in self.halves)
        return {key: None if first[key] is None else np.concatenate((first[key], second[key])) for key in first}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state, of these or of undivided environments."""
        for half in self.halves:
            half.view.set_state({key: None if value is None else value[half.rows] for key, value in state.items()})


def _together(first: Obs, second: Obs) -> Obs:
    """Observations of both halves; copies."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {path: np.concatenate((array, second[path])) for path, array in first.items()}
    joined: Obs = np.concatenate((first, second))  # type: ignore[arg-type]
    return joined


def view_of(source: VectorSource | Halves, actions: ActionLayout, *, follow: bool) -> View | HalvesView:
    """What a policy sees of a worker's environments, `follow` as of View."""
    kind: Any = HalvesView if isinstance(source, Halves) else View
    view: View | HalvesView = kind(source, actions, follow=follow)
    return view


def collect_halves(fragment: Fragment, unroll: Unroll, view: HalvesView) -> None:
    """Fills the fragment from its first observations on, half by half in turn; `fragment.taken` counts the steps."""
    fragments = [fragment.part(half.rows) for half in view.halves]
    unrolls = [unroll.part(half.rows) for half in view.halves]
    turns = [_turns(*parts) for parts in zip(fragments, unrolls, view.halves, strict=True)]
    try:
        for _ in zip_longest(*turns):
            pass
    finally:
        view.settle()
        fragment.join(fragments)
    unroll.join(unrolls)


def _turns(fragment: Fragment, unroll: Unroll, half: Half) -> Iterator[None]:
    """Fills one half's part of the fragment; gives way whenever its environments have begun a step."""
    view, memory = half.view, bool(unroll.state_SN)
    for t in range(len(fragment.rewards_TN)):
        if memory:
            fragment.starts_TN[t] = view.starts_N
        half.start(unroll.act(t, fragment.at(t), view.mask_N, view.starts_N))
        yield
        obs_N, fragment.rewards_TN[t], fragment.terminated_TN[t], fragment.truncated_TN[t], finals = half.wait()
        fragment.put(t + 1, obs_N)
        if finals:
            fragment.finals.extend((t, n, obs) for n, obs in finals)
            fragment.final_masks.extend(view.final_masks)
        fragment.taken += 1
