"""A rollout worker that learns: experience never leaves the actor that made it, and no weights travel to it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.ref import Answer
from flowrl.rl.envs import EnvSource
from flowrl.rl.learner import Learner
from flowrl.rl.loss import Loss
from flowrl.rl.peers import Meeting, Whereabouts
from flowrl.rl.policy import Policy
from flowrl.rl.schedules import Rate
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.vector import child
from flowrl.rl.worker import RolloutWorker

LEARNER = 3  # the learner's stream of random numbers, below the worker's seed


class LearningWorker(RolloutWorker):
    """Samples as a RolloutWorker does, with the weights of a Learner of its own, which trains alone or in step.

    A group of them is both the source of a graph and what `TrainOneStep` trains: decentralized distributed PPO
    (arXiv:1911.00357). The arguments are a RolloutWorker's (`**sampling`) and a Learner's.
    """

    def __init__(
        self,
        env: EnvSource,
        policy: PolicySpec,
        loss: Loss,
        *,
        learning_rate: Rate = 3e-4,
        max_grad_norm: float | None = 0.5,
        adam_eps: float = 1e-5,
        target_kl: float | None = None,
        index: int = 0,
        count: int = 1,
        seed: int | np.random.SeedSequence | None = None,
        **sampling: Any,
    ):
        super().__init__(env, policy, index=index, count=count, seed=seed, **sampling)
        self._learner = Learner(
            policy,
            loss,
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            adam_eps=adam_eps,
            target_kl=target_kl,
            seed=child(self._stream, LEARNER),
        )
        self._learner.moved = self._take_over

    @classmethod
    def batch_columns(cls, env: EnvSource, policy: PolicySpec, loss: Loss, **options: Any) -> frozenset[str]:
        """The columns of `sample`'s batches, for these constructor arguments; nothing is constructed."""
        of_a_worker = inspect.signature(RolloutWorker).parameters
        return RolloutWorker.batch_columns(
            env, policy, **{name: value for name, value in options.items() if name in of_a_worker}
        )

    def _take_over(self) -> None:
        self.set_weights(self._learner.policy.acting_weights(), self._learner.version)

    # as a learner; see there
    def build(self, spaces: Mapping[str, Spaces]) -> Answer[None]:
        """Makes the policy, and acts with it from now on."""
        answer = self._learner.build(spaces)
        self._take_over()
        return answer

    def train(self, batch: Batch | MultiAgentBatch, **options: Any) -> Answer[Batch | None]:
        """Trains alone on a batch, and acts with the new weights from now on."""
        answer = self._learner.train(batch, **options)
        self._take_over()
        return answer

    def whereabouts(self) -> Whereabouts:
        """Where this worker lives."""
        return self._learner.whereabouts()

    def open_store(self, timeout_s: float) -> int:
        """The port of a store at which the workers find each other."""
        return self._learner.open_store(timeout_s)

    def join(self, meeting: Meeting, rank: int) -> int | None:
        """Becomes a member of a group that trains in step, and takes over the state of the one trained the most.

        Returns how many updates that one has made; None where the first member says it for all.
        """
        return self._learner.join(meeting, rank)

    def train_in_step(self, batch: Batch | MultiAgentBatch | None, **options: Any) -> Answer[Any]:
        """Trains in step with the others, and acts with the new weights from now on."""
        return self._learner.train_in_step(batch, **options)

    def publish(self) -> Answer[None]:
        """The newest weights and their version."""
        return self._learner.publish()

    def policy_state(self) -> dict[str, Any]:
        """What it takes to act elsewhere."""
        return self._learner.policy_state()

    def policy_as_state(self) -> dict[str, Any]:
        """What `policy_state` gives, as a checkpoint holds it."""
        return self._learner.policy_as_state()

    @staticmethod
    def policy_from(state: Mapping[str, Any]) -> Policy:
        """The policy of a `policy_state`."""
        return Learner.policy_from(state)

    # its state and end
    def get_state(self) -> dict[str, Any]:
        """All that the next sample and the next update depend on."""
        return {**super().get_state(), "learner": self._learner.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state; whether in the middle of its episodes."""
        goes_on = super().set_state(state)
        self._learner.set_state(state["learner"])
        return goes_on

    def close(self) -> None:
        """Closes the environments and leaves the group; again does nothing."""
        self._learner.leave()
        super().close()
