"""Central inference: an actor that computes the policy's outputs for many rollout workers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.metrics import Mean
from flowrl.ref import Answer
from flowrl.rl.acting import Floats, State
from flowrl.rl.inference import Inference, make_inference
from flowrl.rl.observations import Obs, num_rows
from flowrl.rl.remote import Begin, EndAnswer, EndQuestion, StepAnswer, StepQuestion


class InferenceServer:
    """Computes the outputs of a policy for the observations that rollout workers send, all that wait in one pass
    (SEED RL, arXiv:1910.06591).

    It answers distributions' parameters; the workers draw the actions, each from its own random stream, so what they
    do is what they would do with a network of their own. The state of a policy with memory stays here while a fragment
    is under way. The policy is made of what the workers say that it is made of, with the first question.

    seed: of what a network draws that explores by noise, and of the weights until `set_weights` brings others; the
        engine gives it.
    """

    default_cpus = 1

    def __init__(self, *, seed: int | np.random.SeedSequence | None = None):
        self._stream = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._rng = np.random.default_rng(self._stream)
        self._net: Inference | None = None
        self._made_of: dict[str, Any] = {}
        self._weights: Floats | None = None
        self._version = 0
        self._states: dict[str, list[State]] = {}  # by worker, those of its fragment under way

    def set_weights(self, flat: npt.NDArray[np.float32], version: int, policy: str | None = None) -> None:
        """Takes flat weights and their version, for all questions from now on; a copy is kept. `policy`: "default".

        Raises:
            ValueError: a policy that is not here, another length than the policy's, or numbers that are not finite.
        """
        if policy not in (None, "default"):
            raise ValueError(f"this server has the policy 'default' only, got {policy!r}")
        if self._net is not None:
            self._net.set_weights(flat)
        self._weights, self._version = np.array(flat, np.float32), version

    def get_state(self) -> dict[str, Any]:
        """Weights, version, and how far its random numbers are; between two fragments there is no more."""
        return {"weights": self._weights, "version": self._version, "rng": self._rng.bit_generator.state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        if state["weights"] is not None:
            self.set_weights(np.asarray(state["weights"]), int(state["version"]))
        self._rng.bit_generator.state = state["rng"]

    def serve(
        self, workers: Sequence[str], *questions: StepQuestion | EndQuestion
    ) -> Answer[list[StepAnswer | EndAnswer]]:
        """The answers to the questions of so many workers, in their order; `rows_per_call` is the mean batch.

        Raises:
            ValueError: the workers do not agree on what the policy is made of.
        """
        answers: dict[int, StepAnswer | EndAnswer] = {}
        steps: list[tuple[int, str, StepQuestion]] = []
        for at, (worker, question) in enumerate(zip(workers, questions, strict=True)):
            if isinstance(question, EndQuestion):
                answers[at] = self._end(worker, question)
                continue
            if question.begin is not None:
                self._begin(worker, question.begin)
            steps.append((at, worker, question))
        rows = 0
        if steps:
            made, rows = self._steps([(worker, question) for _, worker, question in steps])
            answers |= {at: answer for (at, _, _), answer in zip(steps, made, strict=True)}
        metrics: dict[str, Any] = {"rows_per_call": Mean(rows)} if rows else {}
        return Answer([answers[at] for at in range(len(questions))], metrics, self._version, env_steps=0)

    def _begin(self, worker: str, begin: Begin) -> None:
        made_of = {entry.name: getattr(begin.spec, entry.name) for entry in fields(begin.spec)}
        del made_of["model"]  # a function that has travelled is no longer equal to itself
        made_of["spaces"] = begin.spaces
        if self._net is None:
            self._net, _ = make_inference(begin.spec, begin.spaces, self._stream)
            self._made_of = made_of
            if self._weights is not None:
                self._net.set_weights(self._weights)
        elif self._made_of != made_of:
            name = next(name for name, value in made_of.items() if self._made_of[name] != value)
            raise ValueError(
                f"{worker} asks for a policy with {name}={made_of[name]}, but this server has one with "
                f"{self._made_of[name]}; workers that share a server need the same policy and environment, so give the "
                "others a group of their own"
            )
        self._states[worker] = [{name: np.array(h_N) for name, h_N in begin.state.items()}]

    def _steps(self, asked: Sequence[tuple[str, StepQuestion]]) -> tuple[list[StepAnswer], int]:
        """One pass for all; how many rows it had."""
        net = self._net
        assert net is not None
        obs = _joined([question.obs for _, question in asked])
        sizes = [num_rows(question.obs) for _, question in asked]
        ends = np.cumsum(sizes)
        net.resample(self._rng)
        if net.state_shapes:
            before = [self._states[worker][-1] for worker, _ in asked]
            state = {name: np.concatenate([h[name] for h in before]) for name in net.state_shapes}
            starts = np.concatenate([question.starts for _, question in asked if question.starts is not None])
            params, values, after = net.step(obs, state, starts)
            for (worker, _), end, size in zip(asked, ends, sizes, strict=True):
                self._states[worker].append({name: np.array(h[end - size : end]) for name, h in after.items()})
        else:
            params, values = net.forward(obs)  # type: ignore[assignment]
        answers = [
            StepAnswer(
                np.array(params[end - size : end]),  # copies: the next pass may write into what it gave
                None if values is None else np.array(values[end - size : end]),
                self._version,
            )
            for end, size in zip(ends, sizes, strict=True)
        ]
        return answers, int(ends[-1])

    def _end(self, worker: str, question: EndQuestion) -> EndAnswer:
        net = self._net
        assert net is not None
        history = self._states.get(worker, [])
        state_SN = {name: np.stack([state[name] for state in history]) for name in net.state_shapes}
        last = self._judged(question.last, {name: h_SN[-1] for name, h_SN in state_SN.items()})
        finals: tuple[Floats | None, Floats | None] = (None, None)
        if question.finals is not None:
            steps, envs = (np.array(axis) for axis in zip(*question.places, strict=True))
            finals = self._judged(question.finals, {name: h_SN[steps + 1, envs] for name, h_SN in state_SN.items()})
        values = None if question.rows is None else net.values(_joined([question.rows]))
        return EndAnswer(last, finals, values, state_SN)

    def _judged(self, obs: Obs, state: State) -> tuple[Floats | None, Floats | None]:
        """Outputs, or values where those are no outputs; as a worker computes them at the end of a fragment."""
        net, obs = self._net, _joined([obs])
        assert net is not None
        if not net.judges:
            return None, None
        if state:
            params, values, _ = net.step(obs, state, np.zeros(num_rows(obs), np.bool_))
            return np.array(params), np.array(values)
        if net.greedy:
            return np.array(net.forward(obs)[0]), None
        return None, np.array(net.values(obs))


def _joined(parts: Sequence[Obs]) -> Obs:
    """Observations one behind the other; copies, for torch takes no arrays that are read-only."""
    first = parts[0]
    if isinstance(first, dict):
        return {path: np.concatenate([part[path] for part in parts]) for path in first}
    joined: Obs = np.concatenate(parts)  # type: ignore[arg-type]
    return joined
