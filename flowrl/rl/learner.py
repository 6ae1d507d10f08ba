"""The learner: an actor that turns batches into better weights, and publishes them with every answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.metrics import Sum
from flowrl.ref import Answer
from flowrl.rl.descent import Descent, EarlyStop
from flowrl.rl.gradient_batch import mean_of, moments_of
from flowrl.rl.gradients import finite_norm, gradient_of, mean_gradient
from flowrl.rl.grouped import Grouped
from flowrl.rl.in_step import averaged
from flowrl.rl.loss import Loss, LossFunction, wants_sequences
from flowrl.rl.rows import Priorities, batch_of, minibatches, rows_of
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.spec import PolicySpec, Progress
from flowrl.rl.tally import Tally
from flowrl.rl.tensors import NO_SCALES, TensorBatch
from flowrl.rl.torch_state import quiet

Float32 = npt.NDArray[np.float32]
Metrics = dict[str, Tensor | float]


class Learner(Grouped):
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
        super().__init__(policy, policy_id, seed, Descent(max_grad_norm=max_grad_norm, adam_eps=adam_eps))
        self.loss = loss
        self.learning_rate = learning_rate
        self._now = Progress()
        self._microbatch: int | None = None
        self._stop = EarlyStop(target_kl)
        self._priorities: Tensor | None = None  # what the loss gave for the rows of the update under way

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
        shuffle: bool | None = None,
        env_steps: int = 0,
    ) -> Answer[Batch | None]:
        """Trains on the valid rows of a batch and publishes the new weights, one version up.

        Answers the columns slots and priorities of the last epoch's rows, where the batch is a replay shard's (it has
        `slots`) and the loss gives priorities; else None.

        Each epoch takes all rows in a new order, `minibatch` at a time (None: all at once), the shorter last
        minibatch too; with `shuffle=False`, which is what None means for a replay shard's, in the order in which they
        stand: importance weights are normalized a minibatch. A recurrent policy and a loss over time take whole
        sequences, columns of a time-major batch, and count those. `microbatch` bounds what goes through the network at
        once: a minibatch's gradient is summed over parts of that size, and stays the same. `env_steps` is the global
        count that schedules are functions of. Metrics are keyed (policy_id, name): those of the updates, averaged by
        rows, and learning_rate, updates (so far), rows, trained_steps (rows times epochs, a sum; less where `target_kl`
        ended it, which `kl_stops` counts). Without rows of this policy nothing is trained: trained_steps 0, the version
        stands.

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
        mine = self._rows(given)
        self._now, self._microbatch = Progress(env_steps, self._updates), microbatch
        self._stop.begin()
        if self.policy.statistics is not None:
            self.policy.statistics.update(self._observed(given))
        tally, found = Tally(), Priorities()
        order = self._rng if shuffle or (shuffle is None and mine.slots is None) else None
        with quiet(self._rng if self.spec.model else None):
            trained_rows = sum(self._epoch(minibatches(mine, minibatch, order), tally, found) for _ in range(epochs))
        self._version += 1
        counts: dict[str, Any] = {
            "learning_rate": self._learning_rate(self._now),
            "updates": self._updates,
            "rows": mine.rows,
            "trained_steps": Sum(trained_rows),
        }
        if self._stop.target_kl is not None:
            counts["kl_stops"] = Sum(int(self._stop.stopped))
        return self._answer({**tally.means(), **counts}, found.answer())

    def _observed(self, batch: Batch) -> Batch:
        """The batch whose observations statistics are of."""
        return batch

    def _rows(self, batch: Batch) -> TensorBatch:
        return rows_of(batch, self.policy, self.needs, self._where(), sequences=wants_sequences(self.loss))

    def _epoch(self, parts: Iterable[TensorBatch], tally: Tally, found: Priorities) -> int:
        """How many rows were trained on."""
        trained_rows = 0
        found.begin()
        for part in parts if not self._stop.stopped else ():
            if not self._update_part(part, tally, found):
                break
            trained_rows += part.rows
        return trained_rows

    def _update_part(
        self, part: TensorBatch, tally: Tally, found: Priorities, scales: Mapping[str, tuple[float, float]] = NO_SCALES
    ) -> bool:
        """One update, unless it is where `target_kl` ends this batch; whether it was made.

        A part without rows is this learner's of a minibatch that others have rows of; `scales` are then of all of it.
        """
        self._now, self._priorities = Progress(self._now.env_steps, self._updates), None
        self.policy.resample()
        batch = self.prepare(part) if part.rows else part
        if scales:
            batch.scales = scales
        metrics = self.update(batch, self._now)
        if part.rows:
            tally.add(metrics, part.rows)
        if self._stop.stopped:
            return False
        if part.rows:
            found.add(part, self._priorities)
        self._updated()
        return True

    def _updated(self) -> None:
        self._updates += 1
        self._targets.after_update(self.policy)

    def prepare(self, batch: TensorBatch) -> TensorBatch:
        """A minibatch as losses get it: as it is. Override to add columns, such as noise from the learner's stream."""
        return batch

    def update(self, batch: TensorBatch, now: Progress) -> Metrics:
        """One update on a minibatch; returns its metrics. Override for several losses or parameter groups."""
        return self.step("all", self.loss, batch, now)

    def step(self, group: str, loss: LossFunction, batch: TensorBatch, now: Progress | None = None) -> Metrics:
        """Loss, gradient, clip by global norm, Adam, on one parameter group: "all" or a submodule's name.

        Raises:
            FloatingPointError: the loss or the gradient is not finite; the parameters have not changed.
        """
        now = self._now if now is None else now
        where, peers = self._where(), self._peers
        if peers is None:
            out, gradient = gradient_of(
                self.policy, loss, batch, now, microbatch=self._microbatch, where=where, group=group
            )
        else:
            out, gradient = averaged(
                peers, self.policy, loss, batch, now, microbatch=self._microbatch, where=where, group=group
            )
        norm = finite_norm(gradient, batch, where)
        self._priorities = out.per_row.get("priorities", self._priorities)
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
        made = mean_gradient(
            self.policy,
            self.loss,
            self._rows(given),
            Progress(env_steps, self._updates),
            microbatch=microbatch,
            where=self._where(),
            rng=self._rng,
            prepare=self.prepare,
        )
        metrics = {(self.policy_id, name): value for name, value in made.metrics.items()}
        return Answer(made.flat.numpy(), metrics, self._version, env_steps=made.rows)

    def apply_gradients(self, gradients: Batch | npt.ArrayLike, *, env_steps: int = 0) -> Answer[None]:
        """One Adam step along the mean of gradients, clipped here by its global norm; publishes the new weights.

        gradients: one flat gradient (P,); or the columns gradients (B, P) and rows (B,) that ComputeGradients makes,
            whose mean is weighted by rows: that of one batch of all of them. Without a row nothing is trained.
        env_steps: the global count that a learning-rate schedule is a function of.

        Raises:
            ValueError: a gradient has another length, or says that it was made for another policy.
            KeyError: a batch of something else.
            FloatingPointError: it is not finite; the parameters have not changed.
        """
        expected = self.policy.flat_parameters.shape
        counts: dict[str, Any] = {}
        if isinstance(gradients, Batch):
            mean, rows = mean_of(gradients, expected[0], self.policy.described(self.policy_id))
            counts = {"rows": rows, "trained_steps": Sum(rows)}
            if rows == 0:
                return self._answer(counts)
            if self.policy.statistics is not None:
                for moments in moments_of(gradients):
                    self.policy.statistics.merge(moments)
        else:
            mean = np.asarray(gradients, np.float32)
        gradient = torch.tensor(mean)  # a copy: the clip is in place
        if gradient.shape != expected:
            raise ValueError(f"gradients must be flat with shape {tuple(expected)}, got {tuple(gradient.shape)}")
        with quiet(self._rng if self.spec.model else None):
            norm = finite_norm(gradient, None, self._where())
            rate = self._learning_rate(Progress(env_steps, self._updates))
            self._descent.step("all", self.policy.flat_parameters, gradient, norm, rate)
        self._updated()
        self._version += 1
        return self._answer({"grad_norm": norm, "learning_rate": rate, "updates": self._updates, **counts})

    def _learning_rate(self, now: Progress, group: str = "all") -> float:
        return value_at(self.learning_rate, now.env_steps, "learning_rate")
