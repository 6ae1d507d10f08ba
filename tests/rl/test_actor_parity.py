"""The losses of SAC and TD3, and their gradients, equal an independent reference in float64 on one fixed batch.

The reference are Stable-Baselines3's formulas (`SAC.train`, `TD3.train`), and for Discrete actions the equations of
arXiv:1910.07207, written anew over networks that are read from the flat vector.
"""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from flowrl.rl.losses import SACLoss, TD3Loss
from flowrl.rl.policy import Policy
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.tensors import TensorBatch

OBSERVATION, HIDDEN, ROWS, NUMBERS, CHOICES = Box(-np.inf, np.inf, (4,), np.float32), (16, 8), 96, 2, 5
BOX = Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
KINDS = {
    "sac": (PolicySpec(head="soft_actor", hidden=HIDDEN, initial_temperature=0.3, log_std_range=(-1.0, 0.5)), BOX),
    "sac_relu": (PolicySpec(head="soft_actor", hidden=HIDDEN, activation="relu", initial_temperature=2.0), BOX),
    "sac_discrete": (PolicySpec(head="soft_actor", hidden=HIDDEN, initial_temperature=0.3), Discrete(CHOICES)),
    "td3": (PolicySpec(head="deterministic_actor", hidden=HIDDEN, activation="relu"), BOX),
    "ddpg": (PolicySpec(head="deterministic_actor", hidden=HIDDEN, critics=1), BOX),
    "three_critics": (PolicySpec(head="deterministic_actor", hidden=HIDDEN, critics=3), BOX),
}
LOSSES = {kind: SACLoss() if kind.startswith("sac") else TD3Loss(target_noise=0.4) for kind in KINDS}
LOSSES["ddpg"] = TD3Loss(target_noise=0.0)
GROUPS = ("critic", "actor")


def policy_of(kind: str) -> Policy:
    """Its target differs from it, so that nothing can take one for the other."""
    spec, action = KINDS[kind]
    made = Policy(spec, Spaces(OBSERVATION, action), seed=0)
    rng = np.random.default_rng(0)
    other = made.get_weights() + 0.3 * rng.normal(size=len(made.flat))
    made.target.set_weights(other)
    made.set_weights(made.get_weights() + 0.3 * rng.normal(size=len(made.flat)))
    return made


def batch_for(kind: str, weights: bool) -> TensorBatch:
    rng = np.random.default_rng(1)
    drawn = {"obs": (ROWS, 4), "next_obs": (ROWS, 4), "rewards": (ROWS,)}
    drawn |= {name: (ROWS, NUMBERS) for name in ("actions", "noise", "next_noise")}
    columns = {name: torch.tensor(rng.normal(size=shape), dtype=torch.float32) for name, shape in drawn.items()}
    columns["discounts"] = torch.tensor(0.97 * (rng.random(ROWS) < 0.8), dtype=torch.float32)
    if kind == "sac_discrete":
        columns["actions"] = torch.tensor(rng.integers(0, CHOICES, ROWS))
        for name in ("action_mask", "next_action_mask"):
            mask = rng.random((ROWS, CHOICES)) < 0.7
            mask[np.arange(ROWS), rng.integers(0, CHOICES, ROWS)] = True
            columns[name] = torch.tensor(mask)
    if not kind.startswith("sac"):
        columns["actions"].clamp_(-1, 1)
    if weights:
        columns["weights"] = torch.tensor(rng.random(ROWS), dtype=torch.float32)
    return TensorBatch(columns)


def network(kind: str, flat: torch.Tensor) -> SimpleNamespace:
    """The actor, each critic and α as functions, from the flat vector."""
    spec, place = KINDS[kind][0], 0
    activation = torch.tanh if spec.activation == "tanh" else torch.relu
    discrete = kind == "sac_discrete"

    def perceptron(widths: tuple[int, ...]):
        nonlocal place
        layers = []
        for fan_in, fan_out in itertools.pairwise(widths):
            weight, place = flat[place : place + fan_in * fan_out].view(fan_out, fan_in), place + fan_in * fan_out
            layers.append((weight, flat[place : place + fan_out]))
            place += fan_out

        def run(x: torch.Tensor) -> torch.Tensor:
            for i, (weight, bias) in enumerate(layers):
                x = x @ weight.T + bias
                x = activation(x) if i < len(layers) - 1 else x
            return x

        return run

    heads = CHOICES if discrete else 2 * NUMBERS if kind.startswith("sac") else NUMBERS
    actor = perceptron((4, *HIDDEN, heads))
    sizes = (4, *HIDDEN, CHOICES) if discrete else (4 + NUMBERS, *HIDDEN, 1)
    critics = [perceptron(sizes) for _ in range(spec.critics)]
    log_alpha = flat[place] if kind.startswith("sac") else None
    assert place + (log_alpha is not None) == len(flat)
    return SimpleNamespace(actor=actor, critics=critics, log_alpha=log_alpha)


def least(net: SimpleNamespace, x: torch.Tensor) -> torch.Tensor:
    return torch.stack([critic(x) for critic in net.critics]).min(0).values


def soft_action(kind: str, net: SimpleNamespace, obs: torch.Tensor, noise: torch.Tensor):
    mean, log_std = net.actor(obs).chunk(2, 1)
    std = torch.exp(torch.clamp(log_std, *KINDS[kind][0].log_std_range))
    u = mean + std * noise
    log_prob = torch.distributions.Normal(mean, std).log_prob(u).sum(1) - torch.log(1 - torch.tanh(u) ** 2).sum(1)
    return torch.tanh(u), log_prob


