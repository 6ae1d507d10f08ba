"""DQN's and C51's loss: numbers worked by hand, and parity of loss and gradient with an independent reference."""

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from flowrl.batch import Batch
from flowrl.rl.learner import Learner
from flowrl.rl.losses import C51Loss, DQNLoss
from flowrl.rl.policy import Policy
from flowrl.rl.q_losses import project
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.tensors import TensorBatch

SPACES = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(3))
HIDDEN, ROWS = (16, 8), 64
NOW = Progress()


def policy_of(seed: int = 0, **settings) -> Policy:
    """A policy whose target differs from it."""
    made = Policy(PolicySpec(head="q", hidden=HIDDEN, **settings), SPACES, seed=seed)
    rng = np.random.default_rng(seed)
    made.set_weights(made.get_weights() + 0.3 * rng.normal(size=len(made.flat)))
    made.target.set_weights(made.get_weights() + 0.3 * rng.normal(size=len(made.flat)))
    return made


def batch_for(seed: int = 1, weights: bool = False, masks: bool = False) -> TensorBatch:
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(size=(ROWS, 4)),
        "next_obs": rng.normal(size=(ROWS, 4)),
        "rewards": rng.normal(0, 2, size=ROWS),
        "discounts": rng.choice([0.0, 0.99, 0.97], size=ROWS),
    }
    made = {name: torch.tensor(column, dtype=torch.float32) for name, column in columns.items()}
    made["actions"] = torch.tensor(rng.integers(3, size=ROWS))
    if weights:
        made["weights"] = torch.tensor(rng.uniform(0.1, 1, size=ROWS), dtype=torch.float32)
    if masks:
        made["next_action_mask"] = torch.tensor(np.arange(3) != rng.integers(3, size=ROWS)[:, None])
    return TensorBatch(made)


def reference_q(flat: torch.Tensor, x: torch.Tensor, dueling: bool = False) -> torch.Tensor:
    """Q in float64, read from the flat vector layer by layer: tanh between, the last layer plain."""
    outputs, at = [], 0
    for out in (3, 1) if dueling else (3,):
        h, into = x.double(), 4
        for place, width in enumerate((*HIDDEN, out)):
            weight = flat[at : at + width * into].reshape(width, into)
            at += width * into
            h = (torch.tanh(h) if place else h) @ weight.T + flat[at : at + width]
            at, into = at + width, width
        outputs.append(h)
    return outputs[1] + outputs[0] - outputs[0].mean(1, keepdim=True) if dueling else outputs[0]


def reference_loss(policy: Policy, batch: TensorBatch, *, double: bool, huber: bool, dueling: bool):
    """Stable-Baselines3's formula (its `smooth_l1_loss`), with double Q-learning, weights and masks; float64."""
    flat = policy.flat.detach().double().requires_grad_()
    target_flat = policy.target.flat.double()
    next_q = reference_q(target_flat, batch["next_obs"], dueling)
    chooser = reference_q(flat.detach(), batch["next_obs"], dueling) if double else next_q
    if "next_action_mask" in batch:
        chooser = torch.where(batch["next_action_mask"], chooser, -torch.inf)
    best = next_q[torch.arange(ROWS), chooser.argmax(1)]
    target = batch["rewards"].double() + batch["discounts"].double() * best
    q = reference_q(flat, batch["obs"], dueling)[torch.arange(ROWS), batch["actions"]]
    function = torch.nn.functional.smooth_l1_loss if huber else lambda x, y, reduction: 0.5 * (x - y) ** 2
    each = function(q, target, reduction="none")
    loss = (each * batch["weights"].double() if "weights" in batch else each).mean()
    return loss, torch.autograd.grad(loss, flat)[0], (target - q).abs().detach()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("huber", [False, True])
