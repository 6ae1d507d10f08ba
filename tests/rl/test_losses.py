"""PPO's loss against plain formulas in float64, its gradients, its corner cases; the categorical distribution."""

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from flowrl.rl.distributions import Categorical, kl_estimate
from flowrl.rl.losses import PPOLoss, standardized
from flowrl.rl.policy import Policy
from flowrl.rl.schedules import Linear
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.tensors import TensorBatch

SPACES = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(3))
NOW = Progress()


def policy(seed: int = 0, **spec) -> Policy:
    made = Policy(PolicySpec(**spec), SPACES, seed=seed)
    rng = np.random.default_rng(seed)  # the actor's head starts near zero; parity should see ratios that clip
    made.set_weights(made.get_weights() + 0.3 * rng.normal(size=len(made.flat)))
    return made


def batch_of(rows: int = 64, seed: int = 1) -> TensorBatch:
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(size=(rows, 4)),
        "logp": -rng.gamma(2.0, 0.5, size=rows),
        "advantages": rng.normal(1.0, 2.0, size=rows),
        "returns": rng.normal(size=rows),
        "values": rng.normal(size=rows),
    }
    tensors = {name: torch.tensor(column, dtype=torch.float32) for name, column in columns.items()}
    return TensorBatch({**tensors, "actions": torch.tensor(rng.integers(3, size=rows))})


def reference(flat: torch.Tensor, batch: TensorBatch, loss: PPOLoss, hidden=(64, 64), activation=torch.tanh):
    """Stable-Baselines3's formulas (ppo.py, `train`) over networks read from the flat vector, in float64."""
    place, outputs = 0, []
    for head in (3, 1):
        x = batch["obs"].double()
        sizes = (4, *hidden, head)
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            weight = flat[place : place + fan_in * fan_out].view(fan_out, fan_in)
            place += fan_in * fan_out
            x = x @ weight.T + flat[place : place + fan_out]
            place += fan_out
            x = activation(x) if layer < len(hidden) else x
        outputs.append(x)
    assert place == len(flat)
    distribution = torch.distributions.Categorical(logits=outputs[0])
    values = outputs[1].flatten()
    advantages = batch["advantages"].double()
    if loss.standardize_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = torch.exp(distribution.log_prob(batch["actions"]) - batch["logp"].double())
    policy_loss = -torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - loss.clip, 1 + loss.clip)).mean()
    if loss.clip_value is not None:
        old_values = batch["values"].double()
        values = old_values + torch.clamp(values - old_values, -loss.clip_value, loss.clip_value)
    value_loss = nn.functional.mse_loss(batch["returns"].double(), values)
    entropy_loss = -distribution.entropy().mean()
    log_ratio = torch.log(ratio)
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": -entropy_loss,
        "kl": ((ratio - 1) - log_ratio).mean(),
        "clip_fraction": (torch.abs(ratio - 1) > loss.clip).double().mean(),
    }
    return policy_loss + loss.entropy_cost * entropy_loss + loss.value_cost * value_loss, metrics


@pytest.mark.parametrize(
    "loss",
    [
        PPOLoss(),
        PPOLoss(clip=0.1, value_cost=0.7, entropy_cost=0.02),
        PPOLoss(value_cost=0.0, entropy_cost=0.5, standardize_advantages=False),
        PPOLoss(entropy_cost=0.02, clip_value=0.5),
    ],
)
@pytest.mark.parametrize("spec", [{}, {"hidden": (16,), "activation": "relu"}, {"hidden": ()}])
def test_loss_gradient_and_metrics_equal_stable_baselines(loss, spec):
    net, batch = policy(**spec), batch_of()
    flat = net.flat.double().requires_grad_()
    expected, metrics = reference(
        flat, batch, loss, spec.get("hidden", (64, 64)), torch.relu if spec.get("activation") else torch.tanh
    )
    (gradient,) = torch.autograd.grad(expected, flat)
    out = loss(net, batch, NOW)
    assert float(out.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6, rel=1e-6)
    found = net.gradient(out.loss)
    assert 0.05 < float(metrics["clip_fraction"]) < 0.99
    torch.testing.assert_close(found.double(), gradient, atol=1e-6, rtol=1e-5)
    for name, value in metrics.items():
        assert float(out.metrics[name]) == pytest.approx(float(value.detach()), abs=1e-6, rel=1e-5), name
        assert not out.metrics[name].requires_grad


