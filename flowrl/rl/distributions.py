"""Action distributions over batches of network outputs (torch)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Categorical:
    """A distribution over A actions for each of B rows, from unnormalized logits (B, A).

    Actions are indices 0..A-1; an action whose logit is -inf is never drawn. `torch.distributions` says
    the same, several times slower: it validates and broadcasts at every call.
    """

    __slots__ = ("logits_BA",)

    def __init__(self, logits_BA: Tensor):
        self.logits_BA = logits_BA

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
        return torch.multinomial(self.logits_BA.softmax(-1), 1, generator=generator).squeeze(-1)


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


def kl_estimate(log_ratio_B: Tensor) -> Tensor:
    """The estimate (B,) of KL(old ‖ new), (r − 1) − log r with r = new / old: never negative.

    `log_ratio_B` is log r of actions drawn from the old policy.
    """
    return torch.expm1(log_ratio_B) - log_ratio_B
