"""The rollout worker: an actor that steps its environments with its policy and gives fragments of experience."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.errors import add_note
from flowrl.metrics import Listed, Sum
from flowrl.ref import Answer
from flowrl.rl.envs import EnvSource, make_vector_env
from flowrl.rl.envstate import freeze, thaw
from flowrl.rl.evaluation import Evaluation, play
from flowrl.rl.fragment import Fragment, Running
from flowrl.rl.inference import Inference, Unroll, make_inference
from flowrl.rl.spaces import action_offset, obs_dtype
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.vector import VectorSource, child

POLICY = "default"
COLUMNS = frozenset(("obs", "actions", "rewards", "terminated", "truncated", "valid", "logp", "values", "next_values"))
ENVS, ACTIONS, WEIGHTS, EVALUATION = range(4)  # the worker's streams of random numbers, below its seed
EVALUATION_KEY = 0x6576616C  # keeps evaluation with seed s apart from training with seed s


class RolloutWorker:
    """Steps `num_envs` copies of an environment with a policy; each `sample` is one fragment.

    Args:
        env: a Gymnasium id, a factory, or a name of one (`flowrl.rl.envs.make_vector_env`).
        policy: what the policy is made of.
        steps: T, the steps of a fragment.
        num_envs: N, the copies that are stepped together.
        env_kwargs: keyword arguments of the environment.
        next_obs: whether batches have the column `next_obs`.
        index, count: which worker of how many; the engine gives them.
        seed: of all its random numbers (a SeedSequence is taken as this worker's own stream, an
            integer is combined with `index`); the engine gives it.

    Raises:
        ValueError: a number is below 1, or a space is not supported.
        Whatever the environment's constructor raises, with a note.
    """

    default_cpus = 1

    def __init__(
        self,
        env: EnvSource,
        policy: PolicySpec = PolicySpec(),  # noqa: B008  (frozen)
        *,
        steps: int = 128,
        num_envs: int = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        next_obs: bool = False,
        index: int = 0,
        count: int = 1,
        seed: int | np.random.SeedSequence | None = None,
    ):
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self._env, self._env_kwargs, self._index, self._count = env, env_kwargs, index, count
        self._steps, self._num_envs, self._next_obs = steps, num_envs, next_obs
        self._stream = (
            seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed, spawn_key=(index,))
        )
        self._rng = np.random.default_rng(child(self._stream, ACTIONS))
        self._source = self._make_source(child(self._stream, ENVS))
        self._offset, self._obs_dtype = action_offset(self._source.spaces), obs_dtype(self._source.spaces)
        self._running = Running.fresh(num_envs)
        self._obs_N: npt.NDArray[Any] | None = None  # None: the next sample begins new episodes
        self._steps_taken, self._epsilon = 0, 0.0
        self.set_policy(policy)

    @classmethod
    def batch_columns(cls, *args: Any, **kwargs: Any) -> frozenset[str]:
        """The columns of `sample`'s batches, for these constructor arguments; nothing is constructed."""
        given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments
        return COLUMNS | {"next_obs"} if given.get("next_obs", False) else COLUMNS

    # experience
    def sample(self) -> Answer[Batch]:
        """One time-major fragment (T, N) that goes on where the last one ended.

        Columns: obs, actions (indices 0..A-1, whatever `Discrete.start`), rewards (raw), terminated,
        truncated, valid, logp (of the mixture with uniform actions if epsilon is not 0), values,
        next_values (of the state that followed: at an episode's end V of the final observation), and
        next_obs if asked for. Metrics: episode_return and episode_length of the episodes that ended,
        raw, and their number. The version is that of the weights, env_steps counts valid rows.

        Raises:
            FloatingPointError: a reward, an observation or the policy's output is not finite.
            Whatever the environment raises, with a note where. The next sample then begins new episodes.
        """
        fragment = Fragment(self._steps, self._num_envs, self._source.spaces.observation.shape, self._obs_dtype)
        unroll = Unroll(self._net, self._source.spaces, self._steps, self._num_envs, self._rng, self._epsilon)
        before, obs_N, self._obs_N = self._steps_taken, self._obs_N, None
        try:
            fragment.obs_SN[0] = self._first_obs() if obs_N is None else obs_N
            self._collect(fragment, unroll)
            valid_TN = fragment.close_rows(self._running, self._source.phantom_rows)
            fragment.check(valid_TN, self._running, before)
            columns = self._columns(fragment, unroll)
        except Exception as error:
            add_note(
                error,
                f"in worker {self._index} of {self._count}, environment {self._source.name} (one of its "
                f"{self._num_envs}), after {self._steps_taken} vector steps",
            )
            raise
        returns, lengths = fragment.episodes(valid_TN, self._running)
        self._obs_N = fragment.obs_SN[-1]
        return Answer(
            Batch({**columns, "valid": valid_TN}, time_major=True),
            metrics={
                "episode_return": Listed(returns),
                "episode_length": Listed(lengths),
                "episodes": Sum(len(returns)),
            },
            policy_version=self._version,
            env_steps=int(np.count_nonzero(valid_TN)),
        )

    def _first_obs(self) -> npt.NDArray[Any]:
        self._running = Running.fresh(self._num_envs)
        obs_N = self._source.reset(self._steps_taken).astype(self._obs_dtype)
        if obs_N.dtype.kind == "f" and not np.isfinite(obs_N).all():
            n, *at = (int(i) for i in np.argwhere(~np.isfinite(obs_N))[0])
            raise FloatingPointError(
                f"environment {n} gave obs{at} = {obs_N[(n, *at)]} at its reset (step 0 of its episode); mend its reset"
            )
        return obs_N

    def _collect(self, fragment: Fragment, unroll: Unroll) -> None:
        # What a loop iteration leaves out is done once for the fragment: probabilities, values, checks, episodes.
        obs_SN, rewards_TN = fragment.obs_SN, fragment.rewards_TN
        terminated_TN, truncated_TN = fragment.terminated_TN, fragment.truncated_TN
        act, step, offset = unroll.act, self._source.step, self._offset
        for t in range(self._steps):
            obs_N, rewards_TN[t], terminated_TN[t], truncated_TN[t], finals = step(act(t, obs_SN[t]) + offset)
            obs_SN[t + 1] = obs_N
            if finals:
                fragment.finals.extend((t, n, obs) for n, obs in finals)
            self._steps_taken += 1

    def _columns(self, fragment: Fragment, unroll: Unroll) -> dict[str, npt.NDArray[Any]]:
        logp_TN, values_SN = unroll.finish(fragment.obs_SN)
        final_obs = fragment.final_obs()
        final_values = None if final_obs is None else self._net.values(final_obs)
        columns = {
            **fragment.columns(),
            "actions": unroll.actions_TN,
            "logp": logp_TN,
            "values": values_SN[:-1],
            "next_values": fragment.following(values_SN, final_values),
        }
        if self._next_obs:
            columns["next_obs"] = fragment.following(fragment.obs_SN, final_obs)
        return columns

    # the policy
    def spaces(self) -> dict[str, Spaces]:
        """The spaces by policy."""
        return {POLICY: self._source.spaces}

    def set_weights(self, flat: npt.NDArray[np.float32], version: int, policy: str | None = None) -> None:
        """Takes flat weights and their version; a copy is kept. `policy`: only "default" for now.

        Raises:
            ValueError: a policy that this worker does not have, another length than the policy's (names both), or
                numbers that are not finite.
        """
        self._check_policy(policy)
        self._net.set_weights(flat)
        self._flat, self._version = np.array(flat, np.float32), version

    def set_policy(self, spec: PolicySpec, flat: npt.NDArray[np.float32] | None = None, version: int = 0) -> None:
        """Puts another policy in place; without weights it begins with its initial ones."""
        net, initial = make_inference(spec, self._source.spaces, child(self._stream, WEIGHTS))
        if flat is not None:
            net.set_weights(flat)
        self._net: Inference = net
        self._flat, self._version = np.array(initial if flat is None else flat, np.float32), version
        self._spec = spec
        self._judge: Inference | None = None

    def set_epsilon(self, value: float, policy: str | None = None) -> None:
        """From the next fragment on, an action is uniform with this probability.

        Raises:
            ValueError: outside 0..1, or a policy that this worker does not have.
        """
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"epsilon is a probability, from 0 to 1, got {value}")
        self._check_policy(policy)
        self._epsilon = float(value)

    def _check_policy(self, policy: str | None) -> None:
        if policy not in (None, POLICY):
            raise ValueError(f"this worker has the policy {POLICY!r} only, got {policy!r}")

    def evaluate(
        self,
        episodes: int = 20,
        seed: int = 0,
        deterministic: bool = True,
        weights: npt.NDArray[np.float32] | None = None,
        version: int | None = None,
    ) -> Answer[Evaluation]:
        """An Evaluation on environments of its own with seeds of its own; training is not touched.

        Args:
            episodes: how many; divided among `num_envs` environments beforehand.
            seed: of the environments and of sampled actions; same seed, same episodes.
            deterministic: whether the most probable action is taken; epsilon never counts.
            weights: to evaluate instead of the worker's, with their version.
        """
        if self._judge is None:
            self._judge, _ = make_inference(self._spec, self._source.spaces)
        self._judge.set_weights(self._flat if weights is None else weights)
        stream = np.random.SeedSequence(seed, spawn_key=(EVALUATION_KEY,))
        source = self._make_source(child(stream, ENVS))
        try:
            rng = np.random.default_rng(child(stream, ACTIONS))
            result = play(self._judge, source, episodes, rng, deterministic=deterministic)
        except Exception as error:
            add_note(error, f"in an evaluation by worker {self._index}, environment {source.name}")
            raise
        finally:
            source.close()
        return Answer(result, policy_version=self._version if weights is None else version, env_steps=0)

    # its state and end
    def get_state(self) -> dict[str, Any]:
        """All that the next sample depends on; `envs` is None where the environments cannot be pickled."""
        return {
            "rng": self._rng.bit_generator.state,
            "weights": self._flat.copy(),
            "version": self._version,
            "epsilon": self._epsilon,
            "steps_taken": self._steps_taken,
            "obs": None if self._obs_N is None else self._obs_N.copy(),
            "ended": self._running.ended_N.copy(),
            "returns": self._running.returns_N.copy(),
            "lengths": self._running.lengths_N.copy(),
            "envs": None if self._obs_N is None else freeze(self._source),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state: the next sample is that of the worker that gave it, number for number.

        Where it holds no environments, or other than `num_envs`, new episodes begin, with fresh seeds.

        Raises:
            ValueError: the weights are not of this policy.
        """
        self.set_weights(np.asarray(state["weights"]), int(state["version"]))
        self._rng.bit_generator.state = state["rng"]
        self._epsilon, self._steps_taken = float(state["epsilon"]), int(state["steps_taken"])
        self._obs_N = None
        if state["envs"] is None or len(state["ended"]) != self._num_envs:
            return
        thaw(self._source, state["envs"])
        self._obs_N = np.array(state["obs"])
        self._running = Running(np.array(state["ended"]), np.array(state["returns"]), np.array(state["lengths"]))

    def close(self) -> None:
        """Closes the environments; again does nothing."""
        self._source.close()

    def _make_source(self, seeds: np.random.SeedSequence) -> VectorSource:
        return make_vector_env(
            self._env,
            self._num_envs,
            env_kwargs=self._env_kwargs,
            worker_index=self._index,
            num_workers=self._count,
            seeds=seeds,
        )
