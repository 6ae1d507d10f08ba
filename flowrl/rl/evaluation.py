"""What an evaluation found: raw returns of complete episodes, each environment with a quota set in advance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flowrl.errors import add_note
from flowrl.rl.inference import Inference
from flowrl.rl.observations import Obs, ObsLayout
from flowrl.rl.vector import VectorSource, child
from flowrl.rl.view import View

Lengths = npt.NDArray[np.int64]
EVALUATION_KEY = 0x6576616C  # keeps evaluation with seed s apart from training with seed s
MAX_STEPS = 100_000  # of an episode
ENVS, ACTIONS = range(2)  # an evaluation's streams of random numbers
# 97.5% points of Student's t for 1 to 9 degrees of freedom.
STUDENT_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Raw returns and lengths of complete episodes.

    std is the sample's (n - 1 below the line; NaN for one episode). ci95 is half the width of the
    95% confidence interval of the mean by Student's t (infinite for one episode). With several agents, returns are
    those of all together, and `policies` has the Evaluation of each policy's agents.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    policies: Mapping[str, Evaluation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.returns or len(self.returns) != len(self.lengths):
            raise ValueError(
                f"an Evaluation needs a return and a length of each episode and at least one episode, "
                f"got {len(self.returns)} returns and {len(self.lengths)} lengths"
            )

    @staticmethod
    def concat(evaluations: Sequence[Evaluation]) -> Evaluation:
        """All episodes of several evaluations as one."""
        return Evaluation(
            tuple(value for one in evaluations for value in one.returns),
            tuple(value for one in evaluations for value in one.lengths),
            {
                name: Evaluation.concat([one.policies[name] for one in evaluations if name in one.policies])
                for name in dict.fromkeys(name for one in evaluations for name in one.policies)
            },
        )

    @property
    def episodes(self) -> int:
        """How many episodes."""
        return len(self.returns)

    @property
    def mean(self) -> float:
        """The mean return."""
        return statistics.fmean(self.returns)

    @property
    def std(self) -> float:
        """The sample's standard deviation of the returns."""
        return statistics.stdev(self.returns) if len(self.returns) > 1 else math.nan

    @property
    def ci95(self) -> float:
        """Half the width of the 95% confidence interval of the mean."""
        n = len(self.returns)
        return student_t(n - 1) * self.std / math.sqrt(n) if n > 1 else math.inf

    def __repr__(self) -> str:
        low, high, length = min(self.returns), max(self.returns), statistics.fmean(self.lengths)
        return (
            f"Evaluation(return {self.mean:.6g} ± {self.ci95:.3g} (95%) over {self.episodes} episodes, "
            f"from {low:.6g} to {high:.6g}, mean length {length:.6g})"
        )


def student_t(freedom: int) -> float:
    """The 97.5% point of Student's t: tabled to 9 degrees, then Fisher and Cornish's expansion about the normal's."""
    if freedom <= len(STUDENT_T):
        return STUDENT_T[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def quotas(episodes: int, num_envs: int) -> list[int]:
    """How many episodes each environment plays: fixed beforehand, so that short episodes are not favoured."""
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    return [episodes // num_envs + (i < episodes % num_envs) for i in range(num_envs)]


def evaluate(
    net: Inference,
    make: Callable[[np.random.SeedSequence], VectorSource],
    episodes: int,
    stream: np.random.SeedSequence,
    *,
    deterministic: bool,
    who: str,
    max_steps: int = MAX_STEPS,
) -> Evaluation:
    """An Evaluation on environments made for it and closed again.

    Args:
        net: the policy, with its weights.
        make: makes the environments from a stream of seeds.
        stream: all that the evaluation's chance depends on.
        who: evaluates, for errors.
        max_steps: an episode that goes on for longer is an error.

    Raises:
        Whatever an environment raises, with a note of `who` evaluated.
    """
    source = make(child(stream, ENVS))
    try:
        rng = np.random.default_rng(child(stream, ACTIONS))
        return play(net, source, episodes, rng, deterministic=deterministic, max_steps=max_steps)
    except Exception as error:
        add_note(error, f"in {who}, environment {source.name}")
        raise
    finally:
        source.close()


def play(
    net: Inference,
    source: VectorSource,
    episodes: int,
    rng: np.random.Generator,
    *,
    deterministic: bool = True,
    max_steps: int = MAX_STEPS,
) -> Evaluation:
    """An Evaluation of `episodes` complete episodes, by environment and then in order.

    Args:
        net: the policy, with its weights.
        source: environments of its own; they are reset first and not closed.
        rng: what actions are drawn with if not `deterministic`.
        max_steps: an episode that goes on for longer is an error, since it may never end.

    Raises:
        FloatingPointError: a reward, or the policy's output, is not finite.
        RuntimeError: an episode does not end within `max_steps`.
    """
    quota = quotas(episodes, source.num_envs)
    returns: list[list[float]] = [[] for _ in quota]
    lengths: list[list[int]] = [[] for _ in quota]
    return_N, length_N = np.zeros(source.num_envs), np.zeros(source.num_envs, np.int64)
    view = View(source, net.actions, follow=True)
    obs_N, state = _stored(view.reset(), view.layout), None
    while any(len(done) < wanted for done, wanted in zip(returns, quota, strict=True)):
        actions_N, state = net.act(
            obs_N, None if deterministic else rng, mask=view.mask_N, state=state, starts_N=view.starts_N
        )
        resets_N = view.resets_N
        next_obs_N, rewards_N, terminated_N, truncated_N, _ = view.step(actions_N)
        obs_N = _stored(next_obs_N, view.layout)
        return_N += np.where(resets_N, 0.0, rewards_N)
        length_N += ~resets_N
        if not np.isfinite(return_N).all():
            n = int(np.flatnonzero(~np.isfinite(return_N))[0])
            raise FloatingPointError(
                f"environment {n} gave a reward of {rewards_N[n]} at step {length_N[n]} of its episode in an evaluation"
            )
        for n in np.flatnonzero(np.logical_or(terminated_N, truncated_N) & ~resets_N).tolist():
            if len(returns[n]) < quota[n]:
                returns[n].append(float(return_N[n]))
                lengths[n].append(int(length_N[n]))
            return_N[n], length_N[n] = 0.0, 0
        if length_N.max() >= max_steps:
            _refuse_endless(
                length_N, [len(done) < n for done, n in zip(returns, quota, strict=True)], source, max_steps
            )
    return Evaluation(tuple(x for env in returns for x in env), tuple(x for env in lengths for x in env))


def _refuse_endless(length_N: Lengths, wanted: Sequence[bool], source: VectorSource, max_steps: int) -> None:
    endless_N = (length_N >= max_steps) & np.array(wanted)
    if endless_N.any():
        raise RuntimeError(
            f"environment {int(np.flatnonzero(endless_N)[0])} of {source.name} has not ended its episode after "
            f"{max_steps} steps of an evaluation; wrap it in TimeLimit, for example EnvOptions(wrappers="
            "(partial(gymnasium.wrappers.TimeLimit, max_episode_steps=1000),)), or give the Evaluator more max_steps"
        )


def _stored(obs_N: Obs, layout: ObsLayout) -> Obs:
    """Observations with the dtypes that policies are trained on."""
    if isinstance(obs_N, dict):
        return {leaf.path: obs_N[leaf.path].astype(leaf.dtype) for leaf in layout.leaves}
    return np.asarray(obs_N).astype(layout.leaves[0].dtype)
