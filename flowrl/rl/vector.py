"""A vector of copies of one environment, stepped and reset together, whose errors say which copy failed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from flowrl.errors import add_note
from flowrl.rl.spec import Spaces

Array = npt.NDArray[Any]


class VectorSource:
    """Several copies of one environment, stepped together.

    `step` gives observations, rewards, terminated, truncated (leading dimension N) and the final
    observations of episodes that ended where the returned ones are already those of a reset:
    `final` is a list of (environment, observation). In next_step mode it is always empty: the
    observation returned is the final one, and the step after it only resets (a phantom row).
    Arrays belong to the environment and change at the next call. `seeds` is None where the
    environments were seeded when they were made.
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any], seeds: np.random.SeedSequence | None, name: str):
        self.vector, self.name, self.num_envs = vector, name, int(vector.num_envs)
        self.spaces = Spaces(vector.single_observation_space, vector.single_action_space)
        self._seeds = seeds
        self.mode = self._autoreset_mode()
        self.phantom_rows = self.mode is AutoresetMode.NEXT_STEP

    def _autoreset_mode(self) -> AutoresetMode:
        mode = self.vector.metadata.get("autoreset_mode")
        try:
            return AutoresetMode(mode)
        except ValueError:
            raise ValueError(
                f"the vector environment {self.name} does not say how it resets: its metadata['autoreset_mode'] is "
                f"{mode!r}, expected a gymnasium.vector.AutoresetMode; without it final observations cannot be told"
            ) from None

    def reset(self, at_step: int = 0) -> Array:
        """The first observations (N, ...) of new episodes, seeded by the stream and the worker's step."""
        if self._seeds is None:
            return np.asarray(self.vector.reset()[0])
        seeds = env_seeds(child(self._seeds, at_step), self.num_envs)
        apart = isinstance(self.vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        obs_N, _ = self.vector.reset(seed=seeds if apart else seeds[0])  # type: ignore[arg-type]
        return np.asarray(obs_N)

    def step(self, actions_N: Array) -> tuple[Any, Any, Any, Any, list[tuple[int, Array]]]:
        """One step of every environment: obs, rewards, terminated, truncated, and final observations."""
        obs_N, rewards_N, terminated_N, truncated_N, info = self.vector.step(actions_N)
        if self.phantom_rows:
            return obs_N, rewards_N, terminated_N, truncated_N, []
        done_N = np.logical_or(terminated_N, truncated_N)
        if not done_N.any():
            return obs_N, rewards_N, terminated_N, truncated_N, []
        ended = np.flatnonzero(done_N).tolist()
        if self.mode is AutoresetMode.SAME_STEP:
            finals = [(i, np.array(info["final_obs"][i])) for i in ended]
        else:
            finals = [(i, np.array(obs_N[i])) for i in ended]
            obs_N, _ = self.vector.reset(options={"reset_mask": done_N})
        return obs_N, rewards_N, terminated_N, truncated_N, finals

    def close(self) -> None:
        """Closes every environment."""
        self.vector.close()


class Located(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose errors name it and the step of its episode, and whose final observations are copies."""

    def __init__(self, env: gymnasium.Env[Any, Any], index: int):
        super().__init__(env)
        self._index, self._step = index, 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode."""
        self._step = 0
        try:
            return self.env.reset(**kwargs)
        except Exception as error:
            add_note(error, f"in reset of environment {self._index}")
            raise

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step."""
        self._step += 1
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            add_note(error, f"in environment {self._index}, at step {self._step} of its episode, action {action!r}")
            raise
        if terminated or truncated:
            # Some environments reuse the buffer, and the reset may come before anybody reads it.
            obs = np.array(obs)
        return obs, reward, terminated, truncated, info


def child(seeds: np.random.SeedSequence, *path: int) -> np.random.SeedSequence:
    """The stream below `seeds` at this path; unlike `spawn` it counts nothing, so asking twice gives the same."""
    return np.random.SeedSequence(seeds.entropy, spawn_key=(*seeds.spawn_key, *path))


def env_seeds(seeds: np.random.SeedSequence, num_envs: int) -> list[int]:
    """One seed an environment, of 31 bits: some environments take no more."""
    return [int(child(seeds, i).generate_state(1)[0] >> 1) for i in range(num_envs)]
