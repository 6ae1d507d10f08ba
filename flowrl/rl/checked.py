"""What environments answer, checked: shapes, kinds and signatures that NumPy would broadcast or convert silently."""

from __future__ import annotations

import numbers
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.spec import Spaces

Array = npt.NDArray[Any]
SIGNATURES = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}
OLD = "an environment of the old Gym needs a wrapper such as Shimmy's GymV21CompatibilityV0"


class NotFinite(FloatingPointError):  # noqa: N818  (as FloatingPointError)
    """An environment gave a number that is not finite: environment `env`, in this row of a fragment (None: a reset)."""

    env = 0
    row: int | None = None

    @staticmethod
    def of(env: int, row: int | None, text: str) -> NotFinite:
        """The error with this text."""
        error = NotFinite(text)
        error.env, error.row = env, row
        return error


def reset_answer(answer: Any) -> tuple[Any, Any]:
    """(observation, info), as Gymnasium's `reset` gives them.

    Raises:
        TypeError: something else.
    """
    if type(answer) is not tuple or len(answer) != 2:
        what = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else _named(answer)
        raise TypeError(f"reset must return {SIGNATURES['reset']} as in Gymnasium, it returned {what}; {OLD}")
    if type(answer[1]) is not dict and not isinstance(answer[1], Mapping):
        raise TypeError(f"reset must return (observation, info), its info is {_named(answer[1])}; an empty one is {{}}")
    return answer


def step_answer(answer: Any) -> tuple[Any, Any, Any, Any, Any]:
    """(observation, reward, terminated, truncated, info), as Gymnasium's `step` gives them.

    Raises:
        TypeError: something else.
    """
    if type(answer) is not tuple or len(answer) != 5:
        what = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else _named(answer)
        raise TypeError(f"step must return {SIGNATURES['step']} as in Gymnasium, it returned {what}; {OLD}")
    if type(answer[4]) is not dict and not isinstance(answer[4], Mapping):
        raise TypeError(f"the info that step returns must be a dict, got {_named(answer[4])}; an empty one is {{}}")
    return answer


def told_plainly(error: Exception) -> Exception:
    """The error, or one that names the environment whose answer a wrapper of Gymnasium's could not unpack.

    Such a wrapper takes the answer apart before anybody here sees it, and its ValueError says neither whose nor why.
    """
    import gymnasium

    if type(error) is not ValueError or "values to unpack" not in str(error):
        return error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    wrapper = frames[-1].f_locals.get("self")
    method = frames[-1].f_code.co_name
    if not isinstance(wrapper, gymnasium.Wrapper) or method not in SIGNATURES or not _gymnasiums(wrapper):
        return error
    env: Any = wrapper.env
    while isinstance(env, gymnasium.Wrapper) and _gymnasiums(env):
        env = env.env
    return TypeError(
        f"{method} of {type(env).__qualname__} must return {SIGNATURES[method]} as in Gymnasium; its wrapper "
        f"{type(wrapper).__name__} got something else ({error}); {OLD}"
    )


def _gymnasiums(env: Any) -> bool:
    return type(env).__module__.split(".")[0] == "gymnasium"


def one_reward(reward: Any) -> Any:
    """A reward as a float; it may come as an array of one number.

    Raises:
        ValueError: several numbers.
        TypeError: no real number.
    """
    array = real_rewards(reward)
    if array.size != 1:
        raise ValueError(
            f"a reward must be one number, got {reward!r} of shape {np.shape(reward)}; "
            f"a wrapper must make one of several"
        )
    return float(array.reshape(()))


def real_rewards(reward: Any) -> Array:
    """A reward of one or several numbers as an array.

    Raises:
        TypeError: no real number. A text "1.5" is none.
    """
    if np.asarray(reward).dtype.kind not in "fiub" and not isinstance(reward, numbers.Real):
        raise TypeError(f"a reward must be a real number, got {_named(reward)}")
    return np.asarray(reward, np.float64)


def one_flag(name: str, value: Any) -> bool:
    """`terminated` or `truncated` as a bool; integers 0 and 1 are taken.

    Raises:
        TypeError: neither. A text "False", None and NaN are no booleans.
    """
    if type(value) is np.bool_:
        return bool(value)
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "bui" or array not in (0, 1):
        raise TypeError(f"{name} must be True or False, got {_named(value)}")
    return bool(array)


