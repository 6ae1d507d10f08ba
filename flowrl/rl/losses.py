"""Losses: what a learner minimizes, as functions of a policy, a batch and the progress of training."""

from __future__ import annotations

from flowrl.rl.actor_critic_loss import ActorCriticLoss
from flowrl.rl.deterministic_losses import TD3Loss
from flowrl.rl.loss import Loss, LossFunction, LossOut
from flowrl.rl.mixed_loss import MixedLoss, Term
from flowrl.rl.ppo_loss import PPOLoss, standardized
from flowrl.rl.q_losses import C51Loss, DQNLoss
from flowrl.rl.recurrent_q_loss import R2D2Loss
from flowrl.rl.soft_losses import SACLoss
from flowrl.rl.vtrace_losses import APPOLoss, VTraceLoss

__all__ = [
    "APPOLoss",
    "ActorCriticLoss",
    "C51Loss",
    "DQNLoss",
    "Loss",
    "LossFunction",
    "LossOut",
    "MixedLoss",
    "PPOLoss",
    "R2D2Loss",
    "SACLoss",
    "TD3Loss",
    "Term",
    "VTraceLoss",
    "standardized",
]
