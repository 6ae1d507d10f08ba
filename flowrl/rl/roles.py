"""One policy of several in a worker: it acts for all its agents at once, and makes a batch of what they saw."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.rl.acting import State, check_finite
from flowrl.rl.checked import NotFinite
from flowrl.rl.epsilon import Epsilon
from flowrl.rl.inference import make_inference
from flowrl.rl.masks import Mask, checked_mask, masked
from flowrl.rl.observations import MASK, NEXT_MASK, Obs, ObsLayout, map_arrays
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.transitions import Row, Slot, joint_columns

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Scripted:
    """A policy that is a function: it acts, and nobody trains it.

    act: gets (observation, action space, generator) and gives an action of that space.
    """

    act: Callable[[Any, Any, np.random.Generator], Any]


class Role:
    """One policy of a worker, its weights, and the finished transitions of its agents since the last batch.

    A batch is time-major (T, N): a column for each (environment, agent) that ever played the policy, in which the
    agent's own transitions follow one another; what is left of a column is not valid.
    """

    def __init__(self, policy_id: str, spec: PolicySpec, spaces: Spaces, num_envs: int, seed: np.random.SeedSequence):
        self.policy_id, self.spaces, self.num_envs = policy_id, spaces, num_envs
        self.layout = ObsLayout.of(spaces.observation, f"policy {policy_id!r}")
        self.epsilon: Epsilon = 0.0
        self.rows: list[Row] = []
        self._columns: dict[Slot, int] = {}
        self.put(spec, seed)

    def put(self, spec: PolicySpec, seed: np.random.SeedSequence | None = None) -> None:
        """Another policy in these spaces, with its initial weights."""
        self.net, initial = make_inference(spec, self.spaces, seed)
        self.spec = spec
        self.flat, self.version = np.array(initial, np.float32), 0

    def for_evaluation(self, flat: npt.NDArray[np.float32] | None = None) -> Role:
        """The same policy for other environments: without ε, and without transitions; with its weights or others."""
        role = copy.copy(self)
        role.epsilon, role.rows, role._columns = 0.0, [], {}
        role.put(self.spec)
        role.set_weights(self.flat if flat is None else flat, self.version)
        return role

    def set_weights(self, flat: npt.NDArray[np.float32], version: int) -> None:
        """Takes flat weights; a copy is kept."""
        self.net.set_weights(flat)
        self.flat, self.version = np.array(flat, np.float32), version

    def columns_state(self) -> list[tuple[int, Any]]:
        """The environment and agent of each column of its batches."""
        return list(self._columns)

    def set_columns(self, columns: Sequence[Slot]) -> None:
        """Goes on with these columns."""
        self._columns = {(env, agent): n for n, (env, agent) in enumerate(columns)}

    def memory(self) -> dict[str, Array]:
        """What the policy remembers at the beginning, of one agent; empty without memory."""
        return {name: np.zeros(shape, np.float32) for name, shape in self.net.state_shapes.items()}

    def mask_of(self, obs: Any, info: Mapping[str, Any] | None, where: str, *, final: bool = False) -> Mask | None:
        """Which actions (P,) may be taken, by the observation or else by info; None where nobody says.

        final: of an observation that nobody acts on; it may allow nothing, which then stands for everything.
        """
        mask = self.layout.mask_of(obs)
        if mask is None and self.net.actions.choices and info is not None and MASK in info:
            mask = np.asarray(info[MASK])
        if mask is None:
            return None
        unused = np.ones(1, np.bool_) if final else None
        return checked_mask(np.asarray(mask)[None], self.net.actions, where, 1, unused=unused)[0]

    # acting
    def act(self, rows: Sequence[Row], rng: np.random.Generator, *, deterministic: bool = False) -> Array:
        """What the environments get of the actions of these rows, (n, ...); the rows note what the policy said.

        Raises:
            FloatingPointError: the policy's output is not finite.
        """
        obs_N = self._stacked([row.obs for row in rows])
        mask_N = self._masks([row.mask for row in rows])
        params, values = self._outputs(obs_N, rows)
        try:
            check_finite("logits", params)
        except FloatingPointError:
            self._check_given(obs_N, rows)
            raise
        params = masked(np.array(params), mask_N)
        actions = self._drawn(params, mask_N, rows, None if deterministic else rng)
        if self.net.greedy:
            values = params.max(-1)
        for i, row in enumerate(rows):
            row.action = actions[i]
            row.value = None if values is None else values[i]
        if self.net.judges and not deterministic:
            self._judge(rows, params, actions, mask_N)
        return self.net.actions.to_env(actions)

    def _check_given(self, obs_N: Obs, rows: Sequence[Row]) -> None:
        """Nothing, if the observations of these rows are finite, so that the policy is to blame.

        Raises:
            NotFinite: one is not; names the environment.
        """
        for leaf in self.layout.leaves:
            array: Any = self.layout.part(leaf, obs_N)
            wrong = () if leaf.dtype.kind != "f" else np.argwhere(~np.isfinite(array))
            for n, *at in wrong[:1]:
                env, agent = rows[n].slot
                text = f"environment {env} gave agent {agent!r} {leaf.column}{at} = {array[(n, *at)]}; mend it"
                raise NotFinite.of(env, None, text)

    def _judge(self, rows: Sequence[Row], params: Array, actions: Array, mask_N: Mask | None) -> None:
        """Notes how probable the actions were, of the mixture with uniform ones, and Q of those taken."""
        logp_N = self.net.sampler.logp(params, actions)
        if np.any(self.epsilon):
            count = self.net.actions.num_params if mask_N is None else mask_N.sum(-1)
            epsilon_N = self._epsilons(rows)
            mixed = (1.0 - epsilon_N) * np.exp(logp_N, dtype=np.float64) + epsilon_N / count
            logp_N = np.log(mixed).astype(np.float32)
        q_N = np.take_along_axis(params, actions[:, None], -1)[:, 0] if self.net.greedy else None
        for i, row in enumerate(rows):
            row.logp = logp_N[i]
            row.q_taken = None if q_N is None else q_N[i]

    def _outputs(self, obs_N: Obs, rows: Sequence[Row]) -> tuple[Array, Array | None]:
        if not self.net.state_shapes:
            return self.net.forward(obs_N)
        before: State = {name: np.stack([row.before[name] for row in rows]) for name in self.net.state_shapes}
        params, values, after = self.net.step(obs_N, before, np.zeros(len(rows), np.bool_))
        for i, row in enumerate(rows):
            row.after = {name: h_N[i] for name, h_N in after.items()}
        return params, values

    def _drawn(self, params: Array, mask_N: Mask | None, rows: Sequence[Row], rng: np.random.Generator | None) -> Array:
        layout, sampler = self.net.actions, self.net.sampler
        if rng is None:
            return sampler.mode(params)
        actions = np.empty((len(rows), *layout.shape), layout.dtype)
        sampler.pick(params, sampler.noise(rng, (len(rows),)), actions)
        if np.any(self.epsilon):
            explores = rng.random(len(rows)) < self._epsilons(rows)
            if layout.bounded:
                drawn = layout.uniform(rng, (len(rows),))
                explores = explores.reshape(-1, *(1 for _ in layout.shape))
            else:
                uniform = rng.random((len(rows), layout.num_params), np.float32)
                drawn = (uniform if mask_N is None else np.where(mask_N, uniform, -1)).argmax(-1)
            np.copyto(actions, drawn, where=explores)
        return actions

    def _epsilons(self, rows: Sequence[Row]) -> Array:
        of_env = np.broadcast_to(self.epsilon, (self.num_envs,))
        return of_env[[row.slot[0] for row in rows]]

    # what was seen
    def batch(self, steps: int, *, next_obs: bool) -> Batch | None:
        """The finished transitions of so many steps as a batch (T, N), which are then forgotten; None without any.

        Raises:
            FloatingPointError: a reward or the policy's output is not finite.
        """
        rows, self.rows = self.rows, []
        if not rows:
            return None
        taken: dict[int, int] = {}
        places: list[tuple[int, int]] = []
        for row in rows:
            n = self._columns.setdefault(row.slot, len(self._columns))
            places.append((taken.get(n, 0), n))
            taken[n] = places[-1][0] + 1
            row.gone = True
        shape = (steps, len(self._columns))  # nobody finishes more than one a step
        at = tuple(np.array(axis) for axis in zip(*places, strict=True))

        def spread(array_R: Array) -> Array:
            whole = np.zeros((*shape, *array_R.shape[1:]), array_R.dtype)
            whole[at] = array_R
            return whole

        columns = {name: spread(array_R) for name, array_R in self._columns_of(rows, next_obs=next_obs).items()}
        if MASK in columns:  # a mask that allows nothing has no distribution
            columns[MASK][~columns["valid"]] = True
        if NEXT_MASK in columns:
            columns[NEXT_MASK][~columns["valid"]] = True
        return Batch(columns, time_major=True)

    def _columns_of(self, rows: list[Row], *, next_obs: bool) -> dict[str, Array]:
        obs_R = self._stacked([row.obs for row in rows])
        columns = {
            **self.layout.columns("obs", obs_R),
            "actions": np.stack([row.action for row in rows]),
            "rewards": np.array([row.reward for row in rows], np.float32),
            "terminated": np.array([row.terminated for row in rows]),
            "truncated": np.array([row.truncated for row in rows]),
            "valid": np.ones(len(rows), np.bool_),
        }
        if self.net.judges:
            columns |= self._judgements(rows, obs_R)
        mask_R = self._masks([row.mask for row in rows])
        if mask_R is not None:
            columns[MASK] = mask_R
        if rows[0].at is not None:
            columns |= joint_columns(rows)
        if self.net.state_shapes:
            columns["starts"] = np.array([row.starts for row in rows])
            columns |= {f"state/{name}": np.stack([row.before[name] for row in rows]) for name in rows[0].before}
        if next_obs:
            columns |= self.layout.columns("next_obs", self._stacked([row.next_obs for row in rows]))  # type: ignore[misc]
            if mask_R is not None:
                columns[NEXT_MASK] = self._masks([row.next_mask for row in rows], always=True)
        return columns

    def _judgements(self, rows: list[Row], obs_R: Obs) -> dict[str, Array]:
        columns = {"logp": np.array([row.logp for row in rows], np.float32)}
        if self.net.greedy:
            columns["q_taken"] = np.array([row.q_taken for row in rows], np.float32)
        if rows[0].value is not None:
            values_R = np.array([row.value for row in rows], np.float32)
        else:
            values_R = np.asarray(self.net.values(obs_R), np.float32)
        index = {id(row): i for i, row in enumerate(rows)}
        following_R = np.empty(len(rows), np.float32)
        alone: list[int] = []
        for i, row in enumerate(rows):
            shown = index.get(id(row.follower))
            if shown is None:
                alone.append(i)
            else:
                following_R[i] = values_R[shown]
        if alone:
            following_R[alone] = self._values_after([rows[i] for i in alone])
        check_finite("values", following_R)
        return {**columns, "values": values_R, "next_values": following_R}

    def _values_after(self, rows: list[Row]) -> Array:
        obs_N = self._stacked([row.next_obs for row in rows])  # type: ignore[misc]
        mask_N = self._masks([row.next_mask for row in rows])
        if self.net.state_shapes:
            before = {name: np.stack([row.after[name] for row in rows]) for name in self.net.state_shapes}
            params, values, _ = self.net.step(obs_N, before, np.zeros(len(rows), np.bool_))
            return masked(params, mask_N).max(-1) if self.net.greedy else values
        return masked(self.net.forward(obs_N)[0], mask_N).max(-1) if self.net.greedy else self.net.values(obs_N)

    def _masks(self, masks: list[Mask | None], *, always: bool = False) -> Any:
        if not always and all(mask is None for mask in masks):
            return None
        everything = np.ones(self.net.actions.num_params, np.bool_)
        return np.stack([everything if mask is None else mask for mask in masks])

    def _stacked(self, observations: Sequence[Obs]) -> Obs:
        if not self.layout.nested:
            return np.stack([np.asarray(obs) for obs in observations])
        parts = {leaf.path: [self.layout.part(leaf, obs) for obs in observations] for leaf in self.layout.leaves}
        return {path: np.stack(arrays) for path, arrays in parts.items()}

    def stored(self, obs: Any) -> Obs:
        """An observation as batches store it, a copy."""
        stored: Obs = self.layout.store(self.layout.split(obs))
        return stored

    def final(self, row: Row, obs: Any) -> Obs:
        """The last observation of an agent; where there was none, the one it acted on."""
        return map_arrays(np.array, row.obs) if obs is None else self.stored(obs)
