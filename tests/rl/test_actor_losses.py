"""The losses of actors with critics: numbers worked by hand, bounds, masks, and modules of one's own."""

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flowrl.rl.losses import SACLoss, TD3Loss
from flowrl.rl.policy import Policy
from flowrl.rl.soft_losses import critic_loss, squashed_sample
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.tensors import TensorBatch

OBS, BOX = Box(-1, 1, (2,), np.float32), Box(-3, 3, (1,), np.float32)


class Linear(nn.Module):
    """An actor and critics whose numbers are easy: params = scale · sum(obs), Q_k = (k + 1) · sum of all inputs."""

    def __init__(self, outputs: int, scale: float):
        super().__init__()
        self.actor, self.critics = Sums(outputs, scale), Multiples(2)


class Sums(nn.Module):
    def __init__(self, outputs: int, scale: float):
        super().__init__()
        self.scale = nn.Parameter(torch.full((outputs,), scale))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.sum(1, keepdim=True) * self.scale


class Multiples(nn.Module):
    def __init__(self, critics: int):
        super().__init__()
        self.factor = nn.Parameter(torch.arange(1.0, critics + 1))

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return self.factor[:, None] * (obs.sum(1) + actions.sum(1))


def rows(**columns) -> TensorBatch:
    given = {"obs": [[0.25, 0.25]], "next_obs": [[0.5, 0.5]], "rewards": [1.0], "discounts": [0.5], "actions": [[0.5]]}
    return TensorBatch({name: torch.tensor(value) for name, value in (given | columns).items()})


def test_td3_by_hand():
    net = Policy(PolicySpec(lambda *_: Linear(1, 1.0), head="deterministic_actor"), Spaces(OBS, BOX), seed=0)
    loss = TD3Loss(target_noise=0.2, noise_clip=0.5)
    # a' = tanh(1) + clip(0.2 · 10) = 0.761594 + 0.5, clipped to 1; Q' = min(1, 2) · (1 + 1) = 2; y = 1 + 0.5 · 2 = 2
    # Q = (1, 2) · (0.5 + 0.5); (1 − 2)² + (2 − 2)² = 1
    out = loss.critic(net, rows(next_noise=[[10.0]]), Progress())
    assert out.loss.item() == pytest.approx(1.0)
    assert out.per_row["priorities"].tolist() == pytest.approx([0.5])
    # clip(0.2 · −10) = −0.5: Q' = 1.261594, y = 1.630797; 0.630797² + 0.369203²
    assert loss.critic(net, rows(next_noise=[[-10.0]]), Progress()).loss.item() == pytest.approx(0.534216, abs=1e-5)
    # −Q_1(s, tanh(0.5)) = −(0.5 + 0.462117)
    assert loss.actor(net, rows(), Progress()).loss.item() == pytest.approx(-0.962117, abs=1e-6)
    # where the episode terminated, discounts are 0 and y is the reward: 0² + 1²
    ended = loss.critic(net, rows(next_noise=[[10.0]], discounts=[0.0]), Progress())
    assert ended.loss.item() == pytest.approx(1.0)
    assert float(ended.metrics["q_target"]) == 1.0


def test_sac_by_hand():
    spec = PolicySpec(lambda *_: Linear(2, 0.0), head="soft_actor", initial_temperature=0.5)
    net, loss = Policy(spec, Spaces(OBS, BOX), seed=0), SACLoss()
    # μ = log σ = 0, so u = 1 and a' = tanh 1 = 0.761594; log π = −½ − ½ log 2π − log(1 − a'²) = −0.551377
    # Q' = 1 + 0.761594, V' = 1.761594 + 0.5 · 0.551377 = 2.037283, y = 1 + 0.5 · V' = 2.018641
    # a = tanh(0.5) = 0.462117: Q = (1, 2) · 0.962117; ½ ((Q_1 − y)² + (Q_2 − y)²)
    batch = rows(noise=[[1.0]], next_noise=[[1.0]])
    out = loss.critic(net, batch, Progress())
    expected = 0.5 * ((0.962117 - 2.018641) ** 2 + (1.924234 - 2.018641) ** 2)
    assert out.loss.item() == pytest.approx(expected, abs=1e-5)
    # α log π − Q_1(s, a) = −0.5 · 0.551377 − (0.5 + 0.761594)
    actor = loss.actor(net, batch, Progress())
    assert actor.loss.item() == pytest.approx(-0.275688 - 1.261594, abs=1e-5)
    assert float(actor.metrics["entropy"]) == pytest.approx(0.551377, abs=1e-5)
    # log α · (H − H̄) = log 0.5 · (0.551377 + 1)
    temperature = loss.temperature(net, 0.551377)
    assert temperature.loss.item() == pytest.approx(math.log(0.5) * 1.551377, abs=1e-5)
    assert net.gradient(temperature.loss, "temperature").tolist() == pytest.approx([1.551377], abs=1e-5)


def test_target_entropies():
    discrete = Policy(PolicySpec(head="soft_actor"), Spaces(OBS, Discrete(6)), seed=0)
    box = Policy(PolicySpec(head="soft_actor"), Spaces(OBS, Box(-1, 1, (2, 3), np.float32)), seed=0)
    assert SACLoss().target_of(discrete) == pytest.approx(0.98 * math.log(6))
    assert SACLoss().target_of(box) == -6.0
    assert SACLoss(target_entropy=0.3).target_of(box) == 0.3


