"""The learner: an actor that turns batches into better weights, and publishes them with every answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.metrics import Sum
from flowrl.ref import Answer
from flowrl.rl.descent import Descent, EarlyStop
from flowrl.rl.gradients import finite_norm, gradient_of
from flowrl.rl.losses import Loss, LossFunction
from flowrl.rl.policy import Policy
from flowrl.rl.rows import batch_of, minibatches, rows_of
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.tally import Tally
from flowrl.rl.tensors import TensorBatch
from flowrl.rl.torch_state import quiet

Float32 = npt.NDArray[np.float32]
Metrics = dict[str, Tensor | float]


class Learner:
    """Trains one policy. An actor class: `build` first, then `train` as often as there are batches.

    policy: what the policy is made of.
    loss: what is minimized; `loss.needs` are the columns that a batch must have.
    learning_rate: Adam's step size; a number or a schedule.
    max_grad_norm: the gradient's global norm is clipped to it before each update; None leaves it.
    adam_eps: Adam's epsilon.
    target_kl: training on a batch ends before the first update whose rows show the policy further than this from
        the one that acted, by the loss's metric `kl`; None never ends it.
    policy_id: whose spaces and rows are taken, where there are several policies.
    seed: of the initial weights and the order of rows; no global generator is used.

    Override `update` for several losses or optimizers: `step(group, loss, batch)` trains one parameter group.

    Raises:
        ValueError: a number out of range, or a loss without `needs`.
    """

    default_cpus: ClassVar[int] = 0

    def __init__(
        self,
        policy: PolicySpec,
        loss: Loss,
        *,
        learning_rate: Rate = 3e-4,
        max_grad_norm: float | None = 0.5,
        adam_eps: float = 1e-5,
        target_kl: float | None = None,
        policy_id: str = "default",
        seed: int | np.random.SeedSequence | None = None,
    ):
        if not callable(loss) or not hasattr(loss, "needs"):
            raise ValueError(f"loss must be callable and have `needs`, the columns that it reads; got {loss!r}")
        check_rate("learning_rate", learning_rate, above_0=True)
        for name, value in (("adam_eps", adam_eps), ("max_grad_norm", max_grad_norm), ("target_kl", target_kl)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, got {value}")
        self.spec = policy
        self.loss = loss
        self.learning_rate = learning_rate
        self.policy_id = policy_id
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        # Spawned by hand: SeedSequence.spawn counts its children, and the caller's sequence must not change.
        self._weights_seed, order_seed = (
            np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, part)) for part in (0, 1)
        )
        self._rng = np.random.default_rng(order_seed)
        self._policy: Policy | None = None
        self._descent = Descent(max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        self._pending_state: Mapping[str, Any] | None = None
        self._now = Progress()
        self._microbatch: int | None = None
        self._stop = EarlyStop(target_kl)
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
            if self._pending_state is not None:
                self.set_state(self._pending_state)
        elif self._policy.spaces != mine:
            raise ValueError(
                f"the learner of policy {self.policy_id!r} has {self._policy.spaces} and cannot change to {mine}"
            )
        return self.publish()

    def publish(self) -> Answer[None]:
        """The newest weights and their version."""
        return Answer(None, published=self.policy.get_weights(), policy_version=self._version)

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
    def needs(self) -> frozenset[str]:
        """The columns that training reads: the loss's. Override together with `update` where more are read."""
        return frozenset(self.loss.needs)

    # training
    def train(
        self,
        batch: Batch | MultiAgentBatch,
        *,
        epochs: int = 1,
        minibatch: int | None = None,
        microbatch: int | None = None,
        env_steps: int = 0,
    ) -> Answer[None]:
        """Trains on the valid rows of a batch and publishes the new weights, one version up.

        Each epoch takes all rows in a new order, `minibatch` at a time (None: all at once), the shorter last
        minibatch too; a recurrent policy takes whole sequences, columns of a time-major batch, and counts those.
        `microbatch` bounds what goes through the network at once: a minibatch's gradient is summed over parts of
        that size, and stays the same. `env_steps` is the global count that schedules are functions of. Metrics are
        keyed (policy_id, name): those of the updates, averaged by rows, and learning_rate, updates (so far), rows,
        trained_steps (rows times epochs, a sum; less where `target_kl` ended it, which `kl_stops` counts).
        Without rows of this policy nothing is trained: trained_steps 0, the version stands.

        Raises:
            KeyError: a column that the loss needs is missing.
            FloatingPointError: a column, the loss or the gradient is not finite; nothing has changed in that update.
        """
        for name, number in (("epochs", epochs), ("minibatch", minibatch), ("microbatch", microbatch)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        given = batch_of(batch, self.policy_id)
        if given is None:
            return self._answer({"trained_steps": Sum(0), "rows": 0})
        mine = rows_of(given, self.policy, self.needs, self._where())
        self._now, self._microbatch = Progress(env_steps, self._updates), microbatch
        self._stop.begin()
        if self.policy.statistics is not None:
            self.policy.statistics.update(given)
        tally = Tally()
        with quiet(self._rng if self.spec.model else None):
            trained_rows = self._train_on(mine, epochs, minibatch, tally)
        self._version += 1
        counts: dict[str, Any] = {
            "learning_rate": self._learning_rate(self._now),
            "updates": self._updates,
            "rows": mine.rows,
            "trained_steps": Sum(trained_rows),
        }
        if self._stop.target_kl is not None:
            counts["kl_stops"] = Sum(int(self._stop.stopped))
        return self._answer({**tally.means(), **counts})

    def _train_on(self, mine: TensorBatch, epochs: int, minibatch: int | None, tally: Tally) -> int:
        """How many rows were trained on, each epoch's apart."""
        trained_rows = 0
        for _ in range(epochs):
            for part in minibatches(mine, minibatch, self._rng):
                self._now = Progress(self._now.env_steps, self._updates)
                tally.add(self.update(part, self._now), part.rows)
                if self._stop.stopped:
                    return trained_rows
                trained_rows += part.rows
                self._updates += 1
        return trained_rows

    def update(self, batch: TensorBatch, now: Progress) -> Metrics:
        """One update on a minibatch; returns its metrics. Override for several losses or parameter groups."""
        return self.step("all", self.loss, batch, now)

    def step(self, group: str, loss: LossFunction, batch: TensorBatch, now: Progress | None = None) -> Metrics:
        """Loss, gradient, clip by global norm, Adam, on one parameter group: "all" or a submodule's name.

        Raises:
            FloatingPointError: the loss or the gradient is not finite; the parameters have not changed.
        """
        now = self._now if now is None else now
        out, gradient = gradient_of(
            self.policy, loss, batch, now, microbatch=self._microbatch, where=self._where(), group=group
        )
        norm = finite_norm(gradient, batch, self._where())
        if not self._stop.check(out.metrics):
            parameters = self.policy.flat[self.policy.span(group)]
            self._descent.step(group, parameters, gradient, norm, self._learning_rate(now, group))
        return {**out.metrics, "grad_norm": norm}

    def compute_gradients(
        self, batch: Batch | MultiAgentBatch, *, microbatch: int | None = None, env_steps: int = 0
    ) -> Answer[Float32]:
        """The gradient of the mean loss over the valid rows, flat, not clipped; the answer's `env_steps` count them.

        Raises:
            ValueError: the batch has no row of this policy.
        """
        given = batch_of(batch, self.policy_id)
        if given is None:
            raise ValueError(f"the batch has no valid row of policy {self.policy_id!r} to compute gradients from")
        mine = rows_of(given, self.policy, self.needs, self._where())
        with quiet(self._rng if self.spec.model else None):
            now = Progress(env_steps, self._updates)
            out, gradient = gradient_of(self.policy, self.loss, mine, now, microbatch=microbatch, where=self._where())
            finite_norm(gradient, mine, self._where())
        metrics = {(self.policy_id, name): float(value) for name, value in out.metrics.items()}
        return Answer(gradient.numpy(), metrics, self._version, env_steps=mine.rows)

    def apply_gradients(self, gradients: npt.ArrayLike, *, env_steps: int = 0) -> Answer[None]:
        """One Adam step along a flat gradient, clipped here by its global norm; publishes the new weights.

        `env_steps` is the global count that a learning-rate schedule is a function of.

        Raises:
            ValueError: the gradient has another length.
            FloatingPointError: it is not finite; the parameters have not changed.
        """
        gradient = torch.tensor(np.asarray(gradients, np.float32))  # a copy: the clip is in place
        expected = self.policy.flat_parameters.shape
        if gradient.shape != expected:
            raise ValueError(f"gradients must be flat with shape {tuple(expected)}, got {tuple(gradient.shape)}")
        with quiet(self._rng if self.spec.model else None):
            norm = finite_norm(gradient, None, self._where())
            rate = self._learning_rate(Progress(env_steps, self._updates))
            self._descent.step("all", self.policy.flat_parameters, gradient, norm, rate)
        self._updates += 1
        self._version += 1
        return self._answer({"grad_norm": norm, "learning_rate": rate, "updates": self._updates})

    # state
    def policy_state(self) -> dict[str, Any]:
        """What it takes to act elsewhere: spec, spaces, flat weights and their version."""
        made_of = {"policy_id": self.policy_id, "spec": self.spec, "spaces": self.policy.spaces}
        return {**made_of, "weights": self.policy.get_weights(), "version": self._version}

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
        spans = {group: self._policy.span(group) for group in state["optimizers"]}
        self._descent.set_state(state["optimizers"], {group: span.stop - span.start for group, span in spans.items()})
        self._rng.bit_generator.state = state["generator"]
        self._updates, self._version = int(state["updates"]), int(state["version"])

    def _learning_rate(self, now: Progress, group: str = "all") -> float:
        return value_at(self.learning_rate, now.env_steps, "learning_rate")

    def _answer(self, metrics: Mapping[str, Any]) -> Answer[None]:
        keyed = {(self.policy_id, name): value for name, value in metrics.items()}
        return Answer(None, keyed, self._version, published=self.policy.get_weights())

    def _where(self) -> str:
        return f"learner of policy {self.policy_id!r}, update {self._updates}"