@pytest.mark.parametrize("more", [{}, {"weights": True}, {"masks": True, "weights": True}])
@pytest.mark.parametrize("dueling", [False, True])
def test_loss_and_gradient_are_those_of_the_reference(double: bool, huber: bool, more: dict, dueling: bool):
    policy, batch = policy_of(dueling=dueling), batch_for(**more)
    out = DQNLoss(double=double, huber=huber)(policy, batch, NOW)
    loss, gradient, errors = reference_loss(policy, batch, double=double, huber=huber, dueling=dueling)
    np.testing.assert_allclose(out.loss.item(), loss.item(), atol=1e-6)
    np.testing.assert_allclose(policy.gradient(out.loss), gradient, atol=1e-6)
    np.testing.assert_allclose(out.per_row["priorities"], errors, atol=2e-6)
    np.testing.assert_allclose(out.metrics["td_error"], errors.mean(), atol=1e-6)


def linear(q: list[float], target_q: list[float]) -> Policy:
    """Q(s, ·) = s · q: one observed number, no hidden layer."""
    spaces = Spaces(Box(-9, 9, (1,), np.float32), Discrete(len(q)))
    made = Policy(PolicySpec(head="q", hidden=()), spaces, seed=0)
    made.target.set_weights(np.array([*target_q, *[0.0] * len(q)], np.float32))
    made.set_weights(np.array([*q, *[0.0] * len(q)], np.float32))
    return made


def one_row(reward: float, discount: float, action: int, **more) -> TensorBatch:
    columns = {"obs": [[1.0]], "next_obs": [[2.0]], "rewards": [reward], "discounts": [discount], "actions": [action]}
    return TensorBatch({name: torch.tensor(column) for name, column in {**columns, **more}.items()})


def test_by_hand():
    # Q(1, ·) = (1, 3), Q(2, ·) = (2, 6), Q'(2, ·) = (10, 4). Twice the own network prefers action 1, worth 4 by the
    # target; the target alone prefers action 0, worth 10.
    net = linear([1.0, 3.0], [5.0, 2.0])
    out = DQNLoss()(net, one_row(0.5, 0.5, 1), NOW)  # δ = 0.5 + 0.5·4 − 3 = −0.5
    assert out.loss.item() == pytest.approx(0.125)
    np.testing.assert_allclose(net.gradient(out.loss), [0.0, 0.5, 0.0, 0.5])  # −δ at the action taken
    out = DQNLoss(double=False)(net, one_row(0.5, 0.5, 1), NOW)  # δ = 0.5 + 0.5·10 − 3 = 2.5
    assert out.loss.item() == pytest.approx(2.0)  # |δ| − ½
    np.testing.assert_allclose(net.gradient(out.loss), [0.0, -1.0, 0.0, -1.0])  # clipped
    assert out.per_row["priorities"].tolist() == [2.5]
    assert (out.metrics["q"].item(), out.metrics["td_error"].item()) == (3.0, 2.5)
    out = DQNLoss(double=False, huber=False)(net, one_row(0.5, 0.5, 1, weights=[0.5]), NOW)
    assert out.loss.item() == pytest.approx(0.5 * 0.5 * 2.5**2)
    np.testing.assert_allclose(net.gradient(out.loss), [0.0, -1.25, 0.0, -1.25])
    assert out.per_row["priorities"].tolist() == [2.5]  # without the weight
    ended = DQNLoss(double=False)(net, one_row(0.5, 0.0, 1), NOW)  # terminated: δ = 0.5 − 3
    assert ended.per_row["priorities"].tolist() == [2.5]
    masked = one_row(0.5, 0.5, 1, next_action_mask=[[True, False]])
    assert DQNLoss()(net, masked, NOW).per_row["priorities"].tolist() == [2.5]  # action 0 is left, worth 10
    masked = one_row(0.5, 0.5, 1, next_action_mask=[[False, True]])
    assert DQNLoss(double=False)(net, masked, NOW).per_row["priorities"].tolist() == [0.5]


def naive_projection(p, reward, discount, support):
    """Algorithm 1 of arXiv:1707.06887 for one row, atom by atom."""
    least, greatest, count = support[0], support[-1], len(support)
    step, made = (greatest - least) / (count - 1), np.zeros(count)
    for j, z in enumerate(support):
        b = (min(max(reward + discount * z, least), greatest) - least) / step
        lower, upper = math.floor(b + 1e-12), math.ceil(b - 1e-12)
        if lower == upper:
            made[lower] += p[j]
        else:
            made[lower] += p[j] * (upper - b)
            made[upper] += p[j] * (b - lower)
    return made


