"""Values on a smaller scale, on which rewards of any size can be learned without clipping them."""

from __future__ import annotations

import torch
from torch import Tensor


def rescaled(x: Tensor, eps: float) -> Tensor:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x, elementwise (arXiv:1805.11593, proposition A.2)."""
    return torch.sign(x) * (torch.sqrt(x.abs() + 1.0) - 1.0) + eps * x


def unscaled(x: Tensor, eps: float) -> Tensor:
    """h⁻¹(x), elementwise: `rescaled` undone; computed in float64, since it takes a difference of near numbers."""
    y = x.double()
    root = (torch.sqrt(1.0 + 4.0 * eps * (y.abs() + 1.0 + eps)) - 1.0) / (2.0 * eps)
    return (torch.sign(y) * (root.square() - 1.0)).to(x.dtype)
