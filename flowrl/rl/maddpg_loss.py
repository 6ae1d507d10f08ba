"""The losses of MADDPG (arXiv:1706.02275), over rows of all agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from flowrl.rl.loss import LossOut
from flowrl.rl.policy import Policy
from flowrl.rl.tensors import TensorBatch

COLUMNS = frozenset(
    {
        "obs", "next_obs", "actions", "alive", "next_alive", "global_state", "next_global_state", "agent_rewards",
        "agent_terminated",
    }
)  # fmt: skip


class CentralQ(Protocol):
    """Q (B,) of global states (B, S) and the actions of all agents, side by side (B, D)."""

    def __call__(self, state_BS: Tensor, actions_BD: Tensor) -> Tensor:
        """Q (B,)."""
        ...


def next_actions(actors: Sequence[Policy], batch: TensorBatch) -> Tensor:
    """μ'_1(o'_1), …, μ'_K(o'_K) side by side (B, D), by the targets; 0 of an agent that does not go on."""
    with torch.no_grad():
        parts = [
            torch.tanh(actor.target_params(batch.tree(f"next_obs/{i}"))) * batch["next_alive"][:, i : i + 1]
            for i, actor in enumerate(actors)
        ]
    return torch.cat(parts, -1)


def taken_actions(batch: TensorBatch) -> list[Tensor]:
    """The actions (B, D_i) that were taken, agent by agent; 0 of one that was not alive."""
    return [batch[f"actions/{i}"].flatten(1) for i in range(batch["alive"].shape[1])]


def central_critic_loss(
    critic: CentralQ, target: CentralQ, agent: int, batch: TensorBatch, following_BD: Tensor, discount: float
) -> LossOut:
    """mean((Q_i(x, a_1, …, a_K) − y)²), y = r_i + γ Q'_i(x', μ'_1, …, μ'_K), over rows in which the agent is alive.

    (Equation 6.) After the agent's own termination nothing follows.
    """
    alive_B = batch["alive"][:, agent]
    with torch.no_grad():
        goes_on_B = ~batch["agent_terminated"][:, agent]
        next_q_B = target(batch["next_global_state"], following_BD)
        target_B = batch["agent_rewards"][:, agent] + discount * goes_on_B * next_q_B
    q_B = critic(batch["global_state"], torch.cat(taken_actions(batch), -1))
    loss = (q_B - target_B)[alive_B].square().mean()
    return LossOut(loss, {"critic_loss": loss.detach(), "q": q_B.detach()[alive_B].mean()})


def actor_loss(critic: CentralQ, actor: Policy, agent: int, batch: TensorBatch) -> LossOut:
    """−mean(Q_i(x, a_1, …, μ_i(o_i), …, a_K)) over rows in which the agent is alive (equation 5)."""
    actions = taken_actions(batch)
    actions[agent] = torch.tanh(actor.run(batch.tree(f"obs/{agent}")).dist.params)
    q_B = critic(batch["global_state"], torch.cat(actions, -1))
    loss = -q_B[batch["alive"][:, agent]].mean()
    return LossOut(loss, {"actor_loss": loss.detach()})
