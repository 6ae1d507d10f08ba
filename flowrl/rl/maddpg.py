"""Deterministic actors that act apart and are trained together, by critics that see all of them (arXiv:1706.02275)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from flowrl.batch import Batch
from flowrl.metrics import Sum
from flowrl.ref import Answer
from flowrl.rl.descent import Descent
from flowrl.rl.flat import FlatModule
from flowrl.rl.gradients import finite_norm
from flowrl.rl.in_training import InTraining, child_of
from flowrl.rl.initial import HIDDEN_GAIN
from flowrl.rl.learner import Metrics
from flowrl.rl.maddpg_loss import COLUMNS, CentralQ, actor_loss, central_critic_loss, next_actions
from flowrl.rl.models import MLP, fill
from flowrl.rl.policy import Policy
from flowrl.rl.rows import minibatches
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.tally import Tally
from flowrl.rl.targets import TargetUpdates
from flowrl.rl.tensors import TensorBatch, tensors_of
from flowrl.rl.torch_state import quiet

Ids = tuple[str, ...]


class JointQ(FlatModule):
    """Q(x, a_1, …, a_K): of the global state (B, S) and all agents' actions side by side (B, D); with a target."""

    def __init__(self, inputs: int, hidden: Sequence[int], activation: str, seed: np.random.SeedSequence):
        net, rng = MLP((inputs, *hidden, 1), activation), np.random.default_rng(seed)
        for layer in net.linears:
            fill(layer, rng, 1.0 if layer is net.linears[-1] else HIDDEN_GAIN)
        self._adopt(net, None)
        self._target: JointQ | None = None

    def __call__(self, state_BS: Tensor, actions_BD: Tensor) -> Tensor:
        """Q (B,)."""
        return cast("Tensor", self.module(torch.cat((state_BS, actions_BD), -1))).squeeze(-1)

    @property
    def target(self) -> JointQ:
        """A copy as it stood when it was first asked for."""
        if self._target is None:
            other = object.__new__(JointQ)
            other._target = None
            other._adopt(copy.deepcopy(self.module), None)
            self._target = other
        return self._target

    @property
    def followed(self) -> slice:
        """The parameters that the target follows: all."""
        return self.span("all")


