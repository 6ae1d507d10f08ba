"""The rollout worker: an actor that steps its environments with its policy and gives fragments of experience."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.numbers import check_whole
from flowrl.ref import Answer
from flowrl.rl.acting import State
from flowrl.rl.collect import collect
from flowrl.rl.envs import EnvSource, WorkersEnvironments
from flowrl.rl.envstate import freeze, thaw
from flowrl.rl.epsilon import Epsilon, checked_epsilon, restored_epsilon
from flowrl.rl.evaluation import EVALUATION_KEY, Evaluation, evaluate
from flowrl.rl.faults import Faults
from flowrl.rl.fragment import Fragment, Running
from flowrl.rl.halves import Halves, HalvesView, check_double_buffer, view_of
from flowrl.rl.inference import Inference, make_inference
from flowrl.rl.normalize import RewardScaling, RunningMoments
from flowrl.rl.observations import Obs, map_arrays
from flowrl.rl.remote import AsksForActions
from flowrl.rl.spec import ACTOR_HEADS, PolicySpec, Spaces
from flowrl.rl.unroll import Unroll
from flowrl.rl.vector import child
from flowrl.rl.view import View
from flowrl.rl.wrappers import EnvOptions

POLICY = "default"
COLUMNS = frozenset(("obs", "actions", "rewards", "terminated", "truncated", "valid", "logp", "values", "next_values"))
ENVS, ACTIONS, WEIGHTS = range(3)  # the worker's streams of random numbers, below its seed


class RolloutWorker(AsksForActions):
    """Steps `num_envs` copies of an environment with a policy; each `sample` is one fragment.

    Args:
        env: a Gymnasium id, a factory, or a name of one (`flowrl.rl.envs.make_vector_env`).
        policy: what the policy is made of.
        steps: T, the steps of a fragment.
        num_envs: N, the copies that are stepped together.
        env_kwargs: keyword arguments of the environment.
        env_options: wrappers, frame skip and stack, how the copies are stepped, double-buffered if wanted
            (`flowrl.rl.wrappers.EnvOptions`).
        reward_clip: rewards are clipped to ±reward_clip for training, after they were normalized.
        normalize_rewards: a discount; rewards are divided by the standard deviation of the return under it
            (`flowrl.rl.normalize.RewardScaling`).
        next_obs: whether batches have the column `next_obs`.
        values: whether batches have the columns `values` and `next_values`, the policy's own when it acted; a learner
            that judges experience anew (V-trace) has no use for them.
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
        env_options: EnvOptions = EnvOptions(),  # noqa: B008  (frozen)
        reward_clip: float | None = None,
        normalize_rewards: float | None = None,
        next_obs: bool = False,
        values: bool = True,
        index: int = 0,
        count: int = 1,
        seed: int | np.random.SeedSequence | None = None,
    ):
        check_whole("steps", steps)
        check_whole("num_envs", num_envs)
        self._environments = WorkersEnvironments(env, num_envs, env_kwargs, env_options, index, count)
        self._index, self._count = index, count
        self._rewards = RewardScaling(num_envs, normalize_rewards, reward_clip)
        self._steps, self._num_envs, self._next_obs, self._values = steps, num_envs, next_obs, values
        self._stream = (
            seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed, spawn_key=(index,))
        )
        self._rng = np.random.default_rng(child(self._stream, ACTIONS))
        seeds = child(self._stream, ENVS)
        self._faults = Faults(self._environments.place(seeds))
        self._source = self._faults.made(lambda: self._environments.to_sample(seeds))
        self._faults.watch(self._source)
        self._running = Running.fresh(num_envs)
        self._obs_N: Obs | None = None  # None: the next sample begins new episodes
        self._state: State = {}
        self._steps_taken = self.env_steps = 0
        self._epsilon: Epsilon = 0.0
        self.set_policy(policy)

    @classmethod
    def batch_columns(cls, *args: Any, **kwargs: Any) -> frozenset[str]:
        """The columns of `sample`'s batches, for these constructor arguments; nothing is constructed."""
        given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments
        columns = COLUMNS | {"next_obs"} if given.get("next_obs", False) else COLUMNS
        check_double_buffer(given.get("env_options", EnvOptions()), given.get("num_envs", 1))
        spec = given.get("policy", PolicySpec())
        if not isinstance(spec, PolicySpec):
            raise ValueError(f"policy must be a PolicySpec, such as PolicySpec(hidden=(64, 64)), got {spec!r}")
        memory = {"starts", "state"} if spec.recurrent else set()
        if not given.get("values", True):
            columns = columns - {"values", "next_values"}
        columns = columns - {"logp", "values", "next_values"} if spec.head in ACTOR_HEADS else columns
        return columns | memory | ({"q_taken"} if spec.head == "q" else set())

    # experience
    def sample(self) -> Answer[Batch]:
        """One time-major fragment (T, N) that goes on where the last one ended.

        Columns: obs, actions (indices 0..A-1, whatever `Discrete.start`), rewards (normalized and clipped
        as asked for), terminated, truncated, valid, logp (of the mixture with uniform actions if epsilon is
        not 0), unless asked not to values, next_values (of the state that followed: at an episode's end V of the final
        observation), and next_obs if asked for. With head "q" values are the greatest Q, and q_taken the action's;
        soft and deterministic actors have neither logp nor values. Action masks are action_mask, and next_action_mask
        beside next_obs. Metrics: episode_return and episode_length of the episodes that ended, raw, and their number;
        frames, where a step takes several; reward_moments, where rewards are normalized. The version is the weights',
        env_steps counts valid rows.

        Raises:
            FloatingPointError: a reward, an observation or the policy's output is not finite.
            Whatever the environment raises, with a note where. The next sample then begins new episodes.
            With `EnvOptions(on_fault=Restart(n))` neither of the environments' errors, unless they come more than n
            times in a row: the fragment is begun again. Metrics env_restarts, steps_discarded count what that cost.
        """
        while True:
            fragment = Fragment(self._steps, self._num_envs, self._view.layout)
            unroll = Unroll(self._net, self._steps, self._num_envs, self._rng, self._epsilon, self._state)
            try:
                with self._located(fragment):
                    self._begin(fragment, unroll)
                    collect(fragment, unroll, self._view)
                    return self._finished(fragment, unroll, self._version)
            except Exception as error:
                if not self._goes_on(error, fragment):
                    raise

    # the policy
    def spaces(self) -> dict[str, Spaces]:
        """The spaces by policy."""
        return {POLICY: self._source.spaces}

    def set_weights(self, flat: npt.NDArray[np.float32], version: int, policy: str | None = None) -> None:
        """Takes flat weights and their version; a copy is kept. `policy`: only "default" for now.

        Raises:
            ValueError: a policy that this worker does not have, another length than the policy's (names both),
                or numbers that are not finite.
        """
        self._check_policy(policy)
        self._net.set_weights(flat)
        self._flat, self._version = np.array(flat, np.float32), version

    def get_weights(self) -> tuple[npt.NDArray[np.float32], int]:
        """The flat weights that it acts with, and their version; the array is the worker's own, not to be changed."""
        return self._flat, self._version

    def set_env_steps(self, env_steps: int) -> None:
        """Takes the run's count of environment steps, which schedules of what is computed here are functions of."""
        self.env_steps = env_steps

    def set_policy(self, spec: PolicySpec, flat: npt.NDArray[np.float32] | None = None, version: int = 0) -> None:
        """Puts another policy in place; without weights it begins with its initial ones."""
        net, initial = make_inference(spec, self._source.spaces, child(self._stream, WEIGHTS))
        if flat is not None:
            net.set_weights(flat)
        self._net: Inference = net
        self._state = net.initial_state(self._num_envs)
        # A policy with memory needs to know where episodes begin.
        view = view_of(self._source, net.actions, follow=bool(net.state_shapes))
        if self._obs_N is not None:
            view.set_state(self._view.get_state())
            self._faults.log.forget()  # what is in it was stored as the policy before stored actions
        self._view: View | HalvesView = view
        self._flat, self._version = np.array(initial if flat is None else flat, np.float32), version
        self._spec = spec
        self._judge: Inference | None = None

    def set_epsilon(self, value: npt.ArrayLike, policy: str | None = None) -> None:
        """From the next fragment on, an action is uniform with this probability.

        value: a number, or an array (N,) of one for each of this worker's environments.

        Raises:
            ValueError: outside 0..1, another length, an unknown policy, or actions that are not Discrete.
        """
        self._check_policy(policy)
        self._epsilon = checked_epsilon(value, self._num_envs, self._net)

    def set_reward_moments(self, count: float, mean: float, m2: float) -> None:
        """Takes the moments of the whole run's discounted returns, by which rewards are normalized from now on."""
        self._rewards.moments = RunningMoments(int(count), np.array(mean), np.array(m2))

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
        who = f"an evaluation by worker {self._index}"
        result = evaluate(self._judge, self._environments, episodes, stream, deterministic=deterministic, who=who)
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
            "env_steps": self.env_steps,
            "obs": None if self._obs_N is None else map_arrays(np.array, self._obs_N),
            "view": self._view.get_state(),
            "state": {name: h_N.copy() for name, h_N in self._state.items()},
            "ended": self._running.ended_N.copy(),
            "returns": self._running.returns_N.copy(),
            "lengths": self._running.lengths_N.copy(),
            "rewards": self._rewards.get_state(),
            "envs": None if self._obs_N is None else freeze(self._source),
        }

    def set_state(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state: the next sample is that of the worker that gave it, number for number.

        Whether it is so: else new episodes begin.

        Where it holds no environments, other than `num_envs`, or only one of both has them in halves
        (`EnvOptions.double_buffer`), new episodes begin, with fresh seeds.

        Raises:
            ValueError: the weights are not of this policy.
        """
        self.set_weights(np.asarray(state["weights"]), int(state["version"]))
        self._rng.bit_generator.state = state["rng"]
        self._epsilon, self._steps_taken = (
            restored_epsilon(state["epsilon"], self._num_envs, self._net),
            int(state["steps_taken"]),
        )
        self.env_steps = int(state["env_steps"])
        self._rewards.set_state(state["rewards"])
        self._obs_N = None
        self._faults.log.forget()
        if state["obs"] is None:
            return True  # none had begun
        if len(state["ended"]) != self._num_envs or not thaw(self._source, state["envs"]):
            return False
        self._obs_N = map_arrays(np.array, state["obs"])
        self._view.set_state(state["view"])
        self._state = {name: np.array(h_N) for name, h_N in state["state"].items()}
        self._running = Running(np.array(state["ended"]), np.array(state["returns"]), np.array(state["lengths"]))
        return True

    def each_env(self, act: Callable[[Any], Any]) -> list[Any]:
        """What a function gives of each environment, unwrapped: to look into them, or for a curriculum.

        Raises:
            TypeError: they are not in this process one by one, but in processes of their own or one vector.
        """
        sources = self._source.parts if isinstance(self._source, Halves) else (self._source,)
        found: list[Any] = []
        for source in sources:
            envs = getattr(source.vector.unwrapped, "envs", None)
            if envs is None:
                raise TypeError(
                    f"environment {source.name} is not one by one in the worker's process: that takes "
                    'EnvOptions(vector="sync")'
                )
            found += [act(env.unwrapped) for env in envs]
        return found

    def close(self) -> None:
        """Closes the environments; again does nothing."""
        self._source.close()
