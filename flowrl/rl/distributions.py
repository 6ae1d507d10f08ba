"""Action distributions over batches of a model's outputs (torch)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from flowrl.rl.actions import ActionLayout
from flowrl.rl.deterministic import Deterministic

LOG_2PI = math.log(2.0 * math.pi)
MASKED = torch.finfo(torch.float32).min


class Distribution(Protocol):
    """A distribution over actions for each row; rows have any leading dimensions: (B,) or (T, N).

    Actions are as a batch stores them (`flowrl.rl.actions.ActionLayout`), (..., *shape).
    """

    @property
    def params(self) -> Tensor:
        """The model's outputs (..., P), masked."""
        ...

    def logp(self, actions: Tensor) -> Tensor:
        """The log-probability, or log-density, (...) of an action a row, summed over the action's dimensions."""
        ...

    def logp_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The same and the entropy (...) in nats, summed over the action's dimensions, or an estimate of it."""
        ...

    def mode(self) -> Tensor:
        """The most probable action a row."""
        ...

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One action a row, drawn with the generator."""
        ...


class Categorical:
    """A distribution over A actions for each row, from unnormalized logits (..., A).

    Actions are indices 0..A-1. An action whose logit is -inf, or the least float32 as masks put it, is never drawn.
    `torch.distributions` says the same, several times slower: it validates and broadcasts at every call.
    """

    __slots__ = ("logits_BA",)

    def __init__(self, logits_BA: Tensor):
        self.logits_BA = logits_BA

    @property
    def params(self) -> Tensor:
        """The logits."""
        return self.logits_BA

    def logp(self, actions_B: Tensor) -> Tensor:
        """The log-probability (B,) of one action a row."""
        return self.logp_and_entropy(actions_B)[0]

    def entropy(self) -> Tensor:
        """The entropy (B,) in nats."""
        return self.logp_and_entropy(self.mode())[1]

    def logp_and_entropy(self, actions_B: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability (B,) of one action a row and the entropy (B,), sharing their work."""
        logp_B, entropy_B = _LogpEntropy.apply(self.logits_BA, actions_B.long().unsqueeze(-1))
        return logp_B, entropy_B

    def mode(self) -> Tensor:
        """The most probable action (B,)."""
        return self.logits_BA.argmax(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One action (B,) a row, drawn with the generator."""
        # Gumbel's way: the largest of logit − log(exponential noise). No rounding can draw what is masked.
        noise = torch.empty_like(self.logits_BA).exponential_(generator=generator)
        return (self.logits_BA - noise.clamp_(min=torch.finfo(torch.float32).tiny).log_()).argmax(-1)


class _LogpEntropy(torch.autograd.Function):
    """log p_a and H of a softmax, with the gradients written out: a sixth of autograd's operations.

    ∂ log p_a / ∂z_j = 1[j = a] − p_j and ∂H / ∂z_j = −p_j log p_j − p_j H.
    """

    @staticmethod
    def forward(ctx: Any, logits_BA: Tensor, actions_B1: Tensor) -> tuple[Tensor, Tensor]:
        logp_BA = torch.log_softmax(logits_BA, -1)
        p_BA = logp_BA.exp()
        # entr is −p log p with the right limit, 0, where p is 0; the product would be NaN there.
        entr_BA = torch.special.entr(p_BA)
        entropy_B = entr_BA.sum(-1)
        ctx.save_for_backward(p_BA, entr_BA, entropy_B, actions_B1)
        ctx.set_materialize_grads(False)
        return logp_BA.gather(-1, actions_B1).squeeze(-1), entropy_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlogp_B: Tensor | None, dentropy_B: Tensor | None) -> tuple[Tensor | None, None]:
        p_BA, entr_BA, entropy_B, actions_B1 = ctx.saved_tensors
        dlogits_BA = None
        if dlogp_B is not None:
            dlogp_B1 = dlogp_B.unsqueeze(-1)
            dlogits_BA = (p_BA * -dlogp_B1).scatter_add_(-1, actions_B1, dlogp_B1)
        if dentropy_B is not None:
            through_entropy_BA = torch.addcmul(entr_BA, p_BA, entropy_B.unsqueeze(-1), value=-1)
            through_entropy_BA.mul_(dentropy_B.unsqueeze(-1))
            dlogits_BA = through_entropy_BA if dlogits_BA is None else dlogits_BA.add_(through_entropy_BA)
        return dlogits_BA, None


class MultiCategorical:
    """Independent choices among `choices[k]` values each, from their logits (..., sum(choices)) side by side.

    Actions are indices (..., *shape), as many as there are choices.
    """

    __slots__ = ("_each", "params", "shape")

    def __init__(self, params: Tensor, choices: tuple[int, ...], shape: tuple[int, ...]):
        self.params, self.shape = params, shape
        # All choices as one Categorical (..., K, widest), short ones filled up with what is never drawn.
        padded = functional.pad(params, (0, 1), value=MASKED)
        places = torch.as_tensor(padded_places(choices))
        self._each = Categorical(padded.index_select(-1, places).unflatten(-1, (len(choices), max(choices))))

    def logp(self, actions: Tensor) -> Tensor:
        """The log-probability (...) of all the choices of a row together."""
        return self.logp_and_entropy(actions)[0]

    def entropy(self) -> Tensor:
        """The entropy (...) of all the choices together."""
        return self._each.entropy().sum(-1)

    def logp_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy (...), sharing their work."""
        logp, entropy = self._each.logp_and_entropy(_flat_event(actions, self.shape))
        return logp.sum(-1), entropy.sum(-1)

    def mode(self) -> Tensor:
        """The most probable index of each choice (..., *shape)."""
        return self._each.mode().unflatten(-1, self.shape)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Indices (..., *shape), drawn with the generator."""
        return self._each.sample(generator).unflatten(-1, self.shape)


class Bernoulli:
    """Independent bits (..., *shape), from the logit of each, (..., n)."""

    __slots__ = ("params", "shape")

    def __init__(self, params: Tensor, shape: tuple[int, ...]):
        self.params, self.shape = params, shape

    def logp(self, actions: Tensor) -> Tensor:
        """The log-probability (...) of all the bits of a row together."""
        bits = _flat_event(actions, self.shape).to(torch.float32)
        return (bits * self.params - functional.softplus(self.params)).sum(-1)

    def entropy(self) -> Tensor:
        """The entropy (...) of all the bits together."""
        return (functional.softplus(self.params) - self.params * self.params.sigmoid()).sum(-1)

    def logp_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy (...)."""
        return self.logp(actions), self.entropy()

    def mode(self) -> Tensor:
        """1 where that is more probable, int8 (..., *shape)."""
        return (self.params > 0).to(torch.int8).unflatten(-1, self.shape)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Bits, int8 (..., *shape), drawn with the generator."""
        uniform = torch.rand(self.params.shape, generator=generator)
        return (uniform < self.params.sigmoid()).to(torch.int8).unflatten(-1, self.shape)


class DiagonalGaussian:
    """Independent normal numbers (..., *shape), from their means and then their log standard deviations (..., 2·D)."""

    __slots__ = ("log_std", "mean", "params", "shape")

    def __init__(self, params: Tensor, shape: tuple[int, ...]):
        self.params, self.shape = params, shape
        self.mean, self.log_std = params.chunk(2, -1)

    def logp(self, actions: Tensor) -> Tensor:
        """The log-density (...) of all the numbers of a row together."""
        z = (_flat_event(actions, self.shape) - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * z.square() - self.log_std).sum(-1) - 0.5 * LOG_2PI * self.mean.shape[-1]

    def entropy(self) -> Tensor:
        """The differential entropy (...), ½ log 2πe + log σ a number."""
        return self.log_std.sum(-1) + 0.5 * (1.0 + LOG_2PI) * self.mean.shape[-1]

    def logp_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density and entropy (...)."""
        return self.logp(actions), self.entropy()

    def mode(self) -> Tensor:
        """The means (..., *shape)."""
        return self.mean.unflatten(-1, self.shape) if self.shape else self.mean.squeeze(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Numbers (..., *shape), drawn with the generator; not clipped."""
        noise = torch.randn(self.mean.shape, generator=generator)
        drawn = self.mean + self.log_std.exp() * noise
        return drawn.unflatten(-1, self.shape) if self.shape else drawn.squeeze(-1)


class SquashedGaussian:
    """A diagonal Gaussian u put through tanh and scaled to bounds; actions are the u (..., *shape), before tanh.

    log p(a) = log N(u) − Σ [2(log 2 − u − softplus(−2u)) + log scale]: the log of tanh's slope without its
    cancellation at large |u| (arXiv:1801.01290, appendix C). `log_scale` is Σ log((high − low) / 2), so that
    densities are in the environment's units.
    """

    __slots__ = ("gaussian", "log_scale")

    def __init__(self, params: Tensor, shape: tuple[int, ...], log_scale: float):
        self.gaussian = DiagonalGaussian(params, shape)
        self.log_scale = log_scale

    @property
    def params(self) -> Tensor:
        """Means and log standard deviations of u."""
        return self.gaussian.params

    def logp(self, actions: Tensor) -> Tensor:
        """The log-density (...) of actions given before tanh."""
        u = _flat_event(actions, self.gaussian.shape)
        log_slope = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
        return self.gaussian.logp(actions) - log_slope.sum(-1) - self.log_scale

    def logp_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The log-density (...) and its negative, which estimates the entropy: that has no closed form."""
        logp = self.logp(actions)
        return logp, -logp

    def mode(self) -> Tensor:
        """The means (..., *shape), before tanh."""
        return self.gaussian.mode()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Numbers (..., *shape) before tanh, drawn with the generator."""
        return self.gaussian.sample(generator)


def distribution_of(layout: ActionLayout) -> Callable[[Tensor], Distribution]:
    """What makes a distribution over the layout's actions of a model's outputs (..., P)."""
    shape = layout.shape
    if layout.kind == "discrete":
        return Categorical
    if layout.kind == "multi_discrete":
        return lambda params: MultiCategorical(params, layout.choices, shape)
    if layout.kind == "multi_binary":
        return lambda params: Bernoulli(params, shape)
    if layout.kind == "scaled_box":
        return lambda params: Deterministic(params, shape, layout.noise)
    if layout.squash:
        log_scale = layout.log_scale
        return lambda params: SquashedGaussian(params, shape, log_scale)
    return lambda params: DiagonalGaussian(params, shape)


def padded_places(choices: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where in the side-by-side logits of `choices` each of (K, widest) stands, flat; the end where there is none."""
    starts, widest, end = np.cumsum((0, *choices[:-1])), max(choices), sum(choices)
    places = starts[:, None] + np.arange(widest)
    return np.where(np.arange(widest) < np.array(choices)[:, None], places, end).ravel()


def kl_estimate(log_ratio_B: Tensor) -> Tensor:
    """The estimate (B,) of KL(old ‖ new), (r − 1) − log r with r = new / old: never negative.

    `log_ratio_B` is log r of actions drawn from the old policy.
    """
    return torch.expm1(log_ratio_B) - log_ratio_B


def _flat_event(actions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Actions (..., *shape) as (..., D)."""
    if len(shape) == 1:
        return actions
    return actions.flatten(actions.dim() - len(shape)) if shape else actions.unsqueeze(-1)