def choices(net: SimpleNamespace, obs: torch.Tensor, mask: torch.Tensor):
    p = torch.softmax(net.actor(obs).masked_fill(~mask, -math.inf), 1)
    return p, torch.log(torch.where(mask, p, 1.0))


def reference(kind: str, flat: torch.Tensor, target: torch.Tensor, batch: TensorBatch):
    """Losses of critics and actor (and of α) by name; what SB3 computes under no_grad is detached."""
    b = {name: column.double() if column.is_floating_point() else column for name, column in batch.items()}
    net, old, loss = network(kind, flat), network(kind, target), LOSSES[kind]
    spec, rows = KINDS[kind][0], torch.arange(ROWS)
    detached = network(kind, flat.detach())
    alpha = None if net.log_alpha is None else torch.exp(net.log_alpha.detach())
    if kind == "sac_discrete":
        p, log_p = choices(detached, b["next_obs"], b["next_action_mask"])
        following = (p * (least(old, b["next_obs"]) - alpha * log_p)).sum(1)
        q = [critic(b["obs"])[rows, b["actions"]] for critic in net.critics]
        p, log_p = choices(net, b["obs"], b["action_mask"])
        actor = (p * (alpha * log_p - least(detached, b["obs"]))).sum(1).mean()
        entropy, wanted = -(p * log_p).sum(1).detach().mean(), 0.98 * math.log(CHOICES)
    elif kind.startswith("sac"):
        next_action, next_logp = soft_action(kind, detached, b["next_obs"], b["next_noise"])
        following = least(old, torch.cat([b["next_obs"], next_action], 1))[:, 0] - alpha * next_logp
        q = [critic(torch.cat([b["obs"], torch.tanh(b["actions"])], 1))[:, 0] for critic in net.critics]
        action, logp = soft_action(kind, net, b["obs"], b["noise"])
        actor = (alpha * logp - least(detached, torch.cat([b["obs"], action], 1))[:, 0]).mean()
        entropy, wanted = -logp.detach().mean(), -NUMBERS
    else:
        noise = torch.clamp(b["next_noise"] * loss.target_noise, -loss.noise_clip, loss.noise_clip)
        next_action = torch.clamp(torch.tanh(old.actor(b["next_obs"])) + noise, -1, 1)
        following = least(old, torch.cat([b["next_obs"], next_action], 1))[:, 0]
        q = [critic(torch.cat([b["obs"], b["actions"]], 1))[:, 0] for critic in net.critics]
        actor = -detached.critics[0](torch.cat([b["obs"], torch.tanh(net.actor(b["obs"]))], 1)).mean()
    y = (b["rewards"] + b["discounts"] * following).detach()
    weights = b.get("weights", torch.ones(ROWS).double())
    critic = sum((weights * (q_k - y) ** 2).mean() for q_k in q) * (0.5 if kind.startswith("sac") else 1.0)
    found = {"critic": critic, "actor": actor}
    if net.log_alpha is not None:
        found["temperature"] = -(net.log_alpha * (wanted - entropy)).mean()
    priorities = sum(torch.abs(q_k - y) for q_k in q).detach() / spec.critics
    return found, priorities


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients(kind, weights):
    net, batch, loss = policy_of(kind), batch_for(kind, weights), LOSSES[kind]
    flat = net.flat.double().requires_grad_()
    expected, priorities = reference(kind, flat, net.target.flat.double(), batch)
    found = {name: getattr(loss, name)(net, batch, Progress()) for name in GROUPS}
    if "temperature" in expected:
        found["temperature"] = loss.temperature(net, float(found["actor"].metrics["entropy"]))
    assert found.keys() == expected.keys()
    for name, out in found.items():
        (gradient,) = torch.autograd.grad(expected[name], flat, retain_graph=True)
        value = float(expected[name].detach())
        assert float(out.loss.detach()) == pytest.approx(value, abs=1e-6, rel=1e-6), name
        assert float(out.metrics[f"{name}_loss"]) == pytest.approx(value, abs=1e-6, rel=1e-6), name
        torch.testing.assert_close(net.gradient(out.loss).double(), gradient, atol=1e-6, rtol=1e-6)
        group = {"critic": "critics"}.get(name, name)
        assert gradient[net.span(group)].abs().max() > 1e-3  # and nothing of it is in the other groups:
        others = torch.cat([gradient[: net.span(group).start], gradient[net.span(group).stop :]])
        assert others.abs().max() == 0
    torch.testing.assert_close(found["critic"].per_row["priorities"].double(), priorities, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_called_a_loss_gives_the_sum_and_each_group_its_own_gradient(kind):
    net, batch, loss = policy_of(kind), batch_for(kind, False), LOSSES[kind]
    flat = net.flat.double().requires_grad_()
    expected, _ = reference(kind, flat, net.target.flat.double(), batch)
    (gradient,) = torch.autograd.grad(sum(expected.values()), flat)
    out = loss(net, batch, Progress())
    assert float(out.loss.detach()) == pytest.approx(float(sum(expected.values()).detach()), abs=2e-6, rel=1e-6)
    torch.testing.assert_close(net.gradient(out.loss).double(), gradient, atol=1e-6, rtol=1e-6)
