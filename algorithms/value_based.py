"""What algorithms of values of actions have in common: settings, and how the target network follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, rl
from flowrl.algorithms.replaying import ReplayingConfig
from flowrl.numbers import check_fields
from flowrl.operators import UpdateTarget


@dataclass(frozen=True)
class ValueConfig(ReplayingConfig):
    """The settings that DQN, Ape-X and R2D2 share."""

    env: Any = "CartPole-v1"
    """A Gymnasium id, a factory, or "package.module:Name"; its actions are Discrete."""
    policy: rl.PolicySpec = field(default_factory=lambda: rl.PolicySpec(head="q"))
    """What the policy is made of, of head "q"."""
    max_grad_norm: float = 10.0
    """The gradient's global norm is clipped to it."""
    double: bool = True
    """The policy's own network chooses the action that the target values (arXiv:1509.06461)."""
    target_every: int | None = 100
    """Updates after which the target network takes over the weights; None: it follows by `tau` instead."""
    tau: float | None = None
    """The share of the way to the weights that the target network moves after each update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.target_every is None) == (self.tau is None):
            raise ValueError(
                "the target network follows by target_every or by tau: set one of them and the other to None, got "
                f"target_every={self.target_every} and tau={self.tau}"
            )
        if self.tau is None:
            check_fields(self, whole=("target_every",), positive=("max_grad_norm",))
        else:
            check_fields(self, positive=("max_grad_norm", "tau"), fraction=("tau",))
        if self.policy.head != "q":
            raise ValueError(
                f"policy must be of values of actions, PolicySpec(head='q', ...); got head={self.policy.head!r}"
            )


def check_no_memory(cfg: ValueConfig) -> None:
    """Nothing, if a policy can be trained on single rows.

    Raises:
        ValueError: it has a memory, which takes sequences.
    """
    if cfg.policy.recurrent is not None:
        raise ValueError(
            f"policy must be without memory, got recurrent={cfg.policy.recurrent!r}: rows are replayed one by one, "
            "R2D2 replays sequences"
        )


@dataclass(frozen=True)
class DistributedConfig(ValueConfig):
    """The settings that Ape-X and R2D2 share: several workers, whose environments explore by a share of their own.

    Training episodes are those of exploring workers, so evaluations beside training see when a return is reached.
    """

    num_workers: int = 2
    """Rollout workers: the shards of the graph."""
    unroll: int = 32
    """Steps of each environment in a fragment."""
    in_flight: int = 3
    """Messages to the replay shards, and to the learner, that are out at once."""
    epsilon: float = 0.4
    """ε of the environment that explores the most; number i of N, over all workers, has ε^(1 + 7 i / (N − 1))."""
    evaluate_every_env_steps: int | None = 10_000
    """Evaluate after so many environment steps again and again, on an actor of its own; None: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, fraction=("epsilon",))


def target_updates(cfg: ValueConfig, learner: ActorGroup[Any]) -> UpdateTarget:
    """How the target network follows: by copies or by `tau`."""
    return UpdateTarget(learner, every_updates=cfg.target_every, tau=cfg.tau)
