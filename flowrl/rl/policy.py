"""The torch policy: acts on observations, gives distributions and values, and is one flat vector of weights."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowrl.rl.distributions import Categorical
from flowrl.rl.initial import initial_weights
from flowrl.rl.models import ActorCritic, build_module
from flowrl.rl.spaces import action_offset, check_spaces, num_actions
from flowrl.rl.spec import PolicySpec, Spaces

Float32 = npt.NDArray[np.float32]


class PolicyOut(NamedTuple):
    """What a policy says of B observations: a distribution over actions and the values (B,)."""

    dist: Categorical
    values: Tensor

    @property
    def logits(self) -> Tensor:
        """The logits (B, A) of the distribution."""
        return self.dist.logits_BA


class Policy:
    """A policy over its spaces: `act`, `forward`, `target`, and all its weights as one flat float32 vector.

    The flat vector holds the module's parameters in order and then its float buffers; the parameters are
    views into it. For the default model that is actor then critic, layer by layer, weight (out, in) and bias.
    Initial weights follow from the seed alone and no global generator is touched.

    Raises:
        UnsupportedSpace: the spaces are not Discrete actions and Box observations.
        TypeError: the module has parameters that are not float32.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces, *, seed: int | np.random.SeedSequence | None = None):
        check_spaces(spaces)
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self.spec = spec
        self.spaces = spaces
        self._adopt(build_module(spec, spaces, sequence))
        if spec.model is None:
            self.set_weights(initial_weights(spec, spaces, sequence))
        self._generator = torch.Generator()
        self._generator.manual_seed(int(sequence.generate_state(2, np.uint64)[1] >> 1))

    def _adopt(self, module: nn.Module) -> None:
        self.module = module
        self.parameters: tuple[nn.Parameter, ...] = tuple(module.parameters())
        buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        self.flat, self._num_parameters = _flatten(self.parameters, buffers)
        # What the default model's gradient is taken for: the same numbers as one leaf of the graph.
        self._leaf = self.flat_parameters.detach().requires_grad_()
        self._towers = module.towers() if isinstance(module, ActorCritic) else None
        self._target: Policy | None = None
        shape = self.spaces.observation.shape
        self._observation_ndim = len(shape)
        self._actions = num_actions(self.spaces)

    # acting
    def act(self, obs: npt.ArrayLike, *, deterministic: bool = False, state: None = None) -> Any:
        """The environment's action for one observation (an int), or an array (B,) of them for a batch.

        `deterministic` takes the most probable action; otherwise it is drawn with the policy's own generator.

        Raises:
            ValueError: the observation has neither the space's shape nor one leading dimension more, or a
                `state` is given to a policy that keeps none.
            FloatingPointError: the network's outputs are not finite.
        """
        if state is not None:
            raise ValueError(f"this policy keeps no state between steps, so state must be None, got {state!r}")
        array = np.asarray(obs)
        shape = self.spaces.observation.shape
        one = array.shape == shape
        if not one and array.shape[1:] != shape:
            raise ValueError(
                f"obs has shape {array.shape}, but one observation of this policy has {shape} and a batch (B, *{shape})"
            )
        with torch.no_grad(), _evaluating(self.module):
            dist = self._run(torch.tensor(array[None] if one else array)).dist
        if not torch.isfinite(dist.logits_BA).all():
            raise FloatingPointError(
                "the policy's logits are not finite: look for NaN in the observation or the weights"
            )
        index_B = dist.mode() if deterministic else dist.sample(self._generator)
        actions_B = index_B.numpy() + action_offset(self.spaces)
        return int(actions_B[0]) if one else actions_B

    def seed(self, seed: int) -> None:
        """Starts the generator that `act` draws from anew."""
        self._generator.manual_seed(seed)

    # training
    def forward(self, batch: Mapping[str, Any]) -> PolicyOut:
        """Distribution and values (B,) for the column `obs` (or those below `obs/`) of a batch, with gradients.

        A time-major batch (T, N) gives logits (T, N, A) and values (T, N).

        Raises:
            ValueError: the module's logits or values have the wrong shape.
        """
        tree = getattr(batch, "tree", None)
        obs = batch["obs"] if tree is None else tree("obs")
        return self._run(obs if isinstance(obs, Tensor | dict) else torch.tensor(np.asarray(obs)))

    def _run(self, obs: Any) -> PolicyOut:
        if not isinstance(obs, Tensor):
            return self._outputs(self._network(obs), len(next(iter(obs.values()))))
        leading = obs.shape[: obs.dim() - self._observation_ndim]
        if len(leading) == 1:
            return self._outputs(self._network(obs), leading[0])
        dist, values = self._outputs(self._network(obs.flatten(0, len(leading) - 1)), math.prod(leading))
        return PolicyOut(Categorical(dist.logits_BA.unflatten(0, leading)), values.unflatten(0, leading))

    def _network(self, obs: Any) -> tuple[Tensor, Tensor]:
        if self._towers is not None and all(parameter.requires_grad for parameter in self.parameters):
            return cast("ActorCritic", self.module).from_flat(self._leaf, self._towers, obs)
        return self.module(obs)

    def _outputs(self, outputs: tuple[Tensor, Tensor], rows: int) -> PolicyOut:
        logits_BA, values_B = outputs
        # (B, 1) values against (B,) returns would broadcast to (B, B) without a word.
        if logits_BA.shape != (rows, self._actions) or values_B.shape != (rows,):
            raise ValueError(
                f"the model must give logits ({rows}, {self._actions}) and values ({rows},) for {rows} observations, "
                f"got {tuple(logits_BA.shape)} and {tuple(values_B.shape)}"
            )
        return PolicyOut(Categorical(logits_BA), values_B)

    def gradient(self, loss: Tensor) -> Tensor:
        """The flat gradient of a scalar over the parameters; 0 where it does not depend on them or they are frozen."""
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        through_leaf, *rest = torch.autograd.grad(loss, [self._leaf, *trained], allow_unused=True)
        if through_leaf is not None and all(gradient is None for gradient in rest):
            return through_leaf
        found = dict(zip(trained, rest, strict=True))
        parts = [(parameter, found.get(parameter)) for parameter in self.parameters]
        gradient = torch.cat([p.new_zeros(p.numel()) if g is None else g.reshape(-1) for p, g in parts])
        return gradient if through_leaf is None else gradient.add_(through_leaf)

    @property
    def target(self) -> Policy:
        """A copy of this policy, buffers too, as it stood when it was first asked for; made then."""
        if self._target is None:
            self._target = self._copy()
        return self._target

    @property
    def has_target(self) -> bool:
        """Whether `target` was ever asked for."""
        return self._target is not None

    def _copy(self) -> Policy:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._adopt(copy.deepcopy(self.module))
        other._generator = torch.Generator()
        other._generator.set_state(self._generator.get_state())
        return other

    # weights
    @property
    def flat_parameters(self) -> Tensor:
        """The part of the flat vector that is trained: parameters without buffers. A view."""
        return self.flat[: self._num_parameters]

    def span(self, group: str) -> slice:
        """Where a parameter group stands in the flat vector: "all", or the name of a submodule ("actor").

        Raises:
            KeyError: no parameter's name begins with the group's.
            ValueError: the group's parameters are not contiguous.
        """
        if group == "all":
            return slice(0, self._num_parameters)
        spans, start = [], 0
        for name, parameter in self.module.named_parameters():
            if name == group or name.startswith(group + "."):
                spans.append((start, start + parameter.numel()))
            start += parameter.numel()
        if not spans:
            names = sorted({name.split(".")[0] for name, _ in self.module.named_parameters()})
            raise KeyError(f"no parameter group {group!r}; this policy has 'all' and the submodules {names}")
        if any(stop != start for (_, stop), (start, _) in itertools.pairwise(spans)):
            raise ValueError(f"the parameters of group {group!r} are not next to each other in the module")
        return slice(spans[0][0], spans[-1][1])

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
        """Copies of the buffers that are not floats (a count of batches), by name; not part of the flat vector."""
        return {name: buffer.numpy().copy() for name, buffer in _integer_buffers(self.module)}

    def set_other_buffers(self, buffers: Mapping[str, npt.NDArray[Any]]) -> None:
        """Takes over what `other_buffers` gave."""
        for name, buffer in _integer_buffers(self.module):
            buffer.copy_(torch.tensor(buffers[name]))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.spec, self.spaces, self.get_weights(), self.other_buffers())

    def __repr__(self) -> str:
        return f"Policy({self.spec}, {self.spaces.observation} -> {self.spaces.action}, {len(self.flat):,} weights)"


def _rebuild(spec: PolicySpec, spaces: Spaces, flat: Float32, buffers: Mapping[str, npt.NDArray[Any]]) -> Policy:
    policy = Policy(spec, spaces)
    policy.set_weights(flat)
    policy.set_other_buffers(buffers)
    return policy


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


def _integer_buffers(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in module.named_buffers() if not buffer.is_floating_point()]


class _evaluating:  # noqa: N801  (a context manager, used like a function)
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