def test_the_projection_is_the_naive_loops():
    rng, support = np.random.default_rng(0), np.linspace(-2.0, 8.0, 21)
    rewards = np.array([0.0, 1.0, -3.0, 100.0, -100.0, 0.25, 0.5, 3.3])
    discounts = np.array([1.0, 0.99, 0.9, 0.9, 0.9, 0.0, 1.0, 0.97])
    p = rng.dirichlet(np.ones(21), size=8)
    made = project(*(torch.tensor(x) for x in (p, rewards, discounts, support)))
    for row in range(8):
        np.testing.assert_allclose(
            made[row], naive_projection(p[row], rewards[row], discounts[row], support), atol=1e-9
        )
    np.testing.assert_allclose(made.sum(1), 1.0)
    np.testing.assert_allclose(made[0], p[0], atol=1e-12)  # nothing shifted
    assert made[3, -1] == pytest.approx(1.0)  # beyond the range: all at its end
    # Atoms 0, 1, 2 shifted by ½ and halved to ½, 1, 1½: each shared by its distance.
    by_hand = project(*(torch.tensor(x) for x in ([[0.2, 0.3, 0.5]], [0.5], [0.5], [0.0, 1.0, 2.0])))
    np.testing.assert_allclose(by_hand[0], [0.1, 0.1 + 0.3 + 0.25, 0.25], atol=1e-7)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("more", [{}, {"weights": True, "masks": True}])
def test_c51_is_the_cross_entropy_with_the_projected_distribution(double: bool, dueling: bool, more: dict):
    policy = policy_of(dueling=dueling, atoms=11, value_range=(-4.0, 6.0))
    batch = batch_for(**more)
    out = C51Loss(double=double)(policy, batch, NOW)
    support = np.linspace(-4.0, 6.0, 11)

    def distributions(net: Policy, obs: torch.Tensor) -> np.ndarray:
        return torch.softmax(net.run(obs).atoms.double(), -1).detach().numpy()

    p, next_p = distributions(policy, batch["obs"]), distributions(policy.target, batch["next_obs"])
    chooser = (distributions(policy, batch["next_obs"]) if double else next_p) @ support
    if "next_action_mask" in batch:
        chooser = np.where(batch["next_action_mask"], chooser, -np.inf)
    expected = []
    for row in range(ROWS):
        reward, discount = batch["rewards"][row].item(), batch["discounts"][row].item()
        m = naive_projection(next_p[row, chooser[row].argmax()], reward, discount, support)
        cross = -(m * np.log(p[row, batch["actions"][row]])).sum()
        positive = m[m > 0]
        expected.append((cross, cross + (positive * np.log(positive)).sum()))
    cross, kl = np.array(expected).T
    weights = batch["weights"].numpy() if "weights" in batch else 1.0
    np.testing.assert_allclose(out.loss.item(), (weights * cross).mean(), atol=1e-5)
    np.testing.assert_allclose(out.per_row["priorities"], kl, atol=1e-5)
    assert (out.per_row["priorities"] >= 0).all()
    # The gradient, by central differences along a direction.
    gradient = policy.gradient(out.loss).double()
    direction = torch.tensor(np.random.default_rng(2).normal(size=len(gradient)))
    before, step = policy.get_weights(), 1e-3
    values = []
    loss = C51Loss(double=False)(policy, batch, NOW)  # its target does not move with the policy
    gradient = policy.gradient(loss.loss).double()
    for sign in (1, -1):
        policy.set_weights(before + sign * step * direction.numpy())
        values.append(C51Loss(double=False)(policy, batch, NOW).loss.item())
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(gradient @ direction), rel=2e-2, abs=2e-3)


