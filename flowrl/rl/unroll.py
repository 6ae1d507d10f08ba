"""The policy's side of one fragment: actions step by step, afterwards their probabilities and the values."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flowrl.rl.acting import Array, Floats, State, check_finite
from flowrl.rl.inference import Inference
from flowrl.rl.masks import Mask, masked
from flowrl.rl.observations import Obs, map_arrays, num_rows

Bools = npt.NDArray[np.bool_]
Floats64 = npt.NDArray[np.float64]
PER_ENVIRONMENT = ("actions_TN", "_noise", "_params", "_values", "_explore", "_uniform")


class Unroll:
    """The actions of one fragment, step by step, and afterwards their log-probabilities and the values.

    The noise is drawn beforehand and the probabilities are computed once for the whole fragment:
    between two steps of the environment only a forward pass and a pick remain.
    `epsilon`, a number or one an environment (N,), mixes in uniform actions (Discrete ones, and those of a policy that
    does not judge), valid ones where there are masks; log-probabilities are then those of the mixture. `state` is what
    a policy with memory begins with; `state_SN` has it before every step and at the end.
    """

    def __init__(
        self,
        net: Inference,
        steps: int,
        num_envs: int,
        rng: np.random.Generator,
        epsilon: float | Floats64 = 0.0,
        state: State | None = None,
    ):
        layout, self.judges = net.actions, net.judges
        net.resample(rng)
        self.actions_TN: Array = np.empty((steps, num_envs, *layout.shape), layout.dtype)
        self.masks_TN: Mask | None = None
        self._net, self._epsilon, self._count = net, epsilon, layout.num_params
        self._explores = bool(np.any(epsilon))
        self._pick, self._forward = net.sampler.pick, net.forward
        self._noise = net.sampler.noise(rng, (steps, num_envs))
        self._params = np.empty((steps, num_envs, layout.num_params), np.float32)
        self._values: Floats = np.empty((steps + 1, num_envs), np.float32)
        self._values_known = False
        self.state_SN: State = {
            name: np.zeros((steps + 1, num_envs, *shape), np.float32) for name, shape in net.state_shapes.items()
        }
        for name, h_SN in self.state_SN.items():
            if state is not None:
                h_SN[0] = state[name]
        if self._explores:
            self._explore = rng.random((steps, num_envs)) < epsilon
            if layout.bounded:
                self._explore = self._explore.reshape(steps, num_envs, *(1 for _ in layout.shape))
                self._uniform = layout.uniform(rng, (steps, num_envs))
            else:
                self._uniform = rng.random((steps, num_envs, self._count), np.float32)

    def act(self, t: int, obs_N: Obs, mask_N: Mask | None = None, starts_N: Bools | None = None) -> Array:
        """The actions (N, ...) of step t; rows of `actions_TN`.

        mask_N: (N, P), which may be taken. starts_N: (N,), where an episode begins, for a policy with memory.
        """
        params, values = self._step(t, obs_N, starts_N) if self.state_SN else self._forward(obs_N)
        return self._chosen(t, params, values, mask_N)

    def _chosen(self, t: int, params: Floats, values: Floats | None, mask_N: Mask | None) -> Array:
        if mask_N is not None:
            if self.masks_TN is None:
                self.masks_TN = np.ones(self._params.shape, np.bool_)
            self.masks_TN[t] = mask_N
            check_finite("logits", params)
            params = masked(params, mask_N)
        self._params[t] = params
        actions = self.actions_TN[t]
        self._pick(self._params[t], self._noise[t], actions)
        if values is not None:
            self._values[t] = values
            self._values_known = True
        if self._explores:
            uniform = self._uniform[t] if mask_N is None else np.where(mask_N, self._uniform[t], -1)
            drawn = uniform if self._net.actions.bounded else uniform.argmax(-1)
            np.copyto(actions, drawn, where=self._explore[t])
        return actions

    def _step(self, t: int, obs_N: Obs, starts_N: Bools | None) -> tuple[Floats, Floats]:
        starts = np.zeros(num_rows(obs_N), np.bool_) if starts_N is None else starts_N
        before = {name: h_SN[t] for name, h_SN in self.state_SN.items()}
        params, values, after = self._net.step(obs_N, before, starts)
        for name, h_N in after.items():
            self.state_SN[name][t + 1] = h_N
        return params, values

    def part(self, rows: slice) -> Unroll:
        """The actions of some of the environments, on this one's memory and with its noise; `join` takes it in."""
        part = copy.copy(self)
        for name in PER_ENVIRONMENT:
            if name in vars(self):
                setattr(part, name, getattr(self, name)[:, rows])
        part.state_SN = {name: h_SN[:, rows] for name, h_SN in self.state_SN.items()}
        return part

    def join(self, parts: Sequence[Unroll]) -> None:
        """Takes in parts of all the environments, in order, once their last actions are there."""
        self._values_known = all(part._values_known for part in parts)
        if any(part.masks_TN is not None for part in parts):
            masks = [np.ones(p._params.shape, np.bool_) if p.masks_TN is None else p.masks_TN for p in parts]
            self.masks_TN = np.concatenate(masks, 1)

    def check(self) -> None:
        """Nothing, if the policy's outputs are finite.

        Raises:
            FloatingPointError: names step and environment.
        """
        check_finite("logits", self._params)

    def logp(self) -> Floats:
        """Log-probabilities (T, N) of the actions."""
        logp_TN = self._net.sampler.logp(self._params, self.actions_TN)
        if not self._explores:
            return logp_TN
        count = self._count if self.masks_TN is None else self.masks_TN.sum(-1)
        mixed = (1.0 - self._epsilon) * np.exp(logp_TN, dtype=np.float64) + self._epsilon / count
        return np.log(mixed).astype(np.float32)

    def values(self, obs_SN: Obs, mask_N: Mask | None = None) -> Floats:
        """Values (T + 1, N) of all T + 1 observations; `mask_N` is the last one's.

        Raises:
            FloatingPointError: they are not finite; names step and environment.
        """
        if self._net.greedy:
            self._params.max(-1, out=self._values[:-1])
        if self._values_known or self._net.greedy:
            last = {name: h_SN[-1] for name, h_SN in self.state_SN.items()}
            self._values[-1] = self._values_of(map_arrays(lambda x: x[-1], obs_SN), last, mask_N)
        else:
            self._values = self._all_values(rows_of(obs_SN)).reshape(self._values.shape)
        check_finite("values", self._values)
        return self._values

    def final_values(self, final_obs: Obs, places: list[tuple[int, int]], mask: Mask | None = None) -> Floats:
        """The values (F,) of final observations, each seen after step t of environment n, for (t, n) in `places`.

        mask: (F, P), which actions may be taken there, for values that are the greatest of an action.
        """
        steps, envs = (np.array(axis) for axis in zip(*places, strict=True))
        state = {name: h_SN[steps + 1, envs] for name, h_SN in self.state_SN.items()}
        return self._values_of(final_obs, state, mask)

    def q_taken(self) -> Floats | None:
        """Q (T, N) of the actions taken, where outputs are values of actions."""
        if not self._net.greedy:
            return None
        return np.take_along_axis(self._params, self.actions_TN[..., None], -1)[..., 0]

    def _all_values(self, rows: Obs) -> Floats:
        return self._net.values(rows)

    def _values_of(self, obs_N: Obs, state: State, mask: Mask | None) -> Floats:
        if not state and not self._net.greedy:
            return self._net.values(obs_N)
        if not state:
            return masked(self._net.forward(obs_N)[0], mask).max(-1)
        params, values, _ = self._net.step(obs_N, state, np.zeros(num_rows(obs_N), np.bool_))
        return masked(params, mask).max(-1) if self._net.greedy else values


def rows_of(obs_SN: Obs) -> Obs:
    """Observations (T + 1, N, ...) as rows."""
    rows: Obs = map_arrays(lambda x: x.reshape(-1, *x.shape[2:]), obs_SN)
    return rows
