"""A policy in training: when it is made, what is published of it, its target, and the state to go on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.metrics import Sum
from flowrl.ref import Answer
from flowrl.rl.descent import Descent
from flowrl.rl.plain_policy import policy_as_plain
from flowrl.rl.policy import Policy
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.targets import TargetUpdates


def child_of(seed: int | np.random.SeedSequence | None, part: int) -> np.random.SeedSequence:
    """The stream `part` below a seed; of a SeedSequence without changing it, as its `spawn` would."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, part))


class InTraining:
    """A policy, its optimizers and its target, and how often they were updated.

    policy: what the policy is made of. policy_id: whose spaces are taken. seed: of the initial weights and of the
    learner's own generator. descent: the optimizers.
    """

    def __init__(self, policy: PolicySpec, policy_id: str, seed: int | np.random.SeedSequence | None, descent: Descent):
        self.spec = policy
        self.policy_id = policy_id
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._weights_seed, order_seed = child_of(sequence, 0), child_of(sequence, 1)
        self._rng = np.random.default_rng(order_seed)
        self._policy: Policy | None = None
        self._descent = descent
        self._targets = TargetUpdates()
        self._pending_state: Mapping[str, Any] | None = None
        self._updates = self._version = 0

    # life
    def build(self, spaces: Mapping[str, Spaces]) -> Answer[None]:
        """Makes the policy for the spaces of `policy_id`, and publishes its weights.

        Building again with equal spaces only publishes; a state that was set before is taken over now.

        Raises:
            KeyError: the environments have no such policy.
            ValueError: it was built with other spaces.
        """
        if self.policy_id not in spaces:
            raise KeyError(f"no policy {self.policy_id!r} in the environments; they have {sorted(spaces)}")
        mine = spaces[self.policy_id]
        if self._policy is None:
            self._policy = Policy(self.spec, mine, seed=self._weights_seed)
            self._policy.module.train()
            self._targets.begin(self._policy)
            if self._pending_state is not None:
                self.set_state(self._pending_state)
        elif self._policy.spaces != mine:
            raise ValueError(
                f"the learner of policy {self.policy_id!r} has {self._policy.spaces} and cannot change to {mine}"
            )
        return self.publish()

    def begin_again(self) -> Answer[None]:
        """The policy as `build` made it, with its first weights and no moments; publishes them, one version up.

        Updates and versions go on being counted; what the learner draws by goes on too.

        Raises:
            RuntimeError: before `build`, or a learner that keeps more than a policy, such as a central critic.
        """
        spaces = self.policy.spaces
        if type(self).get_state is not InTraining.get_state:
            raise RuntimeError(f"a {type(self).__name__} keeps more than a policy and cannot begin again")
        self._policy = None
        self._descent.set_state({}, {})
        self._version += 1
        return self.build({self.policy_id: spaces})

    def publish(self) -> Answer[None]:
        """The newest weights and their version."""
        return Answer(None, published=self.policy.acting_weights(), policy_version=self._version)

    @property
    def policy(self) -> Policy:
        """The policy in training.

        Raises:
            RuntimeError: before `build`.
        """
        if self._policy is None:
            raise RuntimeError(f"the learner of policy {self.policy_id!r} has no policy yet: call build(spaces) first")
        return self._policy

    @property
    def version(self) -> int:
        """Of the weights: how many batches they were trained on."""
        return self._version

    # its target
    def set_target_update(self, *, every_updates: int | None = None, tau: float | None = None) -> None:
        """From now on the target takes over the weights after each `every_updates`-th update, or τ of the way each.

        The updates since it last did so go on being counted, so saying it again changes nothing.

        Raises:
            ValueError: both or none are given, or out of range.
        """
        self._targets.set(every_updates, tau)
        if self._policy is not None:
            self._targets.begin(self._policy)

    def update_target(self) -> None:
        """The target takes over the weights now."""
        self._targets.move(self.policy)

    # state
    def policy_state(self) -> dict[str, Any]:
        """What it takes to act elsewhere: spec, spaces, flat weights and their version."""
        made_of = {"policy_id": self.policy_id, "spec": self.spec, "spaces": self.policy.spaces}
        return {**made_of, "weights": self.policy.get_weights(), "version": self._version}

    def policy_as_state(self) -> dict[str, Any]:
        """What `policy_state` gives, as a checkpoint holds it: without pickle.

        Raises:
            CheckpointError: a space that has no such form.
        """
        said, arrays = policy_as_plain(self.policy_state())
        return {"said": said, "arrays": arrays}

    @staticmethod
    def policy_from(state: Mapping[str, Any]) -> Policy:
        """The policy of a `policy_state`, with the default generator of its own."""
        policy = Policy(state["spec"], state["spaces"])
        policy.set_weights(state["weights"])
        return policy

    def get_state(self) -> dict[str, Any]:
        """Arrays, numbers and strings from which a learner goes on bit for bit."""
        policy = self.policy
        return {
            "weights": policy.get_weights(),
            "buffers": policy.other_buffers(),
            "target": policy.target.get_weights() if policy.has_target else None,
            "target_buffers": policy.target.other_buffers() if policy.has_target else {},
            "target_updates": self._targets.get_state(),
            "noise": policy.noise_state(),
            "optimizers": self._descent.get_state(),
            "generator": self._rng.bit_generator.state,
            "updates": self._updates,
            "version": self._version,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; before `build` it is kept until then."""
        if self._policy is None:
            self._pending_state = state
            return
        self._pending_state = None
        self._policy.set_weights(state["weights"])
        self._policy.set_other_buffers(state["buffers"])
        if state["target"] is not None:
            self._policy.target.set_weights(state["target"])
            self._policy.target.set_other_buffers(state["target_buffers"])
        self._targets.set_state(state["target_updates"])
        self._policy.set_noise_state(state["noise"])
        spans = {group: self._policy.span(group) for group in state["optimizers"]}
        self._descent.set_state(state["optimizers"], {group: span.stop - span.start for group, span in spans.items()})
        self._rng.bit_generator.state = state["generator"]
        self._updates, self._version = int(state["updates"]), int(state["version"])

    def resume(self, state: Mapping[str, Any], at_least: int) -> Answer[None]:
        """Goes on from a state of its predecessor's, which died, and publishes the weights, one version up.

        at_least: the newest version that the predecessor published: versions never go back. Metrics: restored, and
        updates_lost, the versions between the state's and that.
        """
        self.set_state(state)
        lost = max(at_least - self._version, 0)
        self._version = max(at_least, self._version) + 1
        return self._answer({"restored": Sum(1), "updates_lost": Sum(lost)})

    def _answer(self, metrics: Mapping[str, Any], payload: Any = None) -> Answer[Any]:
        keyed = {(self.policy_id, name): value for name, value in metrics.items()}
        return Answer(payload, keyed, self._version, published=self.policy.acting_weights())

    def _where(self) -> str:
        return f"learner of policy {self.policy_id!r}, update {self._updates}"
