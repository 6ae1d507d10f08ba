"""Schedules: numbers that follow from the global count of environment steps, so resuming needs no state of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real

Rate = float | Callable[[int], float]
"""A number, or a function of the global count of environment steps."""


@dataclass(frozen=True)
class Constant:
    """The same value at every step; what a plain number is, where a schedule is wanted."""

    value: float

    def __call__(self, env_steps: int) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True)
class Linear:
    """From `start` at step 0 in a straight line to `end` at step `over_env_steps`, and `end` ever after.

    Raises:
        ValueError: a value is not finite, or `over_env_steps` is below 1.
    """

    start: float
    end: float
    over_env_steps: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ValueError(f"start and end of a schedule must be finite, got {self.start} and {self.end}")
        if self.over_env_steps < 1:
            raise ValueError(f"over_env_steps must be at least 1, got {self.over_env_steps}")

    def __call__(self, env_steps: int) -> float:
        """The value after so many environment steps, all workers' together."""
        share = min(max(env_steps, 0) / self.over_env_steps, 1.0)
        return self.start * (1.0 - share) + self.end * share


def value_at(rate: Rate, env_steps: int, name: str) -> float:
    """A rate's value at a global count of environment steps; a plain number is itself. `name` is for the error's text.

    Raises:
        ValueError: a schedule gave a negative number or one that is not finite.
    """
    if not callable(rate):
        return rate
    try:
        value = float(rate(env_steps))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the schedule of {name} gave no number at env_steps={env_steps} ({rate!r}): {error}"
        ) from error
    if not 0.0 <= value < math.inf:
        raise ValueError(
            f"the schedule of {name} gave {value} at env_steps={env_steps}; it must stay finite, at least 0 ({rate!r})"
        )
    return value


def check_is_rate(name: str, rate: object) -> None:
    """Nothing, if this is a number or a function.

    Raises:
        ValueError: it is something else.
    """
    if not callable(rate) and (isinstance(rate, bool) or not isinstance(rate, Real)):
        raise ValueError(f"{name} must be a number, or a function of the run's environment steps, got {rate!r}")


def check_rate(name: str, rate: Rate, *, above_0: bool) -> None:
    """Nothing, if a rate begins as a finite number at least 0, or above 0 where `above_0`.

    A schedule may reach 0 later whatever `above_0` says: a learning rate that ends at 0 trains no more.

    Raises:
        ValueError: names the rate and its value.
    """
    check_is_rate(name, rate)
    value = value_at(rate, 0, name)
    if not math.isfinite(value) or value < 0 or (above_0 and value == 0):
        least = "above 0" if above_0 else "at least 0"
        raise ValueError(f"{name} must be {least} and finite, got {value}")


def may_follow_steps(loss: object) -> bool:
    """Whether something in a loss may be a schedule; of a dataclass it is seen from its fields, of others not."""
    if not dataclasses.is_dataclass(loss) or isinstance(loss, type):
        return True
    return any(
        callable(value) or isinstance(value, Mapping | list | tuple)
        for value in (getattr(loss, entry.name) for entry in dataclasses.fields(loss))
    )
