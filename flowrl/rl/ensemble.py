"""Perceptrons of an actor or of its critics side by side, with the backward pass written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Layer = tuple[Tensor, Tensor, Tensor]  # weight (out, in), its transposed view, bias (out,)
ACTIVATE_: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh_, "relu": torch.relu_}
FEW_INPUTS = 12  # up to so many a product with the inputs is faster the other way round


@dataclass(frozen=True)
class Ensemble:
    """K perceptrons of equal shape, as views of the flat vector, one after the other and layer by layer."""

    nets: tuple[tuple[Layer, ...], ...]
    activation: str

    @staticmethod
    def of(nets: list[tuple[nn.Linear, ...]], activation: str) -> Ensemble:
        """That of the nets' linear layers."""
        return Ensemble(tuple(tuple(_layer(linear) for linear in net) for net in nets), activation)

    def first(self) -> Ensemble:
        """The first of them alone, for which no gradient of parameters is taken."""
        return Ensemble(self.nets[:1], self.activation)

    def __call__(self, leaf: Tensor | None, x_BF: Tensor, actions_BD: Tensor | None = None) -> Tensor:
        """The outputs (K, B, out) for inputs (B, F), and (B, D) behind them.

        leaf: the flat parameters that the views are of, for whose gradient the outputs are; None for none.
        """
        if torch.is_grad_enabled():
            outputs: Tensor = _Forward.apply(leaf, x_BF, actions_BD, self)
            return outputs
        return self.run(x_BF if actions_BD is None else torch.cat((x_BF, actions_BD), 1), None)

    def run(self, x_BF: Tensor, inputs: list[Tensor] | None) -> Tensor:
        """The outputs (K, B, out); what goes into the layers behind the first is added to `inputs`, if given."""
        activate_ = ACTIVATE_[self.activation]
        outputs_KBO = x_BF.new_empty(len(self.nets), x_BF.shape[0], self.nets[0][-1][2].shape[0])
        for net, outputs_BO in zip(self.nets, outputs_KBO.unbind(0), strict=True):
            h = x_BF
            for _, weight_t, bias in net[:-1]:
                h = activate_(torch.addmm(bias, h, weight_t))
                if inputs is not None:
                    inputs.append(h)
            _, weight_t, bias = net[-1]
            torch.addmm(bias, h, weight_t, out=outputs_BO)
        return outputs_KBO

    def backward_(self, d: Tensor, h: Tensor) -> Tensor:
        """The gradient `d` behind an activation that gave `h`, in its place before it."""
        if self.activation == "relu":
            torch.ops.aten.threshold_backward.grad_input(d, h, 0, grad_input=d)
        else:
            torch.ops.aten.tanh_backward.grad_input(d, h, grad_input=d)
        return d


class _Forward(torch.autograd.Function):
    """An ensemble's outputs, with gradients for the flat parameters and for the actions among the inputs."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor | None, x_BF: Tensor, actions_BD: Tensor | None, nets: Ensemble) -> Tensor:
        whole_BF = x_BF if actions_BD is None else torch.cat((x_BF, actions_BD), 1)
        inputs: list[Tensor] = []
        outputs_KBO = nets.run(whole_BF, inputs)
        ctx.save_for_backward(whole_BF, *inputs)
        ctx.nets, ctx.features = nets, x_BF.shape[1]
        return outputs_KBO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, doutputs_KBO: Tensor) -> tuple[Tensor | None, ...]:
        x_BF, *inputs = ctx.saved_tensors
        trained, moves, nets = ctx.needs_input_grad[0], ctx.needs_input_grad[2], ctx.nets
        parts: list[Tensor] = []  # from the first parameter to the last
        dactions, deep = None, len(nets.nets[0]) - 1
        for k, net in enumerate(nets.nets):
            d, mine = doutputs_KBO[k], inputs[k * deep : (k + 1) * deep]
            reverse: list[Tensor] = []
            for place in range(deep, 0, -1):
                h = mine[place - 1]
                if trained:
                    reverse += [d.sum(0), d.t().mm(h).view(-1)]
                d = nets.backward_(d.mm(net[place][0]), h)
            if trained:
                parts += [_product(d, x_BF), d.sum(0), *reversed(reverse)]
            if moves:
                dmine = d.mm(net[0][0][:, ctx.features :])
                dactions = dmine if dactions is None else dactions.add_(dmine)
        return torch.cat(parts) if trained else None, None, dactions, None


def _product(d_BO: Tensor, x_BF: Tensor) -> Tensor:
    """dᵀx (out, F), flat."""
    if x_BF.shape[1] > FEW_INPUTS:
        return d_BO.t().mm(x_BF).view(-1)
    return x_BF.t().mm(d_BO).t().reshape(-1)


def _layer(linear: nn.Linear) -> Layer:
    weight = linear.weight.detach()
    return weight, weight.t(), linear.bias.detach()
