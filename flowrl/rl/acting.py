"""What all inference has in common: actions from outputs, and checks of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout
from flowrl.rl.masks import Mask, masked
from flowrl.rl.numpy_distributions import GreedySampler, Sampler, sampler_of
from flowrl.rl.observations import Obs, num_rows
from flowrl.rl.spaces import check_policy
from flowrl.rl.spec import ACTOR_HEADS, PolicySpec, Spaces

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
State = dict[str, Floats]


class Acting:
    """What is common to all inference: actions from outputs."""

    size: int

    def __init__(self, spec: PolicySpec, spaces: Spaces):
        check_policy(spec, spaces)
        self.actions = ActionLayout.for_policy(spec, spaces.action)
        self.greedy = spec.head == "q"
        self.judges = spec.head not in ACTOR_HEADS
        self.sampler: Sampler = GreedySampler() if self.greedy else sampler_of(self.actions)
        self.state_shapes: Mapping[str, tuple[int, ...]] = {}

    def forward(self, obs_N: Obs) -> tuple[Floats, Floats | None]:
        raise NotImplementedError

    def values(self, obs_N: Obs) -> Floats:
        raise NotImplementedError

    def step(self, obs_N: Obs, state: State, starts_N: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, State]:
        raise NotImplementedError

    def resample(self, rng: np.random.Generator) -> None:
        """Draws the noise of a network that explores by noise anew; nothing for any other."""

    def initial_state(self, num_envs: int) -> State:
        """The state (N, ...) at the beginning of episodes: zeros."""
        return {name: np.zeros((num_envs, *shape), np.float32) for name, shape in self.state_shapes.items()}

    def act(
        self,
        obs_N: Obs,
        rng: np.random.Generator | None = None,
        *,
        mask: Mask | None = None,
        state: State | None = None,
        starts_N: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[Array, State]:
        """Actions (N, ...), sampled with `rng` or else the most probable, and the state after the step.

        Raises:
            FloatingPointError: the outputs are not finite.
        """
        after: State = {}
        if self.state_shapes:
            rows = num_rows(obs_N)
            before = self.initial_state(rows) if state is None else state
            params, _, after = self.step(obs_N, before, np.zeros(rows, np.bool_) if starts_N is None else starts_N)
        else:
            params, _ = self.forward(obs_N)
        check_finite("logits", params)
        params = masked(params, mask)
        if rng is None:
            return self.sampler.mode(params), after
        actions = np.empty((len(params), *self.actions.shape), self.actions.dtype)
        self.sampler.pick(params, self.sampler.noise(rng, params.shape[:1]), actions)
        return actions, after


def check_weights(flat: Floats, size: int) -> None:
    """Nothing, if `flat` is a finite vector of this length.

    Raises:
        ValueError: names both lengths, or says how many numbers are not finite.
    """
    if np.shape(flat) != (size,):
        raise ValueError(
            f"this policy has {size:,} weights in one flat vector, got an array of shape {np.shape(flat)}; give the "
            "workers and the learner the same PolicySpec"
        )
    if not np.isfinite(flat).all():
        bad = int(np.count_nonzero(~np.isfinite(flat)))
        raise ValueError(f"{bad:,} of {size:,} weights are not finite; the update that made them has diverged")


def check_finite(what: str, array: Floats) -> None:
    """Nothing, if all numbers are finite.

    Raises:
        FloatingPointError: names the value and its row: (environment,) or (step, environment).
    """
    if np.isfinite(array).all():
        return
    at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    row = at[:-1] if what == "logits" else at
    raise FloatingPointError(
        f"the policy gave {what} of {array[at]} at row {row} (step of the fragment first, environment last): "
        f"its weights or the observation are non-finite or too large; lower the learning rate or scale the observation"
    )
