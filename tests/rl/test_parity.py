"""PPO's loss and gradient on one fixed batch equal an independent reference in float64, for every kind of action.

The reference are Stable-Baselines3's formulas (`PPO.train`), written anew over a network that is read from the flat
vector; `benchmarks/parity.py` compares with Stable-Baselines3 itself.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from flowrl.rl.losses import PPOLoss
from flowrl.rl.policy import Policy
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.tensors import TensorBatch

OBSERVATION = Box(-np.inf, np.inf, (4,), np.float32)
HIDDEN, ROWS = (16, 8), 96
SPACES = {
    "discrete": (Discrete(5), False),
    "multi_discrete": (MultiDiscrete([3, 2, 4]), False),
    "multi_binary": (MultiBinary(3), False),
    "gaussian": (Box(-2.0, 1.0, (3,), np.float32), False),
    "squashed": (Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)), True),
}
LOSSES = [
    PPOLoss(),
    PPOLoss(clip=0.1, value_cost=0.7, entropy_cost=0.02),
    PPOLoss(entropy_cost=0.05, clip_value=0.4),
    PPOLoss(value_cost=1.0, standardize_advantages=False, clip_value=0.2),
]


def policy_of(kind: str) -> Policy:
    action, squash = SPACES[kind]
    made = Policy(PolicySpec(hidden=HIDDEN, squash=squash), Spaces(OBSERVATION, action), seed=0)
    noise = np.random.default_rng(0).normal(size=len(made.flat))  # the actor's head starts near zero
    made.set_weights(made.get_weights() + 0.3 * noise)
    return made


def batch_for(kind: str) -> TensorBatch:
    """Drawn numbers; behaviour log-probabilities off those of the policy, so that some ratios are clipped."""
    rng, action = np.random.default_rng(1), SPACES[kind][0]
    action.seed(2)
    actions = torch.tensor(np.stack([np.asarray(action.sample()) for _ in range(ROWS)]))
    drawn = {"obs": rng.normal(size=(ROWS, 4)), "advantages": rng.normal(1, 2, size=ROWS)}
    drawn |= {name: rng.normal(size=ROWS) for name in ("returns", "values")}
    columns = {name: torch.tensor(column, dtype=torch.float32) for name, column in drawn.items()}
    params, _ = forward(kind, policy_of(kind).flat.double(), columns["obs"].double())
    if isinstance(action, Box):  # neither clipped nor squashed
        mean, log_std = params.chunk(2, 1)
        actions = (mean + log_std.exp() * torch.tensor(rng.normal(size=mean.shape))).float()
    columns["actions"] = actions
    logp, _ = logp_and_entropy(kind, params, actions)
    columns["logp"] = (logp + torch.tensor(rng.normal(0, 0.15, size=ROWS))).float()
    return TensorBatch(columns)


def forward(kind: str, flat: torch.Tensor, obs: torch.Tensor):
    """Head outputs (with log standard deviations behind, if any) and values, from the flat vector."""
    place, outputs = 0, []
    heads = {"discrete": 5, "multi_discrete": 9, "multi_binary": 3, "gaussian": 3, "squashed": 2}
    boxes = heads[kind] if kind in ("gaussian", "squashed") else 0
    for head, log_stds in ((heads[kind], boxes), (1, 0)):
        x = obs
        for fan_in, fan_out in itertools.pairwise((4, *HIDDEN, head)):
            weight, place = flat[place : place + fan_in * fan_out].view(fan_out, fan_in), place + fan_in * fan_out
            x, place = x @ weight.T + flat[place : place + fan_out], place + fan_out
            x = torch.tanh(x) if fan_out != head else x
        if log_stds:
            x, place = torch.cat([x, flat[place : place + log_stds].expand(len(x), -1)], 1), place + log_stds
        outputs.append(x)
    assert place == len(flat)
    return outputs[0], outputs[1].flatten()


def logp_and_entropy(kind: str, params: torch.Tensor, actions: torch.Tensor):
    """By the textbook."""
    if kind in ("discrete", "multi_discrete"):
        logp, entropy = 0.0, 0.0
        columns = actions.long().view(len(params), -1).unbind(1)
        for logits, action in zip(params.split([5] if kind == "discrete" else [3, 2, 4], 1), columns, strict=True):
            log_p = logits - torch.log(torch.exp(logits).sum(1, keepdim=True))
            logp = logp + log_p[torch.arange(len(log_p)), action]
            entropy = entropy - (torch.exp(log_p) * log_p).sum(1)
        return logp, entropy
    if kind == "multi_binary":
        p = 1 / (1 + torch.exp(-params))
        bits = actions.double()
        logp = torch.log(bits * p + (1 - bits) * (1 - p)).sum(1)
        return logp, -(p * torch.log(p) + (1 - p) * torch.log(1 - p)).sum(1)
    mean, log_std = params.chunk(2, 1)
    u = actions.double()
    densities = torch.exp(-((u - mean) ** 2) / (2 * torch.exp(log_std) ** 2)) / (math.sqrt(2 * math.pi) * log_std.exp())
    if kind == "gaussian":
        return torch.log(densities).sum(1), (0.5 * math.log(2 * math.pi * math.e) + log_std).sum(1)
    half_width = torch.tensor([1.5, 2.5]).double()
    logp = (torch.log(densities) - torch.log((1 - torch.tanh(u) ** 2) * half_width)).sum(1)
    return logp, -logp


def reference(kind: str, flat: torch.Tensor, batch: TensorBatch, loss: PPOLoss):
    """Loss and metrics."""
    columns = {name: column.double() for name, column in batch.items()}
    params, values = forward(kind, flat, columns["obs"])
    logp, entropy = logp_and_entropy(kind, params, batch["actions"])
    advantages = columns["advantages"]
    if loss.standardize_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = torch.exp(logp - columns["logp"])
    policy_loss = -torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - loss.clip, 1 + loss.clip)).mean()
    if loss.clip_value is not None:
        old = columns["values"]
        values = old + torch.clamp(values - old, -loss.clip_value, loss.clip_value)
    value_loss = ((columns["returns"] - values) ** 2).mean()
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy.mean(),
        "kl": ((ratio - 1) - torch.log(ratio)).mean(),
        "clip_fraction": (torch.abs(ratio - 1) > loss.clip).double().mean(),
    }
    return policy_loss + loss.value_cost * value_loss - loss.entropy_cost * entropy.mean(), metrics


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", SPACES)
def test_loss_gradient_and_metrics(kind, loss):
    net, batch = policy_of(kind), batch_for(kind)
    flat = net.flat.double().requires_grad_()
    expected, metrics = reference(kind, flat, batch, loss)
    (gradient,) = torch.autograd.grad(expected, flat)
    out = loss(net, batch, Progress())
    assert float(out.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6, rel=1e-6)
    torch.testing.assert_close(net.gradient(out.loss).double(), gradient, atol=1e-6, rtol=1e-6)
    assert 0.05 < float(metrics["clip_fraction"]) < 0.9
    for name, value in metrics.items():
        assert float(out.metrics[name]) == pytest.approx(float(value.detach()), abs=1e-6, rel=1e-6), name
