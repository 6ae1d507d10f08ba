"""A vector of copies of one environment, stepped and reset together, whose errors say which copy failed."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import cloudpickle
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from flowrl.errors import RemoteError, RemoteTraceback, add_note, text_of
from flowrl.rl.checked import ObsCheck, VectorCheck, one_flag, one_reward, reset_answer, step_answer, told_plainly
from flowrl.rl.spec import Spaces
from flowrl.rl.wrappers import frames_per_step

Array = npt.NDArray[Any]
Vector = VectorEnv[Any, Any, Any]
LOST_PROCESS = (EOFError, BrokenPipeError, ConnectionResetError)


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
    some of more: each is seeded as it would be among all.
    """

    def __init__(
        self,
        vector: Vector,
        seeds: np.random.SeedSequence | None,
        name: str,
        remake: Callable[[], Vector] | None = None,
        *,
        first: int = 0,
    ):
        self.vector, self.name, self.num_envs = vector, name, int(vector.num_envs)
        self.spaces = Spaces(vector.single_observation_space, vector.single_action_space)
        self.info: Mapping[str, Any] = {}
        self._check = VectorCheck(self.spaces, self.num_envs, name)
        self._seeds, self._remake, self._broken, self._first = seeds, remake, False, first
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
        """The first observations (N, ...) of new episodes, seeded by the stream and the worker's step."""
        if self._broken and self._remake is not None:
            self.close()
            self.vector, self._broken = self._remake(), False
        if self._seeds is None:
            obs_N, self.info = self._check.reset(self._guarded(self.vector.reset))
            return obs_N
        seeds = env_seeds(child(self._seeds, at_step), self.num_envs, self._first)
        apart = isinstance(self.vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        obs_N, self.info = self._check.reset(self._guarded(self.vector.reset, seed=seeds if apart else seeds[0]))
        return obs_N

    def step(self, actions_N: Any) -> tuple[Any, Any, Any, Any, list[tuple[int, Any]]]:
        """One step of every environment: obs, rewards (N,), terminated, truncated, and final observations.

        Raises:
            ValueError, TypeError: an array is not a row for each environment, of what the space says.
            Whatever an environment raises, with a note which and where.
        """
        try:
            answer = self.vector.step(actions_N)
        except BaseException as error:
            self._raise(error)
        return self._taken(answer)

    @property
    def apart(self) -> bool:
        """Whether the environments are in processes of their own, so that a step can be started and waited for."""
        return type(self.vector) is AsyncVectorEnv

    def start(self, actions_N: Any) -> None:
        """Begins a step of environments that are `apart`; `wait` must follow.

        Raises:
            RuntimeError: a process has ended.
        """
        self._guarded(cast(AsyncVectorEnv, self.vector).step_async, actions=actions_N)

    def wait(self) -> tuple[Any, Any, Any, Any, list[tuple[int, Any]]]:
        """What `step` gives, of the step that was started.

        Raises:
            As `step`.
        """
        return self._taken(self._guarded(cast(AsyncVectorEnv, self.vector).step_wait))

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
            obs_N, after = self._check.reset(self._guarded(self.vector.reset, options={"reset_mask": done_N}))
            self.info = _overlaid(self.info, after)
        return obs_N, rewards_N, terminated_N, truncated_N, finals

    def close(self) -> None:
        """Closes every environment."""
        base = self.vector.unwrapped
        if self._broken and isinstance(base, AsyncVectorEnv):
            # Its own close asks the processes, of which one has gone.
            for process in base.processes:
                process.terminate()
                process.join()
            base.closed = True
        else:
            self.vector.close()

    def _guarded(self, act: Callable[..., Any], **kwargs: Any) -> Any:
        try:
            return act(**kwargs)
        except BaseException as error:
            self._raise(error)

    def _raise(self, error: BaseException) -> NoReturn:
        # After an interrupt, too, answers of processes may be under way.
        self._broken = isinstance(self.vector.unwrapped, AsyncVectorEnv)
        raise_environments_own(error, self.name)


class Located(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose errors name it and the step of its episode, and whose final observations are copies.

    A reward of shape (1,) becomes a number. What does not fit its spaces or Gymnasium's signatures is an error.
    `apart`: it lives in a process of its own, so its errors are packed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, *, apart: bool = False):
        super().__init__(env)
        self._index, self._step, self._apart = index, 0, apart
        self.frames_per_step = frames_per_step(env)
        self._check = ObsCheck(env.observation_space)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode."""
        self._step = 0
        try:
            obs, info = reset_answer(self.env.reset(**kwargs))
            self._check(obs)
        except Exception as error:
            self._raise(error, f"in reset of environment {self._index}")
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step."""
        self._step += 1
        try:
            obs, reward, terminated, truncated, info = step_answer(self.env.step(action))
            self._check(obs)
            if type(reward) is not float and type(reward) is not np.float64:
                reward = one_reward(reward)
            if type(terminated) is not bool:
                terminated = one_flag("terminated", terminated)
            if type(truncated) is not bool:
                truncated = one_flag("truncated", truncated)
        except Exception as error:
            self._raise(error, f"in environment {self._index}, at step {self._step} of its episode, action {action!r}")
        if terminated or truncated:
            # Some environments reuse the buffer, and the reset may come before anybody reads it.
            obs = np.array(obs) if isinstance(obs, np.ndarray) else copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info

    def _raise(self, error: Exception, note: str) -> NoReturn:
        told = told_plainly(error)
        if told is not error:
            told.__cause__ = error
        add_note(told, note)
        if not self._apart:
            raise told
        raise FailedElsewhere(packed_error(told)) from None  # Gymnasium logs the whole, as a format string


class FailedElsewhere(Exception):  # noqa: N818  (never seen: unpacked where it arrives)
    """An environment's error on its way from its own process: of one argument, which Gymnasium needs."""

    def __str__(self) -> str:
        return "an environment failed in its own process"  # not the bytes, which may hold a % sign

    def unpacked(self) -> Exception:
        """The environment's own error."""
        inner = self.args[0]
        if isinstance(inner, FailedElsewhere):  # Gymnasium calls the exception's type with the exception
            return inner.unpacked()
        error: Exception
        error, trace = pickle.loads(inner)
        error.__cause__ = RemoteTraceback(trace)
        return error


def packed_error(error: Exception) -> bytes:
    """An exception and its traceback as bytes; one that cannot travel becomes a RemoteError that names its type."""
    trace = "".join(traceback.format_exception(error))
    try:
        packed = cloudpickle.dumps((error, trace))
        pickle.loads(packed)
    except Exception:  # a constructor of two arguments, or one that holds a lock
        remote = RemoteError(f"{type(error).__name__}: {text_of(error)}")
        for note in getattr(error, "__notes__", ()):
            remote.add_note(note)
        packed = cloudpickle.dumps((remote, trace))
    return bytes(packed)


def raise_environments_own(error: BaseException, name: str) -> NoReturn:
    """Raises an environment's own error, wherever it lives."""
    if isinstance(error, FailedElsewhere):
        own = error.unpacked()
        raise own from own.__cause__
    if isinstance(error, LOST_PROCESS):
        raise RuntimeError(
            f"a process of the async environments {name} has ended without an answer; what it wrote stands above. "
            f"With EnvOptions(vector='sync') the same error comes with its traceback"
        ) from error
    raise error


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
