"""What IMPALA and APPO have in common: settings, and fragments that come as they are ready and go on side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowrl import ActorGroup, Aggregator, Batch, Flow, actors
from flowrl.algorithms.collecting import CollectingConfig, check_head, kept, workers_of
from flowrl.numbers import check_fields, check_whole
from flowrl.operators import ConcatBatches, MixInReplay, ParallelRollouts, SendWeights, TrainOneStep
from flowrl.operators.training import TrainInfo
from flowrl.rl.schedules import Linear, Rate, check_rate


@dataclass(frozen=True)
class AsynchronousConfig(CollectingConfig):
    """The settings that IMPALA and APPO share."""

    unroll: int = 50
    """Steps of each environment in a fragment: the sequences that V-trace goes through."""
    num_async: int = 2
    """Fragments of a worker that are under way at once. The newest weights go with every request for another one, so a
    worker makes at the most so many fragments before it has those of the moment when its last one was taken in."""
    batch_steps: int = 500
    """Environment steps that are trained on together, at least: fragments side by side."""
    learners: int = 1
    """Learners; several share each batch and take the same steps, exchanging gradients."""
    peer_timeout_s: float = 120.0
    """How long one of several learners waits for another before it gives it up for lost."""
    in_flight: int = 2
    """Batches that are on their way to the learner at once."""
    max_policy_lag: int | None = None
    """Versions of the weights that may lie between acting and training at the most; fragments that are older are
    dropped, and counted (`dropped_steps`). None: all are trained on."""
    aggregators: int = 0
    """Actors that join fragments on their way to the learner, which then fetches one object instead of `fan_in`; 0:
    none. They pay with many workers on several machines."""
    fan_in: int = 4
    """Fragments that an aggregator joins."""
    replay_proportion: float = 0.0
    """Old fragments that are trained on again, for each new one (arXiv:1802.01561, section 5.2.2); 0: none."""
    replay_slots: int = 64
    """The newest fragments, from which old ones are drawn."""
    epochs: int = 1
    """Passes over each batch."""
    minibatch: int | None = None
    """Sequences of `unroll` steps in an update; None: the whole batch is one."""
    microbatch: int | None = None
    """Sequences that go through the network at once; the gradient is accumulated and stays the same."""
    learning_rate: Rate = Linear(2e-3, 2e-4, 500_000)
    """Adam's step size: a number, or a schedule over environment steps. Where it never falls, a policy that had solved
    the task is lost again sooner or later."""
    discount: float = 0.99
    """γ, of future rewards."""
    vtrace_lambda: float = 1.0
    """λ of V-trace's traces; 1 sums all the rewards that a sequence has."""
    rho_clip: float = 1.0
    """ρ̄: how much an action that has become more probable counts at the most, for values and for the policy."""
    c_clip: float = 1.0
    """c̄: how much it counts at the most for what came before it."""
    value_cost: float = 0.5
    """Weight of the value loss, the mean squared error of the V-trace targets."""
    entropy_cost: Rate = 0.005
    """Weight of the entropy bonus; a number or a schedule."""
    max_grad_norm: float = 0.5
    """The gradient's global norm is clipped to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head(self.policy, "actor_critic")
        sizes = [name for name in ("minibatch", "microbatch") if getattr(self, name) is not None]
        check_fields(
            self,
            whole=("num_async", "batch_steps", "learners", "in_flight", "fan_in", "replay_slots", "epochs", *sizes),
            positive=("max_grad_norm",),
            seconds=("peer_timeout_s",),
            not_negative=("value_cost", "replay_proportion", "rho_clip", "c_clip"),
            fraction=("discount", "vtrace_lambda"),
        )
        for name in ("aggregators", *(() if self.max_policy_lag is None else ("max_policy_lag",))):
            check_whole(name, getattr(self, name), at_least=0)
        if self.learners > 1 and self.learner_timeout_s is not None:
            raise ValueError(
                f"learner_timeout_s={self.learner_timeout_s!r} is for a lone learner, and learners={self.learners}: "
                "they train in step and wait for one another, so set peer_timeout_s"
            )
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("entropy_cost", self.entropy_cost, above_0=False)

    @property
    def vtrace(self) -> dict[str, Any]:
        """What both losses take."""
        return {
            "discount": self.discount,
            "value_cost": self.value_cost,
            "entropy_cost": self.entropy_cost,
            "rho_clip": self.rho_clip,
            "c_clip": self.c_clip,
            "pg_rho_clip": self.rho_clip,
            "vtrace_lambda": self.vtrace_lambda,
        }


def fragments_of(cfg: AsynchronousConfig) -> Flow[Batch]:
    """Fragments (T, N) of the config's workers, as they are ready."""
    fragments = ParallelRollouts(workers_of(cfg, next_obs=True, values=False))
    if cfg.aggregators:
        aggregators = actors(Aggregator, count=cfg.aggregators, name="aggregators")
        fragments = fragments.aggregate(aggregators, fan_in=cfg.fan_in)
    return fragments.gather_async(num_async=cfg.num_async, on_failure=cfg.on_worker_failure)


def trained_on(fragments: Flow[Batch], cfg: AsynchronousConfig, learner: ActorGroup[Any]) -> Flow[TrainInfo]:
    """Updates on fragments side by side; before, the worker that a fragment came from is told the newest weights."""
    fragments = fragments.for_each(SendWeights(learner, to="origin"))
    if cfg.replay_proportion:
        fragments = fragments.for_each(MixInReplay(cfg.replay_slots, cfg.replay_proportion))
    train = TrainOneStep(
        learner, epochs=cfg.epochs, minibatch=cfg.minibatch, microbatch=cfg.microbatch, in_flight=cfg.in_flight,
        max_policy_lag=cfg.max_policy_lag, peer_timeout_s=cfg.peer_timeout_s, **kept(cfg),
    )  # fmt: skip
    return fragments.for_each(ConcatBatches(min_steps=cfg.batch_steps)).for_each(train)
