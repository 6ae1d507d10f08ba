"""R2D2 (Kapturowski et al., ICLR 2019): Ape-X with memory, which replays sequences from stored states."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowrl import Flow, actor, rl
from flowrl.algorithms.apex import learn
from flowrl.algorithms.collecting import evaluated, workers_of
from flowrl.algorithms.replaying import replay_of
from flowrl.algorithms.value_based import DistributedConfig
from flowrl.numbers import check_fields, check_whole
from flowrl.operators import NStep, ParallelRollouts, ReportMetrics, Summary
from flowrl.rl.schedules import Rate

__all__ = ["R2D2Config", "graph", "learn"]


@dataclass(frozen=True)
class R2D2Config(DistributedConfig):
    """The settings of R2D2. The defaults suit small tasks of memory on two cores; the paper's are sequences of 80 steps
    with a burn-in of 40 and a period of 40, minibatches of 64 and a discount of 0.997."""

    policy: rl.PolicySpec = field(
        default_factory=lambda: rl.PolicySpec(
            head="q", dueling=True, recurrent="lstm", recurrent_size=64, hidden=(64,), activation="relu"
        )
    )
    """What the policy is made of, of head "q" and with a memory."""
    capacity: int = 100_000
    """Rows that a shard keeps."""
    sequence: int = 16
    """Steps of a replayed sequence, its burn-in among them; it ends with its fragment, so `unroll` at the most."""
    period: int = 8
    """Steps from the beginning of one sequence to that of the next."""
    burn_in: int = 4
    """Steps at the beginning of a sequence that only bring the memory to its state."""
    alpha: float = 0.9
    """How much priorities count in drawing."""
    beta: Rate = 0.6
    """How far importance weights make up for that; a number or a schedule, often rising to 1."""
    max_share: float = 0.9
    """η, of the largest error in a sequence's priority; the rest is of the mean."""
    samples_per_step: float | None = 8.0
    """Rows trained on for each environment step, burn-in included; None: both sides run as fast as they can."""
    batch: int = 32
    """Sequences of an update."""
    batches: int = 4
    """Updates a message: so many minibatches are drawn and trained on at once."""
    n_step: int = 5
    """Rewards of so many steps are summed before the value of what follows."""
    rescale: float | None = 1e-3
    """ε of the rescaling of values (arXiv:1805.11593); None leaves them as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, whole=("sequence", "period"), fraction=("max_share",), or_none=("rescale",))
        check_whole("burn_in", self.burn_in, at_least=0)
        if self.burn_in >= self.sequence:
            raise ValueError(f"burn_in={self.burn_in} leaves nothing of a sequence of {self.sequence} steps")
        if self.burn_in >= self.unroll:
            raise ValueError(
                f"burn_in={self.burn_in} leaves nothing of fragments of unroll={self.unroll} steps, from which "
                "sequences are cut: raise unroll"
            )
        if self.period > self.sequence:
            raise ValueError(f"period={self.period} leaves rows out between sequences of {self.sequence} steps")
        if (span := min(self.sequence, self.unroll) * self.envs_per_worker) > self.capacity:
            raise ValueError(
                f"a sequence goes over {span} rows, those of all {self.envs_per_worker} environments of a worker, and "
                f"capacity={self.capacity} keeps fewer: raise capacity"
            )
        if self.policy.atoms is not None:
            raise ValueError(f"R2D2 learns mean returns: leave atoms={self.policy.atoms} out of its policy")
        if self.policy.recurrent is None and self.policy.model is None:
            raise ValueError("R2D2's policy has a memory: PolicySpec(head='q', recurrent='lstm' or 'gru')")

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: R2D2Config) -> Flow[Summary]:
    """R2D2: workers store what they remember beside what they see, and the learner replays sequences from there."""
    workers = workers_of(cfg, next_obs=True)
    replay = replay_of(cfg, prioritized=True, sequence=cfg.sequence, period=cfg.period)
    learner = actor(
        rl.Learner, cfg.policy,
        rl.losses.R2D2Loss(cfg.burn_in, cfg.n_step, cfg.double, cfg.rescale, cfg.max_share),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, adam_eps=1e-8, name="learner",
    )  # fmt: skip
    rollouts = (
        ParallelRollouts(workers)
        .for_each(NStep(1, cfg.discount))
        .gather_async(num_async=2, on_failure=cfg.on_worker_failure)
    )
    return evaluated(rollouts.through(learn(cfg, learner, replay, workers)), cfg, learner).for_each(ReportMetrics())