def test_a_loss_wants_its_kind_of_policy():
    with pytest.raises(ValueError, match=r"DQNLoss trains policies of PolicySpec\(head='q'\) without atoms"):
        DQNLoss()(policy_of(atoms=5, value_range=(0, 1)), batch_for(), NOW)
    with pytest.raises(ValueError, match=r"C51Loss trains policies of PolicySpec\(head='q', atoms="):
        C51Loss()(policy_of(), batch_for(), NOW)
    with pytest.raises(ValueError, match="DQNLoss trains policies of"):
        DQNLoss()(Policy(PolicySpec(), SPACES), batch_for(), NOW)
    masked = Spaces(Dict(x=SPACES.observation, action_mask=MultiBinary(3)), Discrete(3))
    columns = {name: column for name, column in batch_for().items() if "obs" not in name}
    batch = TensorBatch({**columns, "obs/x": batch_for()["obs"], "next_obs/x": batch_for()["next_obs"]})
    with pytest.raises(KeyError, match="no column 'next_action_mask'"):
        DQNLoss()(Policy(PolicySpec(head="q"), masked, seed=0), batch, NOW)


# the learner
def replayed(rows: int = 32, seed: int = 0) -> Batch:
    """What a replay shard gives."""
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(size=(rows, 4)).astype(np.float32),
        "next_obs": rng.normal(size=(rows, 4)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "discounts": np.full(rows, 0.9, np.float32),
        "actions": rng.integers(3, size=rows),
        "slots": np.arange(rows) * 7 + 2**40,
        "weights": rng.uniform(size=rows).astype(np.float32),
    }
    return Batch(columns)


def learner(seed: int = 0, loss=None, **settings) -> Learner:
    made = Learner(PolicySpec(head="q", hidden=(8,), **settings), loss or DQNLoss(), seed=seed, learning_rate=1e-2)
    made.build({"default": SPACES})
    return made


def test_the_learner_answers_the_priorities_of_the_slots_in_the_order_drawn():
    made, same, batch = learner(), learner(), replayed()
    answer = made.train(batch, minibatch=8)
    np.testing.assert_array_equal(answer.payload["slots"], batch["slots"])
    assert answer.payload["slots"].dtype == np.int64
    # What the first minibatch said, before it was trained on.
    columns = {name: torch.tensor(batch[name][:8]) for name in batch}
    expected = DQNLoss()(same.policy, TensorBatch(columns), NOW).per_row["priorities"]
    np.testing.assert_array_equal(answer.payload["priorities"][:8], expected)
    twice = same.train(batch, minibatch=8, epochs=2)
    assert len(twice.payload["slots"]) == 32  # the last epoch's
    assert (twice.payload["priorities"] != answer.payload["priorities"]).any()


def test_rows_of_no_shard_are_shuffled_and_have_no_answer():
    batch = replayed().without(["slots", "weights"])
    ordered, shuffled, whole = learner(), learner(), learner()
    assert ordered.train(batch, minibatch=8, shuffle=False).payload is None
    shuffled.train(batch, minibatch=8)
    assert (ordered.policy.get_weights() != shuffled.policy.get_weights()).any()
    in_slots = learner()
    in_slots.train(batch.with_columns(slots=np.arange(32)), minibatch=8)
    np.testing.assert_array_equal(in_slots.policy.get_weights(), ordered.policy.get_weights())
    whole.train(batch.with_columns(slots=np.arange(32)), minibatch=8, shuffle=True)
    np.testing.assert_array_equal(whole.policy.get_weights(), shuffled.policy.get_weights())


def test_microbatches_give_the_same_update_and_priorities():
    one, parts = learner(noisy=True), learner(noisy=True)
    a, b = one.train(replayed(), minibatch=16), parts.train(replayed(), minibatch=16, microbatch=4)
    np.testing.assert_allclose(one.policy.get_weights(), parts.policy.get_weights(), atol=2e-5)
    np.testing.assert_allclose(a.payload["priorities"], b.payload["priorities"], atol=2e-4)