class Member(InTraining):
    """One agent in training: its actor, and a critic of its own that sees all agents."""

    def __init__(self, spec: PolicySpec, policy_id: str, seed: np.random.SeedSequence, max_grad_norm: float | None):
        super().__init__(spec, policy_id, seed, Descent(max_grad_norm=max_grad_norm, adam_eps=1e-8))
        self.critic_descent = Descent(max_grad_norm=max_grad_norm, adam_eps=1e-8)
        self.critic_targets = TargetUpdates()
        self.critic_seed = child_of(seed, 2)
        self.critic: JointQ | None = None

    @property
    def q(self) -> CentralQ:
        """The critic."""
        assert self.critic is not None, "a member acts before it was built"
        return self.critic

    def descend(self, group: str, loss: Tensor, rate: float, where: str) -> float:
        """One step against the loss's gradient, of the "actor" or the "critic"; its norm."""
        module: FlatModule = self.policy if group == "actor" else cast("JointQ", self.critic)
        name = "actor" if group == "actor" else "all"
        gradient = module.gradient(loss, name)
        norm = finite_norm(gradient, None, where)
        descent = self._descent if group == "actor" else self.critic_descent
        descent.step(name, module.flat[module.span(name)], gradient, norm, rate)
        return norm

    def set_target_update(self, *, every_updates: int | None = None, tau: float | None = None) -> None:
        """As InTraining's, of the actor's target and the critic's."""
        self.critic_targets.set(every_updates, tau)
        super().set_target_update(every_updates=every_updates, tau=tau)

    def update_target(self) -> None:
        """Both targets take over the weights now."""
        super().update_target()
        self.critic_targets.move(cast(Any, self.critic))

    def updated(self) -> None:
        """Counts an update, after which the targets move if they are due."""
        self._updates += 1
        self._targets.after_update(self.policy)
        self.critic_targets.after_update(cast(Any, self.critic))

    def get_state(self) -> dict[str, Any]:
        """InTraining's, and the critic's."""
        critic = cast("JointQ", self.critic)
        return {
            **super().get_state(),
            "critic": {
                "weights": critic.get_weights(),
                "target": critic.target.get_weights(),
                "target_updates": self.critic_targets.get_state(),
                "optimizer": self.critic_descent.get_state(),
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; before `build` it is kept until then."""
        super().set_state(state)
        if self.critic is None or self._policy is None:
            return
        kept = state["critic"]
        self.critic.set_weights(kept["weights"])
        self.critic.target.set_weights(kept["target"])
        self.critic_targets.set_state(kept["target_updates"])
        self.critic_descent.set_state(kept["optimizer"], {"all": len(self.critic.flat_parameters)})


class MADDPGLearner:
    """Trains one deterministic actor for each agent, each by a central critic of its own (MADDPG, arXiv:1706.02275).

    Batches are `JoinAgents(stack=False)`'. An update steps, agent by agent, its critic and then its actor. What is
    published are the acting weights of all policies one after the other, in the order of `policy_id`, as
    `MultiAgentWorker.set_weights(policy=policy_id)` takes them.

    policy: what each agent's policy is made of, of head "deterministic_actor". Its own critics have no part.
    policy_id: the policies, which are the agents by their names, in the order of `possible_agents`.
    discount: γ. critic_hidden: widths of the critics' hidden layers.
    learning_rate, critic_learning_rate: of the actors, and of the critics where it is another.

    Raises:
        ValueError: a number out of range, another head, or no agent.
    """

    default_cpus: ClassVar[int] = 0
    loss_needs: ClassVar[frozenset[str]] = COLUMNS

    def __init__(
        self,
        policy: PolicySpec,
        *,
        policy_id: Ids,
        discount: float = 0.95,
        critic_hidden: Sequence[int] = (64, 64),
        learning_rate: Rate = 1e-3,
        critic_learning_rate: Rate | None = None,
        max_grad_norm: float | None = None,
        seed: int | np.random.SeedSequence | None = None,
    ):
        if policy.head != "deterministic_actor":
            raise ValueError(f"MADDPG trains policies of head='deterministic_actor', got head={policy.head!r}")
        if not policy_id or len(set(policy_id)) != len(policy_id):
            raise ValueError(f"policy_id must name the agents, each once, got {policy_id!r}")
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"discount must be between 0 and 1, got {discount}")
        for name, rate in (("learning_rate", learning_rate), ("critic_learning_rate", critic_learning_rate)):
            if rate is not None:
                check_rate(name, rate, above_0=True)
        self.policy_id, self.discount, self._critic_hidden = tuple(policy_id), discount, tuple(critic_hidden)
        self.learning_rate, self.critic_learning_rate = learning_rate, critic_learning_rate
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self.members = [
            Member(policy, name, child_of(sequence, i), max_grad_norm) for i, name in enumerate(self.policy_id)
        ]
        self._version = self._updates = 0

    # life
    def build(self, spaces: Mapping[str, Spaces]) -> Answer[None]:
        """Makes all policies and critics, and publishes the policies' weights.

        Raises:
            KeyError: the environments lack a policy.
            ValueError: the workers do not say how the whole environment stands, or have other agents.
        """
        team = next((one.team for one in spaces.values()), None)
        if team is None:
            raise ValueError("central critics need the global states of MultiAgentWorker(joint=True)")
        if tuple(map(str, team.agents)) != self.policy_id:
            raise ValueError(f"policy_id is {self.policy_id}, and the environment's agents are {team.agents}")
        sizes = [int(np.prod(spaces[name].action.shape)) for name in self.policy_id]
        for member in self.members:
            if member.critic is None:
                spec = member.spec
                member.critic = JointQ(
                    team.state_size + sum(sizes), self._critic_hidden, spec.activation, member.critic_seed
                )
                member.critic_targets.begin(cast(Any, member.critic))
            member.build(spaces)
        return self.publish()

    def publish(self) -> Answer[None]:
        """The newest weights of all policies, and their version."""
        return Answer(None, published=self._published(), policy_version=self._version)

    def _published(self) -> Any:
        return np.concatenate([member.policy.acting_weights() for member in self.members])

    @property
    def version(self) -> int:
        """Of the weights: how many batches they were trained on."""
        return self._version

    # training
    def train(
        self, batch: Batch, *, epochs: int = 1, minibatch: int | None = None, env_steps: int = 0
    ) -> Answer[Batch | None]:
        """Trains on the valid rows, in the order in which they stand, and publishes the new weights, one version up.

        Metrics are keyed (agent, name): critic_loss, q, actor_loss, critic_grad_norm, actor_grad_norm, learning_rate,
        updates, rows, trained_steps (the rows of the team, once, in the first agent's).

        Raises:
            KeyError: a column is missing.
            FloatingPointError: a column, a loss or a gradient is not finite.
        """
        for name, number in (("epochs", epochs), ("minibatch", minibatch)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if not batch.env_steps:
            return Answer(None, {(self.policy_id[0], "trained_steps"): Sum(0)}, self._version)
        rows = tensors_of(batch, COLUMNS, self._where())
        tallies = [Tally() for _ in self.members]
        for member in self.members:
            if member.policy.statistics is not None:
                raise ValueError("normalize_obs has no part in MADDPG: critics see observations as they are")
        with quiet(None):
            for _ in range(epochs):
                for part in minibatches(rows, minibatch, None):
                    self._update(part, Progress(env_steps, self._updates), tallies)
        self._version += 1
        metrics: dict[Any, Any] = {}
        for i, (name, tally) in enumerate(zip(self.policy_id, tallies, strict=True)):
            counts = {
                "learning_rate": value_at(self.learning_rate, env_steps, "learning_rate"),
                "updates": self._updates,
                "rows": rows.rows,
                "trained_steps": Sum(rows.rows * epochs if i == 0 else 0),
            }
            metrics |= {(name, key): value for key, value in {**tally.means(), **counts}.items()}
        return Answer(None, metrics, self._version, published=self._published())

    def _update(self, batch: TensorBatch, now: Progress, tallies: Sequence[Tally]) -> None:
        rate = value_at(self.learning_rate, now.env_steps, "learning_rate")
        critic_rate = rate
        if self.critic_learning_rate is not None:
            critic_rate = value_at(self.critic_learning_rate, now.env_steps, "critic_learning_rate")
        actors = [member.policy for member in self.members]
        following = next_actions(actors, batch)
        for i, (member, tally) in enumerate(zip(self.members, tallies, strict=True)):
            alive = int(batch["alive"][:, i].sum())
            if alive:
                metrics: Metrics = {}
                target = cast("JointQ", member.critic).target
                out = central_critic_loss(member.q, target, i, batch, following, self.discount)
                metrics["critic_grad_norm"] = member.descend("critic", out.loss, critic_rate, self._where())
                acted = actor_loss(member.q, actors[i], i, batch)
                metrics["actor_grad_norm"] = member.descend("actor", acted.loss, rate, self._where())
                tally.add({**metrics, **out.metrics, **acted.metrics}, alive)
        for member in self.members:  # once all have learned from the same targets
            member.updated()
        self._updates += 1

    def set_target_update(self, *, every_updates: int | None = None, tau: float | None = None) -> None:
        """As Learner's, of all agents' targets."""
        for member in self.members:
            member.set_target_update(every_updates=every_updates, tau=tau)

    def update_target(self) -> None:
        """All targets take over the weights now."""
        for member in self.members:
            member.update_target()

    # state
    def policy_states(self) -> dict[str, dict[str, Any]]:
        """What it takes to act elsewhere, by policy: spec, spaces, flat weights and their version."""
        return {m.policy_id: {**m.policy_state(), "version": self._version} for m in self.members}

    def policy_state(self, policy_id: str | None = None) -> dict[str, Any]:
        """That of one policy, the first where none is named."""
        return self.policy_states()[self.policy_id[0] if policy_id is None else policy_id]

    @staticmethod
    def policy_from(state: Mapping[str, Any]) -> Policy:
        """The policy of a `policy_state`."""
        return InTraining.policy_from(state)

    def get_state(self) -> dict[str, Any]:
        """Arrays, numbers and strings from which a learner goes on bit for bit."""
        members = {member.policy_id: member.get_state() for member in self.members}
        return {"members": members, "version": self._version, "updates": self._updates}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; before `build` it is kept until then."""
        for member in self.members:
            member.set_state(state["members"][member.policy_id])
        self._version, self._updates = int(state["version"]), int(state["updates"])

    def _where(self) -> str:
        return f"learner of policies {', '.join(map(repr, self.policy_id))}, update {self._updates}"
