"""One environment whose errors say which it is and where in its episode, also where it lives in another process."""

from __future__ import annotations

import copy
import pickle
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, Literal, NoReturn

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from flowrl.errors import RemoteError, RemoteTraceback, add_note, text_of
from flowrl.rl.checked import ObsCheck, one_flag, one_reward, reset_answer, step_answer, told_plainly
from flowrl.rl.wrappers import frames_per_step

Kind = Literal["error", "timeout", "exit", "not_finite"]
Call = Literal["constructor", "reset", "step"]
LOST_PROCESS = (EOFError, BrokenPipeError, ConnectionResetError)
CONSTRUCTOR = "in the constructor of environment"
ENDING_S = 2.0  # how long a process whose pipe has closed, or that was told to end, may take to do so


@dataclass(frozen=True)
class Fault:
    """What an environment did that none may do.

    kind: it raised (or its answer does not fit), did not come back in time, ended its process, or gave a number that is
        not finite. env: which of the worker's, None where a vector does not tell its copies apart. seed: of its last
        seeded reset. generator: the state of its random numbers before its last reset without a seed, if known.
    """

    error: Exception
    kind: Kind
    call: Call
    env: int | None = None
    seed: int | None = None
    generator: Mapping[str, Any] | None = None
    exit_code: int | None = None


class Located(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose errors name it and the step of its episode, and whose final observations are copies.

    A reward of shape (1,) becomes a number. What does not fit its spaces or Gymnasium's signatures is an error.
    `apart`: it lives in a process of its own, so its errors are packed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, *, apart: bool = False):
        super().__init__(env)
        self.index, self._step, self._apart = index, 0, apart
        self.seed: int | None = None  # of the last reset that had one
        self.generator: Mapping[str, Any] | None = None  # the state of its random numbers before the last without one
        self.fault: Fault | None = None
        self.frames_per_step = frames_per_step(env)
        self._check = ObsCheck(env.observation_space)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode."""
        self._step = 0
        seed = kwargs.get("seed")
        if seed is not None:
            self.seed, self.generator = seed, None
        else:
            self.generator = _generator_state(self.env)
        try:
            obs, info = reset_answer(self.env.reset(**kwargs))
            self._check(obs)
        except Exception as error:
            self._raise(error, "reset", f"in reset of environment {self.index}")
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
            note = f"in environment {self.index}, at step {self._step} of its episode, action {action!r}"
            self._raise(error, "step", note)
        if terminated or truncated:
            # Some environments reuse the buffer, and the reset may come before anybody reads it.
            obs = np.array(obs) if isinstance(obs, np.ndarray) else copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Closes it."""
        try:
            super().close()
        except Exception as error:
            add_note(error, f"in close of environment {self.index}")
            raise

    def _raise(self, error: Exception, call: Call, note: str) -> NoReturn:
        told = told_plainly(error)
        if told is not error:
            told.__cause__ = error
        add_note(told, note)
        fault = Fault(told, "error", call, self.index, self.seed, self.generator)
        if self._apart:
            raise FailedElsewhere(packed_fault(fault)) from None  # Gymnasium logs the whole, as a format string
        self.fault = fault
        raise told


def _generator_state(env: Any) -> Mapping[str, Any] | None:
    """The state of Gymnasium's generator, where the environment has used it."""
    generator = getattr(env.unwrapped, "_np_random", None)
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else None


class FailedElsewhere(Exception):  # noqa: N818  (never seen: unpacked where it arrives)
    """An environment's fault on its way from its own process: of one argument, which Gymnasium needs."""

    def __str__(self) -> str:
        return "an environment failed in its own process"  # not the bytes, which may hold a % sign

    def unpacked(self) -> Fault:
        """The fault, with the environment's own error."""
        inner = self.args[0]
        if isinstance(inner, FailedElsewhere):  # Gymnasium calls the exception's type with the exception
            return inner.unpacked()
        fault: Fault
        fault, trace = pickle.loads(inner)
        fault.error.__cause__ = RemoteTraceback(trace)
        return fault