class Outputs(nn.Module):
    """Gives its own parameters as logits and values, so that a loss can be worked by hand."""

    def __init__(self, logits, values):
        super().__init__()
        self.logits, self.values = nn.Parameter(torch.tensor(logits)), nn.Parameter(torch.tensor(values))

    def forward(self, obs):
        return self.logits, self.values


def test_golden_numbers_of_two_rows():
    # Three equal logits: log p = −log 3, H = log 3.
    # Row 0: old p = 1/3, so r = 1. Row 1: old p = 1/6, so r = 2, clipped to 1.2.
    spec = PolicySpec(model=lambda o, a: Outputs([[0.0] * 3] * 2, [1.0, 3.0]))
    net = Policy(spec, SPACES)
    batch = TensorBatch(
        {
            "obs": torch.zeros(2, 4),
            "actions": torch.tensor([0, 2]),
            "logp": torch.tensor([math.log(1 / 3), math.log(1 / 6)]),
            "advantages": torch.tensor([1.0, 2.0]),
            "returns": torch.tensor([0.0, 1.0]),
        }
    )
    out = PPOLoss(entropy_cost=0.1, standardize_advantages=False)(net, batch, NOW)
    # −(1·1 + 1.2·2)/2 = −1.7; squared errors 1 and 4, mean 2.5, half of it 1.25
    assert float(out.metrics["policy_loss"]) == pytest.approx(-1.7, abs=1e-6)
    assert float(out.metrics["value_loss"]) == pytest.approx(2.5)
    assert float(out.loss.detach()) == pytest.approx(-1.7 + 1.25 - 0.1 * math.log(3), abs=1e-6)
    assert float(out.metrics["kl"]) == pytest.approx((0 + 1 - math.log(2)) / 2, abs=1e-6)
    assert float(out.metrics["clip_fraction"]) == 0.5
    # Only row 0 moves the policy: −r·A/2·(1[j = a] − 1/3); the values −> (V − return)·2·0.5/2
    expected = [-1 / 3, 1 / 6, 1 / 6, 0, 0, 0, 0.5, 1.0]
    np.testing.assert_allclose(net.gradient(out.loss), expected, atol=1e-6)


def test_clipped_values_by_hand():
    outputs = Outputs([[0.0] * 3] * 3, [1.0, 1.0, -2.0])
    net = Policy(PolicySpec(model=lambda observation, action: outputs), SPACES)
    columns = {
        "obs": torch.zeros(3, 4),
        "actions": torch.zeros(3, dtype=torch.long),
        "logp": torch.full((3,), -math.log(3)),
        "advantages": torch.zeros(3),
        "returns": torch.tensor([2.0, 0.0, 0.0]),
        "values": torch.tensor([0.9, 0.0, 0.0]),
    }
    out = PPOLoss(value_cost=1.0, clip_value=0.5)(net, TensorBatch(columns), NOW)
    # V = 1 may move by 0.1; 1 stops at 0.5 and −2 at −0.5: errors −1, 0.5, −0.5, gradient in the first row only
    assert float(out.metrics["value_loss"]) == pytest.approx((1 + 0.25 + 0.25) / 3)
    np.testing.assert_allclose(net.gradient(out.loss)[9:], [-2 / 3, 0, 0], atol=1e-6)


def test_schedules_are_functions_of_the_global_steps():
    net, batch = policy(), batch_of()
    scheduled = PPOLoss(Linear(0.2, 0.0, 1000), 0.5, Linear(0.04, 0.0, 500), clip_value=lambda steps: 1 / (1 + steps))
    assert scheduled.needs == PPOLoss().needs | {"values"}
    for steps, plain in (
        (0, PPOLoss(0.2, 0.5, 0.04, clip_value=1.0)),
        (250, PPOLoss(0.15, 0.5, 0.02, clip_value=1 / 251)),
        (999, PPOLoss(0.0002, 0.5, 0.0, clip_value=1 / 1000)),
    ):
        found, expected = scheduled(net, batch, Progress(env_steps=steps)), plain(net, batch, NOW)
        torch.testing.assert_close(net.gradient(found.loss), net.gradient(expected.loss))
        now = {name: found.metrics[name] for name in ("clip", "entropy_cost", "clip_value")}
        wanted = {"clip": plain.clip, "entropy_cost": plain.entropy_cost, "clip_value": plain.clip_value}
        assert now == pytest.approx(wanted, abs=1e-12)
    assert "clip" not in expected.metrics


