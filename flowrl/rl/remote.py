"""The worker's side of central inference: it steps its environments and asks for the policy's outputs elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flowrl.ref import Answer, Query
from flowrl.rl.acting import Array, Floats, State
from flowrl.rl.fragment import Fragment
from flowrl.rl.masks import Mask, masked
from flowrl.rl.observations import Obs, map_arrays
from flowrl.rl.sampling import Sampling
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.unroll import Unroll, rows_of

if TYPE_CHECKING:
    from flowrl.batch import Batch
    from flowrl.rl.halves import HalvesView
    from flowrl.rl.view import View

Bools = npt.NDArray[np.bool_]


class Begin(NamedTuple):
    """With a fragment's first question: what the policy is made of, and the state (N, ...) that it begins with."""

    spec: PolicySpec
    spaces: Spaces
    state: State


class StepQuestion(NamedTuple):
    """The outputs for observations (N, ...) are asked for; `starts` (N,) says where an episode begins, with memory."""

    obs: Obs
    starts: Bools | None
    begin: Begin | None


class StepAnswer(NamedTuple):
    """Outputs (N, P), values (N,) where they cost nothing more, and the version of the weights."""

    params: Floats
    values: Floats | None
    version: int


class EndQuestion(NamedTuple):
    """What a filled fragment wants to know: of the last observations (N, ...), of final ones (F, ...) seen after step t
    of environment n for (t, n) in `places`, and, if the steps brought no values, the values of all `rows`.
    """

    last: Obs
    finals: Obs | None
    places: list[tuple[int, int]]
    rows: Obs | None


class EndAnswer(NamedTuple):
    """Outputs and values of the last and the final observations (each None where it is not there), the values of all
    rows, and the state (T + 1, N, ...) before every step and at the end.
    """

    last: tuple[Floats | None, Floats | None]
    finals: tuple[Floats | None, Floats | None]
    values: Floats | None
    state_SN: State


class RemoteUnroll(Unroll):
    """An unroll whose network is elsewhere: it is given outputs, and draws actions of them as any other does."""

    _end: EndAnswer

    def choose(self, t: int, answer: StepAnswer, mask_N: Mask | None) -> Array:
        """The actions (N, ...) of step t."""
        return self._chosen(t, answer.params, answer.values, mask_N)

    def wants(self, fragment: Fragment, *, values: bool) -> EndQuestion | None:
        """What is still to be asked of a filled fragment, with or without its values."""
        judges = self.judges and values
        if not judges and not self.state_SN:
            return None
        known = self._values_known or self._net.greedy or not judges
        places = [(t, n) for t, n, _ in fragment.finals]
        last: Obs = map_arrays(lambda array: array[-1], fragment.obs_SN)
        return EndQuestion(last, fragment.final_obs(), places, None if known else rows_of(fragment.obs_SN))

    def take(self, end: EndAnswer) -> None:
        """Takes in the answer to that."""
        self._end = end
        for name, h_SN in end.state_SN.items():
            self.state_SN[name][:] = h_SN

    def final_values(self, final_obs: Obs, places: list[tuple[int, int]], mask: Mask | None = None) -> Floats:
        """The values (F,) of final observations."""
        return self._judged(*self._end.finals, mask)

    def _all_values(self, rows: Obs) -> Floats:
        assert self._end.values is not None
        return self._end.values

    def _values_of(self, obs_N: Obs, state: State, mask: Mask | None) -> Floats:
        return self._judged(*self._end.last, mask)

    def _judged(self, params: Floats | None, values: Floats | None, mask: Mask | None) -> Floats:
        if self._net.greedy:
            assert params is not None
            return masked(params, mask).max(-1)
        assert values is not None
        return values


class Remote:
    """A fragment under way: how far it is."""

    def __init__(self, fragment: Fragment, unroll: RemoteUnroll):
        self.fragment, self.unroll = fragment, unroll
        self.version = -1  # of the weights that the first step was taken with, which are the oldest

    def question(self, view: View | HalvesView, begin: Begin | None = None) -> StepQuestion:
        """What is to be known before the next step."""
        starts_N = view.starts_N.copy() if self.unroll.state_SN else None
        return StepQuestion(self.fragment.at(self.fragment.taken), starts_N, begin)

    def step(self, view: View | HalvesView, answer: StepAnswer) -> bool:
        """Acts on an answer; whether the fragment is filled."""
        fragment, t = self.fragment, self.fragment.taken
        if t == 0:
            self.version = answer.version
        if self.unroll.state_SN:
            fragment.starts_TN[t] = view.starts_N
        actions_N = self.unroll.choose(t, answer, view.mask_N)
        stepped = view.step(actions_N)
        obs_N, fragment.rewards_TN[t], fragment.terminated_TN[t], fragment.truncated_TN[t], finals = stepped
        fragment.put(t + 1, obs_N)
        if finals:
            fragment.finals.extend((t, n, obs) for n, obs in finals)
            fragment.final_masks.extend(view.final_masks)
        fragment.taken = t + 1
        return fragment.taken == len(fragment.rewards_TN)


class AsksForActions(Sampling):
    """Mixed into the rollout worker: `begin_sample` and `go_on` give what `sample` does, asking for each step's
    outputs with a Query.
    """

    _remote: Remote | None = None

    def begin_sample(self) -> Query[StepQuestion]:
        """The first question of a fragment; one that is under way is given up, and new episodes begin."""
        while True:
            fragment = Fragment(self._steps, self._num_envs, self._view.layout)
            unroll = RemoteUnroll(self._net, self._steps, self._num_envs, self._rng, self._epsilon, self._state)
            try:
                with self._located(fragment):
                    self._begin(fragment, unroll)
                break
            except Exception as error:
                if not self._goes_on(error, fragment):
                    raise
        self._remote = Remote(fragment, unroll)
        state = {name: np.array(h_N) for name, h_N in self._state.items()}
        return Query(self._remote.question(self._view, Begin(self._spec, self._source.spaces, state)))

    def go_on(
        self, answers: list[StepAnswer | EndAnswer], index: int
    ) -> Query[StepQuestion | EndQuestion] | Answer[Batch]:
        """What comes of an answer, the one at `index`: the next question, or the fragment, as `sample` answers it.

        Raises:
            As `sample`. The next fragment then begins new episodes.
        """
        remote, answer = self._remote, answers[index]
        if remote is None:
            raise RuntimeError("go_on answers a question, and none was asked: begin_sample comes first")
        try:
            with self._located(remote.fragment):
                return self._went_on(remote, answer)
        except Exception as error:
            if not self._goes_on(error, remote.fragment):
                raise
        begun: Any = self.begin_sample()
        return begun

    def _went_on(
        self, remote: Remote, answer: StepAnswer | EndAnswer
    ) -> Query[StepQuestion | EndQuestion] | Answer[Batch]:
        if isinstance(answer, EndAnswer):
            remote.unroll.take(answer)
        elif not remote.step(self._view, answer):
            return Query(remote.question(self._view))
        elif (wanted := remote.unroll.wants(remote.fragment, values=self._values)) is not None:
            return Query(wanted)
        self._remote = None
        return self._finished(remote.fragment, remote.unroll, remote.version)
