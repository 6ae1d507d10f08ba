"""What a policy of an actor and critics has besides: Q of actions, and a gradient for each parameter group."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from flowrl.rl.critics import ActorAndCritics, Critics
from flowrl.rl.ensemble import Ensemble
from flowrl.rl.flat import FlatModule, Float32
from flowrl.rl.obs_statistics import ObsStatistics

Obs = Tensor | dict[str, Tensor]


class WithCritics(FlatModule):
    """A flat module that may be an actor with critics (heads "soft_actor" and "deterministic_actor").

    Such a one has the parameter groups "actor", "critics" and, of a soft actor, "temperature", in this order.
    """

    def _adopt(self, module: nn.Module, statistics: ObsStatistics | None) -> None:
        super()._adopt(module, statistics)
        self._groups: dict[str, Tensor] = {}
        self._trained: dict[str, list[nn.Parameter]] = {}
        self._actor_net: Ensemble | None = None
        self._critic_nets: Ensemble | None = None
        self._first_net: Ensemble | None = None
        if isinstance(module, ActorAndCritics):
            # Each group is one leaf of the graph, so that a loss of one group takes no gradient of another.
            names = [name for name, _ in module.named_children()]
            self._groups = {name: self.flat[self.span(name)].detach().requires_grad_() for name in names}
            self._trained = {name: list(module.get_submodule(name).parameters()) for name in names}
            ensembles = module.ensembles()
            if ensembles is not None:
                self._actor_net, self._critic_nets = ensembles
                self._first_net = self._critic_nets.first()

    @property
    def has_critics(self) -> bool:
        """Whether this is an actor with critics."""
        return bool(self._groups)

    @property
    def log_alpha(self) -> Tensor:
        """log α, a scalar with gradient, of a soft actor's temperature."""
        return cast(Any, self.module).temperature.log_alpha.squeeze(0)

    @property
    def followed(self) -> slice:
        """The parameters that a target follows: all, but of a soft actor only the critics'."""
        return self.span("critics" if "temperature" in self._groups else "all")

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
        if self._first_net is None:
            return self.q_values(obs, actions_BD, frozen=True)[0]
        x_BF = cast(Critics, self.module.critics).encoder(self.normalized(obs))
        return self._first_net(None, x_BF, actions_BD).flatten()

    def normalized(self, obs: Obs) -> Obs:
        """Observations (B, ...) as the network sees them."""
        return obs if self.statistics is None else self.statistics(obs)

    def _q(self, obs: Obs, actions_BD: Tensor | None, *, frozen: bool) -> Tensor:
        module = cast(ActorAndCritics, self.module)
        if self._critic_nets is not None:
            x_BF = cast(Critics, module.critics).encoder(obs)
            q_KBO = self._critic_nets(None if frozen else self._groups["critics"], x_BF, actions_BD)
            return q_KBO if actions_BD is None else q_KBO.squeeze(-1)
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
        if self._actor_net is None:
            return module.actor(obs)
        return self._actor_net(self._groups["actor"], module.actor.encoder(obs)).squeeze(0)

    def gradient(self, loss: Tensor, group: str = "all") -> Tensor:
        """The flat gradient of a scalar over a parameter group; 0 where it does not depend on it or it is frozen."""
        if not self._groups:
            return super().gradient(loss, group)
        names = list(self._groups) if group == "all" else [group]
        leaves = [self._groups[name] for name in names]
        trained = [p for name in names for p in self._trained[name] if p.requires_grad]
        found = torch.autograd.grad(loss, [*leaves, *trained], allow_unused=True)
        direct = {id(p): g for p, g in zip(trained, found[len(names) :], strict=True) if g is not None}
        parts = []
        for name, leaf, whole in zip(names, leaves, found, strict=False):
            if direct and any(id(p) in direct for p in self._trained[name]):
                flat = torch.cat([direct.get(id(p), torch.zeros_like(p)).reshape(-1) for p in self._trained[name]])
                whole = flat if whole is None else whole + flat
            parts.append(torch.zeros_like(leaf) if whole is None else whole)
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
