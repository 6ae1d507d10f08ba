"""An actor that evaluates: whole episodes with the weights that it is given, apart from training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flowrl.numbers import check_whole
from flowrl.ref import Answer
from flowrl.rl.envs import EnvSource, env_spaces, make_vector_env
from flowrl.rl.evaluation import EVALUATION_KEY, MAX_STEPS, Evaluation, evaluate, quotas
from flowrl.rl.inference import Inference, make_inference
from flowrl.rl.spec import PolicySpec
from flowrl.rl.vector import VectorSource, child
from flowrl.rl.video import Recording
from flowrl.rl.wrappers import EnvOptions


class Evaluator:
    """Plays whole episodes on environments and seeds of its own. An actor class; see `EvaluateEvery`.

    Several evaluators of one group share the episodes of an evaluation: each has its quota beforehand, and so has
    each environment.

    Args:
        env, env_kwargs, env_options: as of a RolloutWorker; they may differ from those of training (no life lost).
        policy: what the policy is made of, as of the learner.
        num_envs: copies that are stepped together.
        max_steps: an episode that goes on for longer is an error, since it may never end.
        video_dir: where the first of those that share an evaluation puts a video of its first episode.
        index, count: which evaluator of how many; the engine gives them.
        seed: of its environments and sampled actions; the engine gives it.

    Raises:
        ValueError: num_envs or max_steps is below 1.
        ImportError: MoviePy is not installed and video_dir is given.
    """

    default_cpus: ClassVar[float] = 0  # busy now and then, so it takes no place from workers
    stateless: ClassVar[bool] = True  # an evaluation depends on its number alone
    evaluates: ClassVar[bool] = True  # what `run.evaluate` looks for first

    def __init__(
        self,
        env: EnvSource,
        policy: PolicySpec = PolicySpec(),  # noqa: B008  (frozen)
        *,
        num_envs: int = 4,
        env_kwargs: Mapping[str, Any] | None = None,
        env_options: EnvOptions = EnvOptions(),  # noqa: B008  (frozen)
        max_steps: int = MAX_STEPS,
        video_dir: str | Path | None = None,
        index: int = 0,
        count: int = 1,
        seed: int | np.random.SeedSequence | None = None,
    ):
        check_whole("num_envs", num_envs)
        check_whole("max_steps", max_steps)
        self._max_steps = max_steps
        self._env, self._env_kwargs, self._env_options = env, env_kwargs, env_options
        self._policy, self._num_envs, self._index, self._count = policy, num_envs, index, count
        self._stream = (
            seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed, spawn_key=(index,))
        )
        self._video_dir = video_dir
        if self._video_dir is not None:
            Recording(self._video_dir).check()
        self._net: Inference | None = None

    def evaluate(
        self,
        episodes: int = 20,
        seed: int = 0,
        deterministic: bool = True,
        weights: npt.NDArray[np.float32] | None = None,
        version: int | None = None,
        share: tuple[int, int] | None = None,
    ) -> Answer[Evaluation | None]:
        """This evaluator's share of an Evaluation of `episodes`; None where that is no episode.

        Args:
            episodes: how many, of all evaluators together.
            seed: which evaluation; the same one has the same environments and chance.
            deterministic: whether the most probable action is taken.
            weights, version: of the policy, flat.
            share: (which, of how many) parts of the episodes it plays, where not all evaluators of its group share
                them; None: its own, by its index.

        Raises:
            ValueError: no weights, or not of this policy; no episode at all.
        """
        if weights is None:
            raise ValueError("an Evaluator has no weights of its own; give evaluate(weights=...)")
        part, parts = (self._index, self._count) if share is None else share
        quota = quotas(episodes, parts)[part]
        if quota == 0:
            return Answer(None, policy_version=version, env_steps=0)
        net = self._loaded(weights)
        stream = child(self._stream, EVALUATION_KEY, seed)
        envs = min(self._num_envs, quota)

        def make(seeds: np.random.SeedSequence) -> VectorSource:
            return make_vector_env(
                self._env,
                envs,
                env_kwargs=self._env_kwargs,
                options=self._env_options,
                worker_index=self._index,
                num_workers=self._count,
                seeds=seeds,
                recording=self._recording(version) if part == 0 else None,
            )

        who = f"an evaluation by evaluator {self._index} of {self._count}"
        result = evaluate(net, make, quota, stream, deterministic=deterministic, who=who, max_steps=self._max_steps)
        return Answer(result, policy_version=version, env_steps=0)

    def _loaded(self, weights: npt.NDArray[np.float32]) -> Inference:
        if self._net is None:
            spaces = env_spaces(self._env, self._env_kwargs, self._env_options)
            self._net, _ = make_inference(self._policy, spaces)
        self._net.set_weights(weights)
        return self._net

    def _recording(self, version: int | None) -> Recording | None:
        if self._video_dir is None:
            return None
        return Recording(self._video_dir, "evaluation" if version is None else f"version-{version}")