def test_the_target_takes_over_after_exactly_so_many_updates():
    made, other = learner(), learner(seed=1)
    for each, every in ((made, 3), (other, 2)):
        each.set_target_update(every_updates=every)
    start = made.policy.get_weights()
    seen = []
    for _ in range(7):
        made.train(replayed())
        other.train(replayed())
        made.set_target_update(every_updates=3)  # said again, it changes nothing
        seen.append((made.policy.get_weights(), made.policy.target.get_weights(), other.policy.target.get_weights()))
    for updates, copied in enumerate([0, 0, 3, 3, 3, 6, 6], start=1):
        expected = start if copied == 0 else seen[copied - 1][0]
        np.testing.assert_array_equal(seen[updates - 1][1], expected)
    assert (seen[1][2] != seen[0][2]).any()  # the other one's, after two
    np.testing.assert_array_equal(seen[2][2], seen[1][2])
    many = learner()
    many.set_target_update(every_updates=3)
    many.train(replayed(28), minibatch=4)  # 7 updates in one call
    by_hand = learner()
    by_hand.set_target_update(every_updates=3)
    for place in range(6):
        by_hand.train(replayed(28).rows_at(slice(4 * place, 4 * place + 4)))
    np.testing.assert_array_equal(many.policy.target.get_weights(), by_hand.policy.target.get_weights())


def test_tau_moves_the_target_once_an_update():
    made = learner()
    made.set_target_update(tau=0.25)
    before = made.policy.target.get_weights()
    made.train(replayed())
    expected = before + 0.25 * (made.policy.get_weights() - before)
    np.testing.assert_allclose(made.policy.target.get_weights(), expected, atol=1e-7)
    made.update_target()
    np.testing.assert_array_equal(made.policy.target.get_weights(), made.policy.get_weights())
    for wrong, message in (
        ({}, "give every_updates or tau"),
        ({"tau": 1.5}, "at most 1"),
        ({"every_updates": 0}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            made.set_target_update(**wrong)


def test_buffers_are_copied_to_the_target_whatever_tau():
    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)

        def forward(self, obs):
            return self.out(self.norm(obs))

    made = Learner(PolicySpec(head="q", model=lambda obs, act: Normed()), DQNLoss(), seed=0)
    made.build({"default": SPACES})
    made.set_target_update(tau=0.1)
    made.train(replayed(), minibatch=8)
    own, target = made.policy.module.norm, made.policy.target.module.norm
    assert own.num_batches_tracked > 0
    torch.testing.assert_close(own.running_mean, target.running_mean, rtol=0, atol=0)
    assert own.num_batches_tracked == target.num_batches_tracked


@pytest.mark.parametrize("settings", [{}, {"noisy": True, "dueling": True}])
def test_a_resumed_learner_goes_on_bit_for_bit(settings: dict):
    made, resumed = learner(**settings), learner(seed=5, **settings)
    made.set_target_update(every_updates=3)
    for _ in range(2):
        made.train(replayed(), minibatch=8)
    resumed.set_state(made.get_state())
    resumed.set_target_update(every_updates=3)  # told when the actor starts, before or after its state
    for each in (made, resumed):
        each.train(replayed(seed=1), minibatch=8)
        each.train(replayed(seed=2), minibatch=8)
    np.testing.assert_array_equal(made.policy.get_weights(), resumed.policy.get_weights())
    np.testing.assert_array_equal(made.policy.target.get_weights(), resumed.policy.target.get_weights())


def test_noise_is_drawn_anew_for_each_update():
    noises = []

    class Watched(Learner):
        def update(self, batch, now):
            noises.append(self.policy.module.heads._noise.clone())
            noises.append(self.policy.target.module.heads._noise.clone())
            return super().update(batch, now)

    made = Watched(PolicySpec(head="q", noisy=True), DQNLoss(), seed=0)
    made.build({"default": SPACES})
    made.set_target_update(every_updates=2)
    made.train(replayed(), minibatch=8)
    assert len(noises) == 8
    assert all((one != other).all() for at, one in enumerate(noises) for other in noises[:at])


def test_priorities_of_another_shape_are_refused():
    class Wrong(DQNLoss):
        def __call__(self, net, batch, now):
            out = super().__call__(net, batch, now)
            return type(out)(out.loss, {}, {"priorities": out.per_row["priorities"][:3]})

    with pytest.raises(ValueError, match=r"priorities of shape \(3,\) for 32 rows"):
        learner(loss=Wrong()).train(replayed())
