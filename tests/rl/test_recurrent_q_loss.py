"""R2D2's loss: n-step targets within sequences, burn-in, value rescaling, priorities a sequence."""

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from flowrl.batch import Batch
from flowrl.rl.learner import Learner
from flowrl.rl.losses import R2D2Loss
from flowrl.rl.policy import Policy
from flowrl.rl.recurrent_q_loss import n_step_returns, seen_by
from flowrl.rl.rescaling import rescaled, unscaled
from flowrl.rl.returns import n_step
from flowrl.rl.sequences import SequenceBatch, sequences_of
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.worker import RolloutWorker

SPACES = Spaces(Box(-np.inf, np.inf, (3,), np.float32), Discrete(2))
GAMMA, NOW = 0.9, Progress()


def policy_of(cell: str = "lstm", **settings) -> Policy:
    spec = PolicySpec(head="q", hidden=(8,), recurrent=cell, recurrent_size=6, **settings)
    made = Policy(spec, SPACES, seed=0)
    rng = np.random.default_rng(0)
    made.set_weights(made.get_weights() + 0.2 * rng.normal(size=len(made.flat)))
    made.target.set_weights(made.get_weights() + 0.2 * rng.normal(size=len(made.flat)))
    return made


def episodes(policy: Policy, steps: int = 9, envs: int = 3, *, phantom: bool, seed: int = 0, **more) -> Batch:
    """Sequences over several episodes; `phantom`: the last observation of an episode has a row that only resets."""
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((steps, envs), bool), np.zeros((steps, envs), bool)
    terminated[2, 0] = truncated[4, 1] = truncated[steps - 1, 0] = True
    obs = rng.normal(size=(steps + 1, envs, 3)).astype(np.float32)
    following = obs[1:].copy()
    valid, starts = np.ones((steps, envs), bool), np.zeros((steps, envs), bool)
    for t, n in zip(*np.nonzero(terminated | truncated), strict=True):
        if phantom and t + 1 < steps:
            valid[t + 1, n] = False
        elif not phantom:
            following[t, n] = rng.normal(size=3)  # the last observation, which no row shows
        first = t + 1 + phantom
        if first < steps:
            starts[first, n] = True
    state = {f"state/{name}": rng.normal(size=(steps, envs, *shape)) for name, shape in policy.state_shapes.items()}
    columns = {
        "obs": obs[:-1], "next_obs": following, "valid": valid, "starts": starts, **state,
        "terminated": terminated, "truncated": truncated,
        "actions": rng.integers(2, size=(steps, envs)),
        "rewards": rng.normal(size=(steps, envs)).astype(np.float32),
        "discounts": np.where(terminated, 0, GAMMA).astype(np.float32), **more,
    }  # fmt: skip
    return Batch(columns, time_major=True)


def tensors(policy: Policy, batch: Batch) -> SequenceBatch:
    needs = R2D2Loss().needs | ({"weights"} if "weights" in batch else set())
    return sequences_of(batch, needs, policy.state_shapes, "a test")


