"""What a policy of an actor and critics has besides: Q of actions, and a gradient for each parameter group."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from flowrl.rl.critics import ActorAndCritics, Critics
from flowrl.rl.flat import FlatModule, Float32
from flowrl.rl.obs_statistics import ObsStatistics
from flowrl.rl.towers import Layers, Towers, forward_only

Obs = Tensor | dict[str, Tensor]


class WithCritics(FlatModule):
    """A flat module that may be an actor with critics (heads "soft_actor" and "deterministic_actor").

    Such a one has the parameter groups "actor", "critics" and, of a soft actor, "temperature", in this order.
    """

    def _adopt(self, module: nn.Module, statistics: ObsStatistics | None) -> None:
        super()._adopt(module, statistics)
        self._groups: dict[str, Tensor] = {}
        self._actor_tower: Layers | None = None
        self._critic_towers: tuple[Layers, ...] = ()
        if isinstance(module, ActorAndCritics):
            # Each group is one leaf of the graph, so that a loss of one group takes no gradient of another.
            names = [name for name, _ in module.named_children()]
            self._groups = {name: self.flat[self.span(name)].detach().requires_grad_() for name in names}
            towers = module.towers()
            if towers is not None:
                self._actor_tower, self._critic_towers = towers

    @property
    def has_critics(self) -> bool:
        """Whether this is an actor with critics."""
        return bool(self._groups)

    @property
    def log_alpha(self) -> Tensor:
        """log α, a scalar with gradient, of a soft actor's temperature."""
        return cast(Any, self.module).temperature.log_alpha.squeeze(0)

    def q_values(
        self, obs: Obs, actions_BD: Tensor | None = None, *, frozen: bool = False, of_target: bool = False
    ) -> Tensor:
        """Q (K, B) of each critic for actions (B, D) between −1 and 1; (K, B, A) without actions, for Discrete ones.

        frozen: the critics' parameters get no gradient of it, the actions do. of_target: the target's critics.
        Observations (B, ...) are normalized by this policy's statistics.

        Raises:
            ValueError: a module of a user's own gives another shape.
        """
        owner = self.target if of_target else self  # type: ignore[attr-defined]
        return owner._q(self.normalized(obs), actions_BD, frozen=frozen or of_target)

    def first_q(self, obs: Obs, actions_BD: Tensor) -> Tensor:
        """Q (B,) of the first critic, frozen: what a deterministic actor ascends."""
        if not self._critic_towers:
            return self.q_values(obs, actions_BD, frozen=True)[0]
        return self._q(self.normalized(obs), actions_BD, frozen=True, count=1)[0]

    def normalized(self, obs: Obs) -> Obs:
        """Observations (B, ...) as the network sees them."""
        return obs if self.statistics is None else self.statistics(obs)

    def _q(self, obs: Obs, actions_BD: Tensor | None, *, frozen: bool, count: int | None = None) -> Tensor:
        module = cast(ActorAndCritics, self.module)
        if self._critic_towers:
            towers, critics = self._critic_towers[:count], cast(Critics, module.critics)
            x_BF = critics.features(obs, actions_BD)
            if not torch.is_grad_enabled():
                outputs = forward_only(x_BF, towers, critics.activation)
            else:
                leaf = self._groups["critics"]
                leaf = leaf.detach() if frozen else leaf
                outputs = Towers.apply(leaf, x_BF, towers, (0,) * len(towers), critics.activation)
            if actions_BD is None:
                return torch.stack(outputs)
            return torch.cat(outputs, 1).t() if len(outputs) > 1 else outputs[0].t()
        given = (obs,) if actions_BD is None else (obs, actions_BD)
        if not frozen:
            return self._checked_q(module.critics(*given), given)
        state = {name: tensor.detach() for name, tensor in module.critics.named_parameters()}
        return self._checked_q(functional_call(module.critics, state, given), given)

    def _checked_q(self, q: Any, given: tuple[Any, ...]) -> Tensor:
        first = given[0] if isinstance(given[0], Tensor) else next(iter(given[0].values()))
        rows, actions = len(first), self.actions.num_params  # type: ignore[attr-defined]
        expected = (rows,) if len(given) == 2 else (rows, actions)
        if not isinstance(q, Tensor) or q.shape[1:] != expected:
            got = tuple(q.shape) if isinstance(q, Tensor) else type(q).__name__
            raise ValueError(f"`critics` must give values (K, {', '.join(map(str, expected))}), got {got}")
        return q

    def _actor_outputs(self, obs: Obs) -> Tensor:
        """The actor's outputs (B, P) for normalized observations."""
        module = cast(Any, self.module)
        if self._actor_tower is None:
            return module.actor(obs)
        x_BF, towers = module.actor.encoder(obs), (self._actor_tower,)
        if not torch.is_grad_enabled():
            return forward_only(x_BF, towers, module.actor.activation)[0]
        return Towers.apply(self._groups["actor"], x_BF, towers, (0,), module.actor.activation)[0]

    def gradient(self, loss: Tensor, group: str = "all") -> Tensor:
        """The flat gradient of a scalar over a parameter group; 0 where it does not depend on it or it is frozen."""
        if not self._groups:
            return super().gradient(loss, group)
        names = list(self._groups) if group == "all" else [group]
        parameters = {name: list(self.module.get_submodule(name).parameters()) for name in names}
        trained = [p for name in names for p in parameters[name] if p.requires_grad]
        leaves = [self._groups[name] for name in names]
        found = torch.autograd.grad(loss, [*leaves, *trained], allow_unused=True)
        through = dict(zip(names, found, strict=False))
        direct = {id(p): g for p, g in zip(trained, found[len(names) :], strict=True) if g is not None}
        parts = []
        for name in names:
            whole = through[name]
            if direct and any(id(p) in direct for p in parameters[name]):
                flat = torch.cat([direct.get(id(p), torch.zeros_like(p)).reshape(-1) for p in parameters[name]])
                whole = flat if whole is None else whole + flat
            parts.append(torch.zeros_like(self._groups[name]) if whole is None else whole)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    # what acting takes
    def acting_weights(self) -> Float32:
        """A copy of what acting takes of the flat vector: all of it, or the actor's parameters and then all buffers."""
        if not self._groups:
            return self.get_weights()
        return torch.cat((self.flat[self.span("actor")], self.flat[self._num_parameters :])).numpy()

    def set_acting_weights(self, flat: npt.ArrayLike) -> None:
        """Takes over a flat vector of `acting_weights` or of the whole.

        Raises:
            ValueError: another length, or a value that is not finite.
        """
        array = np.asarray(flat, np.float32)
        actor = self.span("actor").stop if self._groups else 0
        if not self._groups or array.shape != (actor + len(self.flat) - self._num_parameters,):
            return self.set_weights(array)
        whole = self.get_weights()
        whole[:actor], whole[self._num_parameters :] = array[:actor], array[actor:]
        return self.set_weights(whole)
