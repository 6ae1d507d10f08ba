"""What is put around each copy of an environment, and how the copies become one vector."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np

from flowrl.failures import Raise, Restart
from flowrl.given import short
from flowrl.numbers import check_seconds, check_whole
from flowrl.rl.checked import one_flag, real_rewards, step_answer

Env = gymnasium.Env[Any, Any]
Autoreset = Literal["next_step", "same_step", "disabled"]
Vectorization = Literal["auto", "sync", "async", "entry_point"]
AUTORESETS, VECTORIZATIONS = ("next_step", "same_step", "disabled"), ("auto", "sync", "async", "entry_point")


@dataclass(frozen=True)
class EnvOptions:
    """What is put around each copy of an environment, in this order, and how the copies are stepped together.

    Raises:
        ValueError: a number below 1, or an unknown mode.
    """

    atari: Mapping[str, Any] | None = None
    """Arguments of Gymnasium's AtariPreprocessing (Machado et al., arXiv:1709.06009), {} for its own defaults: up to 30
    actions of nothing at a reset, 4 frames a step, 84 × 84 pixels in grey. Needs the extra `atari`."""
    frame_skip: int = 1
    """An action is repeated so often, rewards are added up."""
    wrappers: tuple[Callable[[Env], Env], ...] = ()
    """Wrappers of one's own."""
    frame_stack: int = 1
    """An observation is made of the newest so many, along a new first axis; at a reset the first is repeated."""
    vector: Vectorization = "auto"
    """"sync": copies in this process, one after the other; "async": a process for each; "entry_point": the vector
    environment that comes with the id; "auto": that one where it can do all that is asked for, else "sync"."""
    vector_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What Gymnasium's SyncVectorEnv or AsyncVectorEnv take: context, shared_memory, observation_mode, ..."""
    autoreset: Autoreset = "next_step"
    """When an ended copy begins its next episode; all three give the same valid transitions."""
    double_buffer: bool = False
    """A rollout worker's copies are two halves: one steps while the other's actions are computed (Sample Factory,
    arXiv:2006.11751). The transitions stay the same where each copy has a seed of its own. It gains time where copies
    step without Python's lock: vector="async" with processors to spare, simulators in C++, EnvPool, calls to elsewhere;
    and only if choosing actions takes about as long as a step. Copies in Python in the worker's own process
    become slower by it. Evaluations step all together."""
    on_fault: Raise | Restart = Raise()  # noqa: RUF009  (frozen)
    """What an environment's fault means: an exception, an answer that does not fit its spaces, a number that is not
    finite, a call past env_timeout_s, the end of its process. Raise(): the run stops with it. Restart(n, backoff_s):
    the worker's fragment is dropped whole and its copies are made anew, up to n times in a row; `env_restarts` counts
    them."""
    env_timeout_s: float | None = None
    """A reset or step that takes longer is a fault. With it vector="auto" gives copies processes of their own, which
    can be killed. Others (vector="sync", a vector of one's own, several agents) take their actor's process with them,
    which the gather's on_failure then restarts; without such a process (Local) they are refused."""
    crash_dir: str | None = "flowrl-crashes"
    """Where the workers leave what reproduces a fault (`flowrl replay-crash FILE`); None: nowhere."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "wrappers", tuple(self.wrappers))
        if not isinstance(self.on_fault, Raise | Restart):
            raise ValueError(f"on_fault must be Raise() or Restart(n, backoff_s), got {short(self.on_fault)}")
        if self.env_timeout_s is not None:
            check_seconds("env_timeout_s", self.env_timeout_s)
        if self.crash_dir is not None and (not isinstance(self.crash_dir, str) or not self.crash_dir):
            raise ValueError(f"crash_dir must be the path of a directory, or None, got {short(self.crash_dir)}")
        for name in ("frame_skip", "frame_stack"):
            check_whole(name, getattr(self, name))
        for name, known in (("vector", VECTORIZATIONS), ("autoreset", AUTORESETS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {getattr(self, name)!r}")

    @property
    def wraps(self) -> tuple[str, ...]:
        """The names of the options that change single environments."""
        plain = EnvOptions()
        names = ("atari", "frame_skip", "wrappers", "frame_stack")
        return tuple(name for name in names if getattr(self, name) != getattr(plain, name))

    @property
    def plain(self) -> bool:
        """Whether a vector environment of its own could do all that is asked for."""
        return not self.wraps and not self.vector_kwargs and self.autoreset == "next_step" and not self.apart

    @property
    def apart(self) -> bool:
        """Whether copies that are made one by one get processes of their own."""
        return self.vector == "async" or (self.vector == "auto" and self.env_timeout_s is not None)


def wrap(env: Env, options: EnvOptions) -> Env:
    """The environment with everything around it that the options say.

    Raises:
        ImportError: OpenCV is not installed and `options.atari` needs it.
        Whatever a wrapper raises.
    """
    if options.atari is not None:
        try:
            env = gymnasium.wrappers.AtariPreprocessing(env, **options.atari)
        except gymnasium.error.DependencyNotInstalled as error:
            raise ImportError("Atari's preprocessing needs OpenCV: pip install 'flowrl[atari]'") from error
    if options.frame_skip > 1:
        env = FrameSkip(env, options.frame_skip)
    for wrapper in options.wrappers:
        env = wrapper(env)
    if options.frame_stack > 1:
        env = gymnasium.wrappers.FrameStackObservation(Copied(env), options.frame_stack)
    return env


class Copied(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations as copies: who keeps the last few would otherwise hold one buffer several times."""

    def observation(self, observation: Any) -> Any:
        """A copy."""
        return np.array(observation) if isinstance(observation, np.ndarray) else copy.deepcopy(observation)


class FrameSkip(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats each action `frame_skip` times, or until the episode ends; rewards are added up."""

    def __init__(self, env: Env, frame_skip: int):
        super().__init__(env)
        self.frame_skip = frame_skip

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The last frame's answer with the rewards of all."""
        total: Any = 0.0
        for _ in range(self.frame_skip):
            obs, reward, terminated, truncated, info = step_answer(self.env.step(action))
            total = total + real_rewards(reward)
            if one_flag("terminated", terminated) or one_flag("truncated", truncated):
                break
        return obs, total, terminated, truncated, info


def frames_per_step(env: Any) -> int:
    """How many frames a step of an environment takes: the product of what it and its wrappers skip.

    It is read from each layer's attribute `frame_skip` (Atari's preprocessing, MuJoCo's tasks, `FrameSkip`),
    `_frameskip` (Atari's emulator) or `_skip` (Gymnasium's MaxAndSkipObservation); a range to draw from
    counts 1.
    """
    frames = 1
    while env is not None:
        for name in ("frame_skip", "_frameskip", "_skip"):
            skip = vars(env).get(name, getattr(type(env), name, None))
            if isinstance(skip, int | np.integer) and not isinstance(skip, bool):
                frames *= max(int(skip), 1)
                break
        env = vars(env).get("env")
    return frames
