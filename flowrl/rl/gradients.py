"""The gradient of a loss over a minibatch, at once or summed over its parts, and the checks that it is finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flowrl.rl.loss import LossFunction, LossOut
from flowrl.rl.policy import Policy
from flowrl.rl.spec import Progress
from flowrl.rl.tally import Tally
from flowrl.rl.tensors import TensorBatch, nonfinite_columns
from flowrl.rl.torch_state import quiet


def gradient_of(
    policy: Policy,
    loss: LossFunction,
    batch: TensorBatch,
    now: Progress,
    *,
    microbatch: int | None,
    where: str,
    group: str = "all",
) -> tuple[LossOut, Tensor]:
    """What the loss gives of a minibatch, and its flat gradient (parameters of the group,).

    With `microbatch` both are put together from parts of that size, of which only one at a time goes through the
    network: the same loss, gradient and metrics. `where` begins an error's text.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    if microbatch is None or microbatch >= batch.size:
        return _gradient_at_once(policy, loss, batch, now, where, group)
    total, value, tally = torch.zeros_like(policy.flat[policy.span(group)]), torch.zeros(()), Tally()
    per_row: dict[str, list[Tensor]] = {}
    for part in batch.parts(microbatch):
        out, gradient = _gradient_at_once(policy, loss, part, now, where, group)
        # A part's loss is a mean over its own rows: by rows it enters the mean over all.
        share = part.rows / batch.rows
        total.add_(gradient, alpha=share)
        value.add_(out.loss.detach(), alpha=share)
        tally.add(out.metrics, part.rows)
        for name, rows_B in out.per_row.items():
            per_row.setdefault(name, []).append(rows_B)
    return LossOut(value, tally.means(), {name: torch.cat(parts) for name, parts in per_row.items()}), total


class Gradient(NamedTuple):
    """A flat gradient (P,), the metrics of its loss, and the rows that both are means over."""

    flat: Tensor
    metrics: dict[str, float]
    rows: int


def mean_gradient(
    policy: Policy,
    loss: LossFunction,
    batch: TensorBatch,
    now: Progress,
    *,
    microbatch: int | None,
    where: str,
    rng: np.random.Generator,
    prepare: Callable[[TensorBatch], TensorBatch] | None = None,
) -> Gradient:
    """The gradient of the mean loss over all rows, for all parameters, not clipped.

    rng: of the noise that networks draw, where they do. prepare: adds columns before the loss is taken.

    Raises:
        FloatingPointError: the loss or the gradient is not finite.
    """
    with quiet(rng if policy.spec.model else None):
        policy.resample()
        given = batch if prepare is None else prepare(batch)
        out, gradient = gradient_of(policy, loss, given, now, microbatch=microbatch, where=where)
        finite_norm(gradient, batch, where)
    return Gradient(gradient, {name: float(value) for name, value in out.metrics.items()}, batch.rows)


def finite_norm(gradient: Tensor, batch: TensorBatch | None, where: str) -> float:
    """The norm of a gradient; `batch` is what it was computed from, if that was here.

    Raises:
        FloatingPointError: it is not finite.
    """
    norm = float(torch.linalg.vector_norm(gradient))
    if not math.isfinite(norm):
        raise FloatingPointError(_not_finite(f"the norm of the gradient is {norm}", batch, where))
    return norm


def _gradient_at_once(
    policy: Policy, loss: LossFunction, batch: TensorBatch, now: Progress, where: str, group: str
) -> tuple[LossOut, Tensor]:
    out = loss(policy, batch, now)
    value = float(out.loss.detach())
    if not math.isfinite(value):
        raise FloatingPointError(_not_finite(f"the loss is {value}", batch, where))
    return out, policy.gradient(out.loss, group)


def _not_finite(what: str, batch: TensorBatch | None, where: str) -> str:
    columns = [] if batch is None else nonfinite_columns(batch)
    cause = f"not finite: {columns}" if columns else "what went in was finite: try a lower learning rate"
    cause = "it was computed elsewhere" if batch is None else cause
    return f"{where}: {what}, so the parameters were left as they are ({cause})"