def packed_fault(fault: Fault) -> bytes:
    """A fault and its traceback as bytes; an error that cannot travel becomes a RemoteError that names its type."""
    error = fault.error
    trace = "".join(traceback.format_exception(error))
    try:
        packed = cloudpickle.dumps((fault, trace))
        pickle.loads(packed)
    except Exception:  # a constructor of two arguments, or one that holds a lock
        remote = RemoteError(f"{type(error).__name__}: {text_of(error)}")
        for note in getattr(error, "__notes__", ()):
            remote.add_note(note)
        told = Fault(remote, fault.kind, fault.call, fault.env, fault.seed, fault.generator)
        packed = cloudpickle.dumps((told, trace))
    return bytes(packed)


def fault_of(error: Exception, vector: VectorEnv[Any, Any, Any] | None, name: str, call: Call, first: int) -> Fault:
    """The fault behind what a vector raised, with the environment's own error; `first` is the number of its first."""
    if isinstance(error, FailedElsewhere):
        return error.unpacked()
    base = None if vector is None else vector.unwrapped
    if isinstance(error, LOST_PROCESS):
        return _lost(error, base, name, call, first)
    if isinstance(base, SyncVectorEnv):
        for env in base.envs:
            if isinstance(env, Located) and env.fault is not None and env.fault.error is error:
                found, env.fault = env.fault, None
                return found
    return Fault(error, "error", call)


def _lost(error: Exception, base: Any, name: str, call: Call, first: int) -> Fault:
    """A process of environments has ended by itself."""
    which, code = None, None
    processes = base.processes if isinstance(base, AsyncVectorEnv) else []
    if processes:
        ended = wait([process.sentinel for process in processes], ENDING_S)  # its pipe closes a moment before
        gone = [i for i, process in enumerate(processes) if process.sentinel in ended]
        if gone:
            processes[gone[0]].join(ENDING_S)
            which, code = first + gone[0], processes[gone[0]].exitcode
    told = RuntimeError(
        f"a process of the async environments {name} has ended without an answer"
        + ("" if code is None else f" (that of environment {which}, exit code {code})")
        + "; what it wrote stands above. With EnvOptions(vector='sync') an error comes with its traceback"
    )
    told.__cause__ = error
    return Fault(told, "exit", call, which, exit_code=code)


def late(vector: AsyncVectorEnv, name: str, call: Call, timeout_s: float, first: int) -> Fault:
    """The fault of the first environment that has not answered in time."""
    late = [i for i, pipe in enumerate(vector.parent_pipes) if pipe is not None and not pipe.closed and not pipe.poll()]
    which = first + late[0] if late else None
    told = TimeoutError(f"environment {which} of {name} did not come back from {call} within {timeout_s:g} s")
    return Fault(told, "timeout", call, which)


def hanging(vector: VectorEnv[Any, Any, Any]) -> int | None:
    """Which of a vector's environments is in the middle of a call, in whatever thread of this process."""
    calls = (Located.step.__code__, Located.reset.__code__)
    own = getattr(vector.unwrapped, "envs", ())
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if at.f_code in calls and any(at.f_locals["self"] is env for env in own):
                return int(at.f_locals["self"].index)
            at = at.f_back
    return None


def raise_own(fault: Fault) -> NoReturn:
    """Raises an environment's own error, wherever it lives."""
    raise fault.error from fault.error.__cause__


def constructor_fault(error: Exception) -> Fault | None:
    """The fault behind an error of making environments, if it is one's constructor that raised."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(CONSTRUCTOR):
            return Fault(error, "error", "constructor", int(note.removeprefix(CONSTRUCTOR).split()[0]))
    return None


def end_processes(vector: AsyncVectorEnv) -> None:
    """Ends the processes of environments of which one has gone or hangs; their own close would ask them."""
    for process in vector.processes:
        process.terminate()
    for process in vector.processes:
        process.join(ENDING_S)
        if process.is_alive():
            process.kill()
            process.join()
    vector.closed = True


def close_each(vector: SyncVectorEnv) -> None:
    """Closes all environments, whatever the close of one raises; then raises the first such error."""
    if vector.closed:
        return
    vector.closed = True
    failed: list[Exception] = []
    for env in vector.envs:
        try:
            env.close()
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]