class ObsCheck:
    """Asks whether an observation, or the observations of `rows` environments, has its space's shapes and dtypes.

    Numbers may be of another type if none changes by being stored in the space's, floats as far as float32 is exact.
    """

    def __init__(self, space: Any, rows: int | None = None, part: str = ""):
        from gymnasium.spaces import Dict, Tuple

        self._space, self._rows, self._part = space, rows, part
        parts: dict[Any, Any] = dict(space.spaces) if isinstance(space, Dict) else {}
        if isinstance(space, Tuple):
            parts.update(enumerate(space.spaces))
        self._parts = {
            key: ObsCheck(below, rows, f"{part}/{key}" if part else str(key)) for key, below in parts.items()
        }
        self._container: Any = Mapping if isinstance(space, Dict) else (tuple if rows else (tuple, list))
        known = not parts and space.shape is not None and space.dtype is not None
        self._shape = (*(() if rows is None else (rows,)), *space.shape) if known else None
        self._dtype = np.dtype(space.dtype) if known else None

    def __call__(self, obs: Any) -> None:
        """Nothing, if it has.

        Raises:
            ValueError: it has not; names what came and what the space says.
        """
        if self._parts:
            self._check_parts(obs)
        elif type(obs) is not np.ndarray or obs.dtype != self._dtype or obs.shape != self._shape:
            self._check_other(obs)

    def _check_parts(self, obs: Any) -> None:
        if not isinstance(obs, self._container) or len(obs) < len(self._parts):
            raise ValueError(f"{self._subject()} is {_named(obs)}, its space is {self._space}")
        for key, check in self._parts.items():
            if isinstance(obs, Mapping) and key not in obs:
                raise ValueError(f"{self._subject()} has no {key!r}, its space is {self._space}")
            check(obs[key])

    def _check_other(self, obs: Any) -> None:
        if self._dtype is None:
            return
        try:
            array = np.asarray(obs)
        except ValueError:  # rows of different lengths
            raise ValueError(f"{self._subject()} is {_named(obs)}, {self._expected()}") from None
        if array.shape != self._shape:
            raise ValueError(f"{self._subject()} has shape {array.shape}, {self._expected()}")
        if array.dtype.kind not in "fiub":
            raise ValueError(f"{self._subject()} is {_named(obs)}, {self._expected()}")
        if self._dtype.kind == "f" or np.can_cast(array.dtype, self._dtype, "safe"):
            return
        with np.errstate(invalid="ignore"):
            changed = array.astype(self._dtype) != array
        if changed.any():
            raise ValueError(
                f"{self._subject()} holds {array[changed].ravel()[0]} in {array.dtype}, which {self._dtype} cannot "
                f"hold; {self._expected()}"
            )

    def _subject(self) -> str:
        return f"the observation {self._part!r}" if self._part else "the observation"

    def _expected(self) -> str:
        several = "" if self._rows is None else f" for {self._rows} environments"
        return f"expected shape {self._shape} and {self._dtype}{several}: its space is {self._space}"


class VectorCheck:
    """Asks whether what a vector of environments answers is a row for each: N of them, named `name` in errors."""

    def __init__(self, spaces: Spaces, rows: int, name: str):
        self._obs, self._one = ObsCheck(spaces.observation, rows), ObsCheck(spaces.observation)
        self._rows, self._name = rows, name

    def reset(self, answer: Any) -> tuple[Any, Any]:
        """Observations (N, ...) and infos.

        Raises:
            ValueError, TypeError: something else.
        """
        try:
            obs_N, info = reset_answer(answer)
            self._obs(obs_N)
        except (ValueError, TypeError) as error:
            raise self._located(error) from None
        return obs_N, info

    def step(self, answer: Any) -> tuple[Any, Array, Array, Array, Any]:
        """Observations (N, ...), rewards (N,), terminated and truncated as booleans (N,), and infos.

        Raises:
            ValueError, TypeError: something else.
        """
        try:
            obs_N, rewards_N, terminated_N, truncated_N, info = step_answer(answer)
            self._obs(obs_N)
            if not _is_row(rewards_N, self._rows, "f"):
                rewards_N = self._rewards(rewards_N)
            if not _is_row(terminated_N, self._rows, "b"):
                terminated_N = self._flags("terminated", terminated_N)
            if not _is_row(truncated_N, self._rows, "b"):
                truncated_N = self._flags("truncated", truncated_N)
        except (ValueError, TypeError) as error:
            raise self._located(error) from None
        return obs_N, rewards_N, terminated_N, truncated_N, info

    def final(self, info: Mapping[str, Any], n: int) -> Any:
        """The final observation of environment `n`, of a vector that resets in the same step.

        Raises:
            ValueError: there is none, or it does not fit the space.
        """
        try:
            final = info["final_obs"][n]
        except (KeyError, IndexError, TypeError):
            final = None
        if final is None:
            raise ValueError(
                f"the environments {self._name} reset in the step that ends an episode (SAME_STEP), but "
                f"info['final_obs'] holds no observation of environment {n}, whose episode has ended; give it, or "
                f"reset in the next step (NEXT_STEP)"
            )
        try:
            self._one(final)
        except ValueError as error:
            raise self._located(error, f"info['final_obs'][{n}]: ") from None
        return final

    def _rewards(self, rewards_N: Any) -> Array:
        rewards = np.asarray(rewards_N)
        if rewards.dtype.kind not in "fiub":
            raise TypeError(f"rewards must be real numbers, got {_named(rewards_N)}")
        # A column (N, 1) is one number each, too.
        if rewards.size != self._rows or (rewards.ndim == 0 and self._rows > 1):
            raise ValueError(
                f"rewards of shape {rewards.shape}, expected {self._rows} numbers; a wrapper must make one of several"
            )
        return rewards.reshape(self._rows)

    def _flags(self, name: str, flags_N: Any) -> Array:
        flags = np.asarray(flags_N)
        if flags.shape != (self._rows,) or flags.dtype.kind not in "bui" or (flags > 1).any() or (flags < 0).any():
            raise ValueError(f"{name} must be {self._rows} booleans, got {_named(flags_N)} of shape {flags.shape}")
        return flags.astype(np.bool_)

    def _located(self, error: Exception, where: str = "") -> Exception:
        return type(error)(f"the environments {self._name} gave what does not fit: {where}{error}")


def _is_row(value: Any, rows: int, kind: str) -> bool:
    return type(value) is np.ndarray and value.dtype.kind == kind and value.shape == (rows,)


def _named(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 100 else text[:97] + '...'}"
