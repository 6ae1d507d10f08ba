"""What a worker does around the steps of a fragment: where it begins, where errors were, what is answered of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.errors import add_note
from flowrl.metrics import Listed, Moments, Sum
from flowrl.ref import Answer
from flowrl.rl.acting import State
from flowrl.rl.checked import NotFinite
from flowrl.rl.collect import columns_of, first_obs
from flowrl.rl.fragment import Fragment, Running
from flowrl.rl.normalize import RewardScaling
from flowrl.rl.observations import Obs, map_arrays
from flowrl.rl.unroll import Unroll

if TYPE_CHECKING:
    from flowrl.rl.epsilon import Epsilon
    from flowrl.rl.faults import Faults
    from flowrl.rl.halves import Halves, HalvesView
    from flowrl.rl.inference import Inference
    from flowrl.rl.spec import PolicySpec
    from flowrl.rl.vector import VectorSource
    from flowrl.rl.view import View


class Sampling:
    """What a rollout worker carries from fragment to fragment, and what it makes of a filled one."""

    _index: int
    _count: int
    _steps: int
    _num_envs: int
    _next_obs: bool
    _values: bool
    _steps_taken: int
    _rng: np.random.Generator
    _epsilon: Epsilon
    _spec: PolicySpec
    _net: Inference
    _state: State
    _source: VectorSource | Halves
    _view: View | HalvesView
    _rewards: RewardScaling
    _running: Running
    _faults: Faults
    _obs_N: Obs | None

    def _begin(self, fragment: Fragment, unroll: Unroll) -> None:
        """Puts the first observations in: those after the fragment before, or of new episodes."""
        self._faults.fills(fragment, unroll, self._net.actions)
        obs_N, self._obs_N = self._obs_N, None
        fragment.put(0, self._first_obs() if obs_N is None else obs_N)
        fragment.begun = True

    @contextmanager
    def _located(self, fragment: Fragment) -> Iterator[None]:
        """Adds to an error where it was, and begins new episodes after it."""
        try:
            yield
        except Exception as error:
            self._obs_N = None
            self._steps_taken += fragment.taken
            fault = self._faults.told(error, self._source)
            add_note(
                error,
                f"in worker {self._index} of {self._count}, environment {self._source.name} (one of its "
                f"{self._num_envs}), after {self._steps_taken} vector steps",
            )
            if fault is not None and not fragment.taken:
                self._steps_taken += 1  # the next episodes have other seeds
            raise

    def _goes_on(self, error: Exception, fragment: Fragment) -> bool:
        """Whether the fragment is begun again, with environments made anew, after this error of theirs."""
        of_an_environment = any(part.fault is not None and part.fault.error is error for part in self._source.parts)
        if not of_an_environment and not isinstance(error, NotFinite):
            return False
        if not self._faults.goes_on(error, fragment.taken * self._num_envs):
            return False
        self._source.give_up()
        return True

    def _finished(self, fragment: Fragment, unroll: Unroll, version: int) -> Answer[Batch]:
        """What `sample` answers, of a filled fragment."""
        valid_TN = fragment.close_rows(self._running, self._source.phantom_rows)
        fragment.check(valid_TN, self._running, self._steps_taken)
        columns = columns_of(fragment, unroll, self._view.mask_N, next_obs=self._next_obs, values=self._values)
        self._steps_taken += fragment.taken
        returns, lengths = fragment.episodes(valid_TN, self._running)
        self._obs_N = map_arrays(lambda array: array[-1], fragment.obs_SN)
        self._state = {name: h_SN[-1] for name, h_SN in unroll.state_SN.items()}
        self._faults.log.add(unroll.actions_TN, fragment.terminated_TN, fragment.truncated_TN)
        metrics = {"episode_return": Listed(returns), "episode_length": Listed(lengths), "episodes": Sum(len(returns))}
        if self._faults.in_a_row:
            metrics |= self._faults.outlived()
        env_steps = int(np.count_nonzero(valid_TN))
        if self._source.frame_skip > 1:
            metrics["frames"] = Sum(env_steps * self._source.frame_skip)
        if self._rewards.active:
            columns["rewards"] = self._scaled(fragment, valid_TN, metrics)
        return Answer(Batch({**columns, "valid": valid_TN}, time_major=True), metrics, version, env_steps=env_steps)

    def _scaled(
        self, fragment: Fragment, valid_TN: npt.NDArray[np.bool_], metrics: dict[str, Any]
    ) -> npt.NDArray[np.float32]:
        done_TN = fragment.terminated_TN | fragment.truncated_TN
        rewards_TN, added = self._rewards.scale(fragment.rewards_TN, done_TN, valid_TN)
        if added is not None:
            metrics["reward_moments"] = Moments(added.count, float(added.mean), float(added.m2))
        return rewards_TN.astype(np.float32)

    def _first_obs(self) -> Obs:
        self._running = Running.fresh(self._num_envs)
        self._rewards.begin()
        self._faults.log.begin(self._steps_taken)
        return first_obs(self._view, self._steps_taken)