def test_parts_of_a_minibatch_are_scaled_like_the_whole():
    net, batch = policy(), batch_of(50)
    whole = PPOLoss(entropy_cost=0.01)(net, batch, NOW)
    total = sum(PPOLoss(entropy_cost=0.01)(net, part, NOW).loss * (part.rows / batch.rows) for part in batch.parts(17))
    torch.testing.assert_close(total, whole.loss)
    torch.testing.assert_close(net.gradient(total), net.gradient(whole.loss))
    apart = next(batch.minibatches(17, torch.arange(50)))
    assert apart.whole is apart
    assert next(batch.parts(17)).whole is batch


def test_one_row_is_not_scaled_and_equal_advantages_become_zero():
    assert standardized(torch.tensor([3.0])).tolist() == [3.0]
    for value in (0.1, 100.1, -12345.67):
        assert standardized(torch.full((513,), value)).abs().max() == 0
    x = standardized(torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(x, torch.tensor([-1.0, 0.0, 1.0]))
    one = batch_of(rows=1)
    net = policy()
    assert torch.isfinite(net.gradient(PPOLoss()(net, one, NOW).loss)).all()


def test_needs_and_arguments():
    assert PPOLoss().needs == {"obs", "actions", "logp", "advantages", "returns"}
    assert PPOLoss(clip_value=0.2).needs == PPOLoss().needs | {"values"}
    assert repr(PPOLoss()) == (
        "PPOLoss(clip=0.2, value_cost=0.5, entropy_cost=0.0, standardize_advantages=True, clip_value=None)"
    )
    with pytest.raises(ValueError, match="clip must be above 0 and finite, got 0"):
        PPOLoss(clip=0)
    with pytest.raises(ValueError, match="entropy_cost must be at least 0 and finite, got -1"):
        PPOLoss(entropy_cost=-1)
    with pytest.raises(ValueError, match=r"clip_value must be above 0 and finite, got -0\.1"):
        PPOLoss(clip_value=-0.1)


def test_categorical_equals_torch_distributions():
    logits = torch.randn(50, 5, generator=torch.Generator().manual_seed(0)) * 4
    actions = torch.arange(50, dtype=torch.int32) % 5
    ours, theirs = Categorical(logits), torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(ours.logp(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert ours.mode().tolist() == logits.argmax(1).tolist()


def test_the_gradients_written_out_equal_finite_differences():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64).requires_grad_()
    actions = torch.tensor([0, 1, 2, 3, 0, 0])
    assert torch.autograd.gradcheck(lambda z: Categorical(z).logp_and_entropy(actions), logits)
    assert torch.autograd.gradcheck(lambda z: Categorical(z).logp(actions), logits)
    assert torch.autograd.gradcheck(lambda z: Categorical(z).entropy(), logits)


def test_extreme_logits_give_finite_gradients():
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [0.0, 200.0, -200.0]], requires_grad=True)
    logp, entropy = Categorical(logits).logp_and_entropy(torch.tensor([2, 1]))
    (gradient,) = torch.autograd.grad((logp + entropy).sum(), logits)
    assert torch.isfinite(gradient).all()
    assert gradient[0, 1] == 0
    assert entropy[1] == 0
    drawn = {int(Categorical(logits[:1]).sample(torch.Generator().manual_seed(n))) for n in range(40)}
    assert drawn == {0, 2}


def test_sampling_follows_the_probabilities():
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).expand(30_000, 3)
    counts = torch.bincount(Categorical(logits).sample(torch.Generator().manual_seed(0)), minlength=3) / 30_000
    torch.testing.assert_close(counts, torch.tensor([0.2, 0.5, 0.3]), atol=0.01, rtol=0)


def test_the_kl_estimate_is_never_negative_and_zero_at_one():
    log_ratio = torch.linspace(-3, 3, 101)
    assert (kl_estimate(log_ratio) >= 0).all()
    assert kl_estimate(torch.zeros(1)) == 0
    assert float(kl_estimate(torch.tensor([math.log(2)]))) == pytest.approx(1 - math.log(2))
