"""A module as one flat vector of weights: parameters and buffers are views of it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowrl.rl.obs_statistics import ObsStatistics

Float32 = npt.NDArray[np.float32]


class FlatModule:
    """A torch module whose parameters, float buffers and statistics are views of one flat float32 vector, `flat`."""

    def _adopt(self, module: nn.Module, statistics: ObsStatistics | None) -> None:
        """Makes the module's tensors views of a new flat vector.

        Raises:
            TypeError: one is not float32.
        """
        self.module, self.statistics = module, statistics
        self.parameters: tuple[nn.Parameter, ...] = tuple(module.parameters())
        buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        buffers += [] if statistics is None else [statistics.mean, statistics.var]
        self.flat, self._num_parameters = _flatten(self.parameters, buffers)
        self._spans = {"all": slice(0, self._num_parameters)}
        self._layout: str | None = None
        # What the default model's gradient is taken for: the same numbers as one leaf of the graph.
        self._leaf = self.flat_parameters.detach().requires_grad_()

    @property
    def flat_parameters(self) -> Tensor:
        """The part of the flat vector that is trained: parameters without buffers. A view."""
        return self.flat[: self._num_parameters]

    def described(self, policy_id: str) -> str:
        """The policy in words, equal for equal names and shapes of parameters: what a flat gradient belongs to."""
        if self._layout is None:
            shapes = [(name, tuple(parameter.shape)) for name, parameter in self.module.named_parameters()]
            self._layout = f"{self._num_parameters} parameters, layout {zlib.crc32(repr(shapes).encode()):08x}"
        return f"{policy_id!r} ({self._layout})"

    def span(self, group: str) -> slice:
        """Where a parameter group stands in the flat vector: "all", or the name of a submodule ("actor").

        Raises:
            KeyError: no parameter's name begins with the group's.
            ValueError: the group's parameters are not contiguous.
        """
        if group not in self._spans:
            self._spans[group] = _span(self.module, group)
        return self._spans[group]

    def gradient(self, loss: Tensor, group: str = "all") -> Tensor:
        """The flat gradient of a scalar over a parameter group; 0 where it does not depend on it or it is frozen."""
        return self._gradient(loss)[self.span(group)]

    def _gradient(self, loss: Tensor) -> Tensor:
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        through_leaf, *rest = torch.autograd.grad(loss, [self._leaf, *trained], allow_unused=True)
        if through_leaf is not None and all(gradient is None for gradient in rest):
            return through_leaf
        found = dict(zip(trained, rest, strict=True))
        parts = [(parameter, found.get(parameter)) for parameter in self.parameters]
        gradient = torch.cat([p.new_zeros(p.numel()) if g is None else g.reshape(-1) for p, g in parts])
        return gradient if through_leaf is None else gradient.add_(through_leaf)

    def get_weights(self) -> Float32:
        """A copy of the flat vector."""
        return self.flat.numpy().copy()

    def set_weights(self, flat: npt.ArrayLike) -> None:
        """Takes over a flat vector.

        Raises:
            ValueError: another length, or a value that is not finite.
        """
        array = np.asarray(flat, np.float32)
        if array.shape != tuple(self.flat.shape):
            raise ValueError(
                f"this policy has {len(self.flat)} weights, got an array of shape {array.shape}: "
                "they were made for another model or other spaces"
            )
        if not np.isfinite(array).all():
            place = int(np.flatnonzero(~np.isfinite(array))[0])
            raise ValueError(f"weights must be finite, got {array[place]} at position {place} of {len(array)}")
        with torch.no_grad():
            self.flat.copy_(torch.tensor(array))

    def other_buffers(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of what is no part of the flat vector, by name: integer buffers and the statistics' exact moments."""
        exact = {} if self.statistics is None else self.statistics.exact()
        return {**{name: buffer.numpy().copy() for name, buffer in _integer_buffers(self.module)}, **exact}

    def set_other_buffers(self, buffers: Mapping[str, npt.NDArray[Any]]) -> None:
        """Takes over what `other_buffers` gave."""
        for name, buffer in _integer_buffers(self.module):
            buffer.copy_(torch.tensor(buffers[name]))
        if self.statistics is not None:
            self.statistics.set_exact(buffers)

    def copy_other_buffers(self, source: FlatModule) -> None:
        """Takes over what is no part of the flat vector from a module of the same kind."""
        buffers = _integer_buffers(self.module)
        if buffers or self.statistics is not None:
            self.set_other_buffers(source.other_buffers())


class evaluating:  # noqa: N801  (a context manager, used like a function)
    """The module in evaluation mode, and afterwards in the mode it was in."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.training = module.training

    def __enter__(self) -> None:
        if self.training:
            self.module.eval()

    def __exit__(self, *error: object) -> None:
        if self.training:
            self.module.train()


def _flatten(parameters: Sequence[nn.Parameter], buffers: Sequence[Tensor]) -> tuple[Tensor, int]:
    """One float32 vector that the parameters and then the buffers are views of, and the parameters' length."""
    tensors: list[Tensor] = [*parameters, *buffers]
    for tensor in tensors:
        if tensor.dtype != torch.float32:
            raise TypeError(f"the model's parameters and float buffers must be float32, got one of {tensor.dtype}")
    flat = torch.empty(sum(tensor.numel() for tensor in tensors))
    with torch.no_grad():
        for part, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors, strict=True):
            part.copy_(tensor.reshape(-1))
            tensor.data = part.view(tensor.shape)
    return flat, sum(parameter.numel() for parameter in parameters)


def _span(module: nn.Module, group: str) -> slice:
    spans, start = [], 0
    for name, parameter in module.named_parameters():
        if name == group or name.startswith(group + "."):
            spans.append((start, start + parameter.numel()))
        start += parameter.numel()
    if not spans:
        names = sorted({name.split(".")[0] for name, _ in module.named_parameters()})
        raise KeyError(f"no parameter group {group!r}; this policy has 'all' and the submodules {names}")
    if any(stop != start for (_, stop), (start, _) in itertools.pairwise(spans)):
        raise ValueError(f"the parameters of group {group!r} are not next to each other in the module")
    return slice(spans[0][0], spans[-1][1])


def _integer_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in module.named_buffers() if not buffer.is_floating_point()]