def by_loops(policy: Policy, batch: Batch, loss: R2D2Loss) -> tuple[float, list[float], set[tuple[int, int]]]:
    """The loss, the priorities and the rows that count: a network pass a state, a loop a row."""
    steps, envs = batch.leading
    state = {name: batch[f"state/{name}"][0].astype(np.float32) for name in policy.state_shapes}
    eps = loss.rescale

    def q_after(net: Policy, n: int, t: int, obs: np.ndarray) -> np.ndarray:
        """Q of an observation that is seen after the rows before t of its episode."""
        seen = [*batch["obs"][:t, n], obs]
        starts = [*batch["starts"][:t, n], t < steps and batch["starts"][t, n] and obs is batch_obs(t, n)]
        with torch.no_grad():
            first = {name: torch.tensor(h[n : n + 1]) for name, h in state.items()}
            out = net.run_sequence(
                torch.tensor(np.array(seen, np.float32))[:, None], None, first, torch.tensor(starts)[:, None]
            )
        return out.dist.params[-1, 0].double().numpy()

    shown = {(t, n): batch["obs"][t, n] for t in range(steps) for n in range(envs)}

    def batch_obs(t: int, n: int) -> np.ndarray:
        return shown[t, n]

    def value(n: int, t: int, obs: np.ndarray) -> float:
        chooser = q_after(policy if loss.double else policy.target, n, t, obs)
        q = q_after(policy.target, n, t, obs)[chooser.argmax()]
        return q if eps is None else float(unscaled(torch.tensor(q), eps))

    squares, priorities, rows = [], [], set()
    done = batch["terminated"] | batch["truncated"]
    hidden = {
        (t, n)
        for t, n in zip(*np.nonzero(batch["truncated"]), strict=True)
        if t + 1 < steps and batch["starts"][t + 1, n]
    }
    for n in range(envs):
        sizes = []
        for t in range(loss.burn_in, steps):
            if not batch.valid[t, n] or (t, n) in hidden:
                continue
            total, factor, at = 0.0, 1.0, t
            for _ in range(loss.n_step):
                if (at, n) in hidden:
                    total += factor * value(n, at, batch_obs(at, n))
                    break
                total += factor * batch["rewards"][at, n]
                factor *= batch["discounts"][at, n]
                if done[at, n] or at == steps - 1:
                    total += factor * value(n, at + 1, batch["next_obs"][at, n]) if factor else 0.0
                    break
                at += 1
            else:
                total += factor * value(n, at, batch_obs(at, n))
            target = total if eps is None else float(rescaled(torch.tensor(total), eps))
            error = target - q_after(policy, n, t, batch_obs(t, n))[batch["actions"][t, n]]
            weight = batch["weights"][t, n] if "weights" in batch else 1.0
            squares.append(weight * 0.5 * error**2)
            sizes.append(abs(error))
            rows.add((t, n))
        priorities.append(loss.max_share * max(sizes) + (1 - loss.max_share) * np.mean(sizes))
    return float(np.mean(squares)), priorities, rows


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("phantom", [True, False])
@pytest.mark.parametrize(
    "loss",
    [
        R2D2Loss(n_step=1, rescale=None),
        R2D2Loss(burn_in=2, n_step=3),
        R2D2Loss(burn_in=3, n_step=20, double=False, max_share=0.5),
    ],
)
def test_it_is_what_loops_over_rows_give(cell: str, phantom: bool, loss: R2D2Loss):
    policy = policy_of(cell)
    weights = np.broadcast_to(np.array([0.2, 1.0, 0.7], np.float32), (9, 3)).copy()
    batch = episodes(policy, phantom=phantom, weights=weights)
    out = loss(policy, tensors(policy, batch), NOW)
    expected, priorities, rows = by_loops(policy, batch, loss)
    assert out.loss.item() == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(out.per_row["priorities"], priorities, atol=1e-5)
    # The truncated row in the middle has its last observation only where a row shows it.
    assert ((4, 1) in rows) == phantom


def test_the_burn_in_gives_a_state_and_no_gradient():
    policy = policy_of()
    batch = episodes(policy, phantom=True)
    burnt = R2D2Loss(burn_in=4, n_step=2)(policy, tensors(policy, batch), NOW)
    gradient = policy.gradient(burnt.loss)
    whole = policy.gradient(R2D2Loss(burn_in=0, n_step=2)(policy, tensors(policy, batch), NOW).loss)
    assert not torch.allclose(gradient, whole, atol=1e-4)
    moved = {**dict(batch), "obs": batch["obs"].copy(), "actions": batch["actions"].copy()}
    moved["actions"][:4] = 1 - moved["actions"][:4]
    moved["rewards"] = batch["rewards"].copy()
    moved["rewards"][:4] += 100.0
    other = R2D2Loss(burn_in=4, n_step=2)(policy, tensors(policy, Batch(moved, time_major=True)), NOW)
    torch.testing.assert_close(other.loss, burnt.loss, rtol=0, atol=0)
    torch.testing.assert_close(other.per_row["priorities"], burnt.per_row["priorities"], rtol=0, atol=0)
    # The gradient is that of the loss with the state behind the burn-in held: along a direction, by differences.
    rows = tensors(policy, batch)
    with torch.no_grad():
        held = policy.run_sequence(rows.steps["obs"][:4], None, dict(rows.initial), rows.steps["starts"][:4]).state
    flat, step = policy.get_weights(), 1e-2
    direction = np.random.default_rng(1).normal(size=len(flat)) / math.sqrt(len(flat))
    target = R2D2Loss(burn_in=4, n_step=2, double=False)  # does not move with the policy
    gradient = policy.gradient(target(policy, tensors(policy, batch), NOW).loss).double().numpy()
    seen = seen_by(rows)
    with torch.no_grad():
        target_q = policy.target.run_sequence(seen.obs, None, dict(rows.initial), seen.starts_SN).dist.params[4:]
        returns = n_step_returns(
            unscaled(target_q.amax(-1), 1e-3), rows.steps["rewards"][4:], rows.steps["discounts"][4:],
            seen.cut_TN[4:], seen.alone_TN[4:], 2,
        )  # fmt: skip
    losses = []
    for sign in (1, -1):
        policy.set_weights(flat + sign * step * direction)
        with torch.no_grad():
            q = policy.run_sequence(rows.steps["obs"][4:], None, held, rows.steps["starts"][4:]).dist.params
        taken = q.gather(-1, rows.steps["actions"][4:].unsqueeze(-1)).squeeze(-1)
        squares = (rescaled(returns, 1e-3) - taken)[rows.valid_TN[4:]].double().square()
        losses.append(0.5 * squares.mean().item())
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(gradient @ direction, rel=1e-2, abs=1e-4)


