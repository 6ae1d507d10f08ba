"""A vector of copies of one environment, stepped and reset together, whose errors say which copy failed."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from flowrl.rl.checked import VectorCheck
from flowrl.rl.located import Call, Fault, close_each, constructor_fault, end_processes, fault_of, late, raise_own
from flowrl.rl.spec import Spaces
from flowrl.rl.watchdog import Watchdog

Array = npt.NDArray[Any]
Vector = VectorEnv[Any, Any, Any]


class VectorSource:
    """Several copies of one environment, stepped together.

    `step` gives observations, rewards, terminated, truncated (leading dimension N) and the final
    observations of episodes that ended where the returned ones are already those of a reset:
    `final` is a list of (environment, observation). In next_step mode it is always empty: the
    observation returned is the final one, and the step after it only resets (a phantom row).
    Observations of Dict and Tuple spaces are dicts and tuples of arrays. `info` is that of the
    observations handed out last, as a vector gives it (`name` (N, ...), `_name` (N,) whether it is there).
    Arrays belong to the environment and change at the next call; final observations are copies.

    `seeds` is None where the environments were seeded when they were made. `remake` makes the vector
    anew where a failure leaves it unusable. `first` is the number of its first environment, where these are
    some of more: each is seeded as it would be among all. `timeout_s`: how long a reset or step may take; of
    environments in this process `watchdog` sees to it.

    `fault` is what stands behind the last error that an environment caused.
    """

    def __init__(
        self,
        vector: Vector,
        seeds: np.random.SeedSequence | None,
        name: str,
        remake: Callable[[], Vector] | None = None,
        *,
        first: int = 0,
        timeout_s: float | None = None,
        watchdog: Watchdog | None = None,
    ):
        self.vector, self.name, self.num_envs = vector, name, int(vector.num_envs)
        self.spaces = Spaces(vector.single_observation_space, vector.single_action_space)
        self.info: Mapping[str, Any] = {}
        self.fault: Fault | None = None
        self.first = first
        self.watchdog = watchdog
        self._check = VectorCheck(self.spaces, self.num_envs, name)
        self._seeds, self._remake, self._broken, self._timeout_s = seeds, remake, False, timeout_s
        self.mode = self._autoreset_mode()
        self.phantom_rows = self.mode is AutoresetMode.NEXT_STEP
        self.frame_skip = _frame_skip(vector)

    def _autoreset_mode(self) -> AutoresetMode:
        mode = self.vector.metadata.get("autoreset_mode")
        try:
            return AutoresetMode(mode)
        except ValueError:
            raise ValueError(
                f"the vector environment {self.name} does not say how it resets: its metadata['autoreset_mode'] is "
                f"{mode!r}, expected a gymnasium.vector.AutoresetMode; without it final observations cannot be told"
            ) from None

    def reset(self, at_step: int = 0) -> Any:
        """The first observations (N, ...) of new episodes, seeded by the stream and the worker's step.

        Raises:
            As `step`; and what a constructor raises, where environments are made anew.
        """
        if self._broken and self._remake is not None:
            self._make_anew(self._remake)
        seeds: dict[str, Any] = {}
        if self._seeds is not None:
            each = env_seeds(child(self._seeds, at_step), self.num_envs, self.first)
            apart = isinstance(self.vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
            seeds["seed"] = each if apart else each[0]
        try:
            obs_N, self.info = self._check.reset(self._reset(**seeds))
        except BaseException as error:
            self._raise(error, "reset")
        return obs_N

    def _make_anew(self, remake: Callable[[], Vector]) -> None:
        with suppress(Exception):  # it is given up in any case
            self.close()
        try:
            self.vector, self._broken = remake(), False
        except Exception as error:
            self.fault = constructor_fault(error) or Fault(error, "error", "constructor")
            raise

    @property
    def parts(self) -> tuple[VectorSource, ...]:
        """This one, as Halves have two."""
        return (self,)

    def seed_of(self, env: int, at_step: int | None) -> int | None:
        """The seed that environment `env` of the worker got at the reset of that step; None where it is not known."""
        if self._seeds is None or at_step is None:
            return None
        return env_seeds(child(self._seeds, at_step), 1, env)[0]

    def give_up(self) -> None:
        """The next reset makes the environments anew, where that is possible."""
        self._broken = True

    def step(self, actions_N: Any) -> tuple[Any, Any, Any, Any, list[tuple[int, Any]]]:
        """One step of every environment: obs, rewards (N,), terminated, truncated, and final observations.

        Raises:
            ValueError, TypeError: an array is not a row for each environment, of what the space says.
            TimeoutError: one in a process of its own did not come back in time.
            Whatever an environment raises, with a note which and where.
        """
        try:
            if self._timeout_s is None:
                return self._taken(self.vector.step(actions_N))
            return self._taken(self._timed("step", self._timeout_s, actions_N))
        except BaseException as error:
            self._raise(error, "step")

    @property
    def apart(self) -> bool:
        """Whether the environments are in processes of their own, so that a step can be started and waited for."""
        return type(self.vector) is AsyncVectorEnv

    def start(self, actions_N: Any) -> None:
        """Begins a step of environments that are `apart`; `wait` must follow.

        Raises:
            RuntimeError: a process has ended.
        """
        try:
            cast(AsyncVectorEnv, self.vector).step_async(actions_N)
        except BaseException as error:
            self._raise(error, "step")

    def wait(self) -> tuple[Any, Any, Any, Any, list[tuple[int, Any]]]:
        """What `step` gives, of the step that was started.

        Raises:
            As `step`.
        """
        try:
            return self._taken(self._waited("step", self._timeout_s))
        except BaseException as error:
            self._raise(error, "step")

    def _reset(self, **how: Any) -> Any:
        return self.vector.reset(**how) if self._timeout_s is None else self._timed("reset", self._timeout_s, **how)

    def _timed(self, call: Call, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """What a call gives, in time; else an error, or the end of this process."""
        if self.apart:
            getattr(self.vector, f"{call}_async")(*args, **kwargs)
            return self._waited(call, timeout_s)
        assert self.watchdog is not None, "environments in this process need one"
        with self.watchdog.watching(call, self.name):
            return getattr(self.vector, call)(*args, **kwargs)

    def _waited(self, call: Call, timeout_s: float | None) -> Any:
        vector = cast(AsyncVectorEnv, self.vector)
        try:
            return vector.step_wait(timeout_s) if call == "step" else vector.reset_wait(timeout_s)
        except multiprocessing.TimeoutError:
            assert timeout_s is not None
            self.fault = late(vector, self.name, call, timeout_s, self.first)
            raise self.fault.error from None

    def _taken(self, answer: Any) -> tuple[Any, Any, Any, Any, list[tuple[int, Any]]]:
        obs_N, rewards_N, terminated_N, truncated_N, self.info = self._check.step(answer)
        if self.phantom_rows:
            return obs_N, rewards_N, terminated_N, truncated_N, []
        done_N = np.logical_or(terminated_N, truncated_N)
        if not done_N.any():
            return obs_N, rewards_N, terminated_N, truncated_N, []
        ended = np.flatnonzero(done_N).tolist()
        if self.mode is AutoresetMode.SAME_STEP:
            finals = [(i, copy.deepcopy(self._check.final(self.info, i))) for i in ended]
        else:
            finals = [(i, row_of(obs_N, i)) for i in ended]
            obs_N, after = self._check.reset(self._reset(options={"reset_mask": done_N}))
            self.info = _overlaid(self.info, after)
        return obs_N, rewards_N, terminated_N, truncated_N, finals

    def close(self) -> None:
        """Closes every environment, also where the close of one raises, which is raised then.

        Raises:
            Whatever the first that failed raises, with a note which it was.
        """
        if self.watchdog is not None:
            self.watchdog.close()
        base = self.vector.unwrapped
        if isinstance(base, AsyncVectorEnv):
            if self._broken:
                end_processes(base)
            else:
                self.vector.close(timeout=self._timeout_s)
        elif isinstance(self.vector, SyncVectorEnv):
            close_each(self.vector)
        else:
            self.vector.close()

    def _raise(self, error: BaseException, call: Call) -> NoReturn:
        # After an interrupt, too, answers of processes may be under way.
        self._broken = isinstance(self.vector.unwrapped, AsyncVectorEnv)
        if not isinstance(error, Exception):
            raise error
        if self.fault is None or self.fault.error is not error:
            self.fault = fault_of(error, self.vector, self.name, call, self.first)
        raise_own(self.fault)


def row_of(obs_N: Any, n: int) -> Any:
    """A copy of one environment's observation out of a vector's."""
    if isinstance(obs_N, Mapping):
        return {key: row_of(entry, n) for key, entry in obs_N.items()}
    if isinstance(obs_N, tuple):
        return tuple(row_of(entry, n) for entry in obs_N)
    return np.array(obs_N[n])


def _overlaid(info: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The info of a step, with that of the environments that were reset after it in its place."""
    merged = dict(info)
    for key, value in after.items():
        there = after.get(f"_{key}")
        known: Any = merged.get(key)
        if there is None or not isinstance(value, np.ndarray) or np.shape(known) != value.shape:
            merged.setdefault(key, value)
            continue
        kept = np.array(known)
        kept[there] = value[there]
        merged[key] = kept
        merged[f"_{key}"] = np.logical_or(merged[f"_{key}"], there)
    return merged


def _frame_skip(vector: Vector) -> int:
    if isinstance(vector.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        try:
            return int(vector.unwrapped.get_attr("frames_per_step")[0])
        except AttributeError:  # a vector made elsewhere, of processes
            return 1
    # EnvPool says it in its configuration, a vector of its own kind perhaps as an attribute.
    config = getattr(getattr(vector, "spec", None), "config", None)
    return int(getattr(config, "frame_skip", getattr(vector.unwrapped, "frame_skip", 1)))


def child(seeds: np.random.SeedSequence, *path: int) -> np.random.SeedSequence:
    """The stream below `seeds` at this path; unlike `spawn` it counts nothing, so asking twice gives the same."""
    return np.random.SeedSequence(seeds.entropy, spawn_key=(*seeds.spawn_key, *path))


def env_seeds(seeds: np.random.SeedSequence, num_envs: int, first: int = 0) -> list[int]:
    """One seed an environment from number `first` on, of 31 bits: some environments take no more."""
    return [int(child(seeds, first + i).generate_state(1)[0] >> 1) for i in range(num_envs)]
