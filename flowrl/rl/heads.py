"""What a network's outputs mean: distributions over actions and values, by the head of a policy's specification."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from flowrl.rl.actions import ActionLayout
from flowrl.rl.distributions import MASKED, Distribution, distribution_of
from flowrl.rl.greedy import Greedy
from flowrl.rl.q_inference import support_of
from flowrl.rl.spec import ACTOR_HEADS, PolicySpec

State = dict[str, Tensor]


class PolicyOut(NamedTuple):
    """What a policy says of observations: distributions over actions, the values, and a recurrent policy's state.

    Rows have the leading dimensions of the observations: (B,) or (T, N). `state` (N, ...) is that after the last
    step; empty for a policy that keeps none. `atoms` (..., A, atoms): the logits of the returns of each action, for
    a policy that learns their distribution.
    """

    dist: Distribution
    values: Tensor
    state: State = {}  # noqa: RUF012  (never written to)
    atoms: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """The model's outputs (..., P), masked: what the distribution is made of. Of head "q": Q (..., A)."""
        return self.dist.params


class Head(Protocol):
    """Reads a network's outputs."""

    def checked(self, outputs: Any, leading: Sequence[int]) -> tuple[Tensor, ...]:
        """The outputs as tensors, each with these leading dimensions.

        Raises:
            ValueError: they have the wrong shape.
        """
        ...

    def out(self, outputs: tuple[Tensor, ...], mask: Tensor | None, state: State) -> PolicyOut:
        """What checked outputs mean, where only actions may be taken that the mask (..., P) allows."""
        ...

    def rows(self, out: PolicyOut, which: Any) -> PolicyOut:
        """The rows of `out` at an index or a mask over its leading dimensions."""
        ...


class ActorCriticHead:
    """Outputs are the parameters (..., P) of a distribution over actions, and values (...)."""

    def __init__(self, actions: ActionLayout):
        self._num_params = actions.num_params
        self._dist = distribution_of(actions)

    def checked(self, outputs: Any, leading: Sequence[int]) -> tuple[Tensor, ...]:
        """Params and values."""
        params, values = outputs
        # (B, 1) values against (B,) returns would broadcast to (B, B) without a word.
        if params.shape != (*leading, self._num_params) or values.shape != (*leading,):
            rows = ", ".join(map(str, leading))
            raise ValueError(
                f"the model must give params ({rows}, {self._num_params}) and values ({rows},) for {rows} "
                f"observations, got {tuple(params.shape)} and {tuple(values.shape)}"
            )
        return params, values

    def out(self, outputs: tuple[Tensor, ...], mask: Tensor | None, state: State) -> PolicyOut:
        """Their distribution and values."""
        params, values = outputs
        return PolicyOut(self._dist(params if mask is None else params.masked_fill(~mask, MASKED)), values, state)

    def rows(self, out: PolicyOut, which: Any) -> PolicyOut:
        """Some of its rows."""
        return PolicyOut(self._dist(out.dist.params[which]), out.values[which], out.state)


class QHead:
    """Outputs are values Q of A actions (..., A), or logits of the atoms of each (..., A · atoms), whose mean is Q."""

    def __init__(self, spec: PolicySpec, actions: ActionLayout):
        support = support_of(spec)
        self._num_actions = actions.num_params
        self._num_outputs = self._num_actions * (spec.atoms or 1)
        self.support = None if support is None else torch.from_numpy(support)

    def checked(self, outputs: Any, leading: Sequence[int]) -> tuple[Tensor, ...]:
        """Q or the logits of atoms."""
        raw = outputs[0] if isinstance(outputs, tuple) else outputs
        if not isinstance(raw, Tensor) or raw.shape != (*leading, self._num_outputs):
            rows = ", ".join(map(str, leading))
            got = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
            raise ValueError(
                f"the model must give values of actions ({rows}, {self._num_outputs}) for {rows} observations, "
                f"got {got}"
            )
        return (raw,)

    def out(self, outputs: tuple[Tensor, ...], mask: Tensor | None, state: State) -> PolicyOut:
        """The greedy choice, and the greatest Q as the value."""
        q, atoms = self.q(outputs)
        q = q if mask is None else q.masked_fill(~mask, MASKED)
        return PolicyOut(Greedy(q), q.max(-1).values, state, atoms)

    def q(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """Q (..., A), and the logits (..., A, atoms) that it is made of."""
        (raw,) = outputs
        if self.support is None:
            return raw, None
        logits = raw.unflatten(-1, (self._num_actions, -1))
        return torch.softmax(logits, -1) @ self.support, logits

    def rows(self, out: PolicyOut, which: Any) -> PolicyOut:
        """Some of its rows."""
        atoms = None if out.atoms is None else out.atoms[which]
        return PolicyOut(Greedy(out.dist.params[which]), out.values[which], out.state, atoms)


class ActorHead:
    """Outputs are the parameters (..., P) of a distribution over actions; values are NaN, as critics value actions."""

    def __init__(self, spec: PolicySpec, actions: ActionLayout):
        self._num_params = actions.num_params
        self._dist = distribution_of(actions)
        self._log_std_range = spec.log_std_range if actions.kind == "box" else None

    def checked(self, outputs: Any, leading: Sequence[int]) -> tuple[Tensor, ...]:
        """The params, log standard deviations clipped."""
        params = outputs[0] if isinstance(outputs, tuple) else outputs
        if not isinstance(params, Tensor) or params.shape != (*leading, self._num_params):
            rows = ", ".join(map(str, leading))
            got = tuple(params.shape) if isinstance(params, Tensor) else type(params).__name__
            raise ValueError(
                f"`actor` must give params ({rows}, {self._num_params}) for {rows} observations, got {got}"
            )
        if self._log_std_range is not None:
            mean, log_std = params.chunk(2, -1)
            params = torch.cat((mean, log_std.clamp(*self._log_std_range)), -1)
        return (params,)

    def out(self, outputs: tuple[Tensor, ...], mask: Tensor | None, state: State) -> PolicyOut:
        """The distribution."""
        (params,) = outputs
        dist = self._dist(params if mask is None else params.masked_fill(~mask, MASKED))
        return PolicyOut(dist, params.new_full(params.shape[:-1], math.nan), state)

    def rows(self, out: PolicyOut, which: Any) -> PolicyOut:
        """Some of its rows."""
        return PolicyOut(self._dist(out.dist.params[which]), out.values[which], out.state)


def head_of(spec: PolicySpec, actions: ActionLayout) -> Head:
    """What reads the outputs of a policy's network."""
    if spec.head in ACTOR_HEADS:
        return ActorHead(spec, actions)
    return QHead(spec, actions) if spec.head == "q" else ActorCriticHead(actions)