def test_padding_behind_a_sequence_changes_nothing():
    policy = policy_of()
    batch = episodes(policy, steps=5, phantom=False)
    padded = {}
    for name, column in batch.items():
        filler = np.full((3, *column.shape[1:]), 7).astype(column.dtype)
        padded[name] = np.concatenate((column, np.zeros_like(filler) if column.dtype == bool else filler))
    padded["actions"][5:] = 0
    one = R2D2Loss(burn_in=1)(policy, tensors(policy, batch), NOW)
    other = R2D2Loss(burn_in=1)(policy, tensors(policy, Batch(padded, time_major=True)), NOW)
    torch.testing.assert_close(one.loss, other.loss)
    torch.testing.assert_close(one.per_row["priorities"], other.per_row["priorities"])


def test_returns_by_hand():
    # Two steps a sum, γ = ½; the second row terminates, the fourth ends the sequence.
    values = torch.tensor([[9.0], [8.0], [7.0], [6.0], [4.0]])
    rewards, discounts = torch.tensor([[1.0], [2.0], [3.0], [5.0]]), torch.tensor([[0.5], [0.0], [0.5], [0.5]])
    cut = torch.tensor([[False], [True], [False], [True]])
    none = torch.zeros_like(cut)
    made = n_step_returns(values, rewards, discounts, cut, none, 2)
    assert made.flatten().tolist() == [1 + 1.0, 2.0, 3 + 2.5 + 1.0, 5 + 2.0]
    assert n_step_returns(values, rewards, discounts, cut, none, 1).flatten().tolist() == [5.0, 2.0, 6.0, 7.0]
    alone = torch.tensor([[False], [False], [False], [True]])
    assert n_step_returns(values, rewards, discounts, cut, alone, 2).flatten().tolist()[2:] == [3 + 3.0, 6.0]


def test_rescaling_by_hand():
    x = torch.tensor([0.0, 3.0, -3.0, 99.0])
    torch.testing.assert_close(rescaled(x, 0.001), torch.tensor([0.0, 1.003, -1.003, 9.099]))
    torch.testing.assert_close(unscaled(torch.tensor([0.0, 1.003, -1.003, 9.099]), 0.001), x, atol=1e-4, rtol=1e-5)


@given(st.floats(-1e4, 1e4), st.sampled_from([1e-3, 1e-2, 0.5]))
def test_rescaling_is_undone(x: float, eps: float):
    there = rescaled(torch.tensor(x, dtype=torch.float64), eps)
    assert unscaled(there, eps).item() == pytest.approx(x, rel=1e-6, abs=1e-6)
    expected = math.copysign(math.sqrt(abs(x) + 1) - 1, x) + eps * x
    assert there.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_what_it_cannot_train_is_refused():
    policy = policy_of()
    with pytest.raises(ValueError, match="burn_in=9 leaves nothing of sequences of 9 steps"):
        R2D2Loss(burn_in=9)(policy, tensors(policy, episodes(policy, phantom=True)), NOW)
    with pytest.raises(ValueError, match=r"R2D2Loss trains policies of PolicySpec\(head='q', recurrent="):
        R2D2Loss()(Policy(PolicySpec(recurrent="gru"), SPACES), tensors(policy, episodes(policy, phantom=True)), NOW)
    for wrong in ({"burn_in": -1}, {"n_step": 0}, {"rescale": 0.0}, {"max_share": 2.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            R2D2Loss(**wrong)


def test_a_learner_answers_a_priority_a_sequence():
    worker = RolloutWorker(
        "CartPole-v1",
        PolicySpec(head="q", recurrent="gru", recurrent_size=8, hidden=(8,)),
        steps=12,
        num_envs=4,
        next_obs=True,
        seed=0,
    )
    worker.set_epsilon(0.3)
    batch = n_step(worker.sample().payload, discount=0.99, n=1)
    assert batch["q_taken"].shape == (12, 4)
    slots = np.broadcast_to(np.array([5, 6, 7, 9]), (12, 4))
    given_batch = batch.with_columns(slots=slots, weights=np.ones((12, 4), np.float32))
    made = Learner(worker._spec, R2D2Loss(burn_in=3), seed=0)
    made.build(worker.spaces())
    made.set_target_update(every_updates=2)
    answer = made.train(given_batch, minibatch=2)
    assert answer.payload["slots"].tolist() == [5, 6, 7, 9]
    assert answer.payload["priorities"].shape == (4,)
    assert (answer.payload["priorities"] > 0).all()
    before = made.policy.get_weights()
    made.train(given_batch, minibatch=2, microbatch=1)
    assert (made.policy.get_weights() != before).any()