def test_temperature_moves_entropy_towards_its_target():
    net = Policy(PolicySpec(head="soft_actor"), Spaces(OBS, BOX), seed=0)
    # too little entropy: α must grow, so the gradient of log α is negative
    assert net.gradient(SACLoss().temperature(net, -3.0).loss, "temperature").item() == -2.0
    assert net.gradient(SACLoss().temperature(net, 3.0).loss, "temperature").item() == 4.0


def test_fixed_temperature_has_no_loss():
    net = Policy(PolicySpec(head="soft_actor"), Spaces(OBS, BOX), seed=0)
    out = SACLoss(learn_temperature=False)(net, rows(noise=[[0.1]], next_noise=[[0.2]]), Progress())
    assert net.gradient(out.loss)[net.span("temperature")].tolist() == [0.0]
    assert "alpha" not in out.metrics


def test_weights_weigh_rows():
    q_KB, target_B = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.0, 1.0])
    plain = critic_loss(q_KB, target_B, TensorBatch({}), 1.0)
    assert plain.loss.item() == (1 + 1 + 9 + 9) / 2
    weighted = critic_loss(q_KB, target_B, TensorBatch({"weights": torch.tensor([1.0, 0.5])}), 0.5)
    assert weighted.loss.item() == 0.5 * (1 + 0.5 + 9 + 4.5) / 2
    assert weighted.per_row["priorities"].tolist() == [2.0, 2.0]


@settings(deadline=None, max_examples=50)
@given(st.floats(-8, 8), st.floats(-4, 2), st.floats(-3, 3))
def test_squashed_densities_are_torchs(mean: float, log_std: float, noise: float):
    params = torch.tensor([[mean, log_std]], dtype=torch.float64, requires_grad=True)
    action, logp = squashed_sample(params, torch.tensor([[noise]], dtype=torch.float64))
    normal = torch.distributions.Normal(params[:, :1], params[:, 1:].exp())
    u = params[:, :1] + params[:, 1:].exp() * noise
    expected = normal.log_prob(u) - torch.distributions.TanhTransform().log_abs_det_jacobian(u, torch.tanh(u))
    torch.testing.assert_close(logp, expected[:, 0])
    torch.testing.assert_close(action, torch.tanh(u))
    found, wanted = (torch.autograd.grad(x.sum(), params, retain_graph=True)[0] for x in (logp, expected))
    torch.testing.assert_close(found, wanted)


def test_what_may_not_be_taken_counts_for_nothing():
    net = Policy(PolicySpec(head="soft_actor", hidden=(8,)), Spaces(OBS, Discrete(3)), seed=0)
    mask = torch.tensor([[True, True, False]])
    batch = rows(actions=[1], action_mask=mask.tolist(), next_action_mask=mask.tolist())
    before = SACLoss()(net, batch, Progress())
    with torch.no_grad():  # the last action of both critics becomes the best by far, of policy and target
        for policy in (net, net.target):
            for critic in policy.module.critics.nets:
                critic.linears[-1].bias[2] = 1e6
    after = SACLoss()(net, batch, Progress())
    assert after.loss.item() == before.loss.item()
    assert torch.isfinite(net.gradient(after.loss)).all()


@pytest.mark.parametrize("head", ["soft_actor", "deterministic_actor"])
def test_images_and_modules_of_ones_own_keep_gradients_apart(head: str):
    pixels = Box(0, 255, (8, 8, 1), np.uint8)
    net = Policy(PolicySpec(head=head, hidden=(8,), image_features=4), Spaces(pixels, BOX), seed=0)
    rng = np.random.default_rng(0)
    image = {name: rng.integers(0, 255, (5, 8, 8, 1), np.uint8) for name in ("obs", "next_obs")}
    numbers = {name: rng.normal(size=5).astype(np.float32) for name in ("rewards", "discounts")}
    drawn = {n: rng.uniform(-1, 1, (5, 1)).astype(np.float32) for n in ("actions", "noise", "next_noise")}
    batch = TensorBatch({name: torch.tensor(column) for name, column in (image | numbers | drawn).items()})
    loss = SACLoss() if head == "soft_actor" else TD3Loss()
    critic, actor = (net.gradient(part(net, batch, Progress()).loss) for part in (loss.critic, loss.actor))
    assert critic[net.span("actor")].abs().max() == 0 < critic[net.span("critics")].abs().max()
    assert actor[net.span("critics")].abs().max() == 0 < actor[net.span("actor")].abs().max()
    together = net.gradient(loss(net, batch, Progress()).loss)
    torch.testing.assert_close(together[net.span("actor")], actor[net.span("actor")])
    torch.testing.assert_close(together[net.span("critics")], critic[net.span("critics")])


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"noise_clip must be at least 0 and finite, got -0\.1"):
        TD3Loss(noise_clip=-0.1)
    with pytest.raises(ValueError, match=r"discrete_target must be above 0 and at most 1, got 1\.5"):
        SACLoss(discrete_target=1.5)
    with pytest.raises(ValueError, match="target_entropy must be finite, got nan"):
        SACLoss(target_entropy=math.nan)


def test_critics_of_another_shape_are_refused():
    class Wrong(Multiples):
        def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
            return super().forward(obs, actions)[..., None]

    def make(*_) -> nn.Module:
        made = Linear(1, 1.0)
        made.critics = Wrong(2)
        return made

    net = Policy(PolicySpec(make, head="deterministic_actor"), Spaces(OBS, BOX), seed=0)
    with pytest.raises(ValueError, match=r"`critics` must give values \(K, 1\), got \(2, 1, 1\)"):
        TD3Loss().critic(net, rows(next_noise=[[0.0]]), Progress())
