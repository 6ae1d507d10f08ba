"""Policies with memory: sequences equal single steps, resets let nothing through, training by sequences."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

from flowrl.batch import Batch
from flowrl.rl.learner import Learner
from flowrl.rl.losses import PPOLoss
from flowrl.rl.policy import Policy
from flowrl.rl.recurrent import RecurrentActorCritic
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.worker import RolloutWorker

T, N, H = 7, 3, 5
SPACES = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(3))
KINDS = pytest.mark.parametrize("kind", ["lstm", "gru"])


def policy(kind: str, spaces: Spaces = SPACES, **spec) -> Policy:
    made = Policy(PolicySpec(hidden=(6,), recurrent=kind, recurrent_size=H, **spec), spaces, seed=0)
    rng = np.random.default_rng(1)
    made.set_weights(made.get_weights() + 0.3 * rng.normal(size=len(made.flat)))
    return made


def sequence(made: Policy, seed: int = 0):
    """Observations, non-zero initial states and resets at a first step, inside, and at a last step."""
    rng = np.random.default_rng(seed)
    obs = torch.tensor(rng.normal(size=(T, N, 4)), dtype=torch.float32)
    state = {name: torch.tensor(rng.normal(size=(N, H)), dtype=torch.float32) for name in made.state_shapes}
    starts = torch.zeros(T, N, dtype=torch.bool)
    starts[0, 1] = starts[3, 0] = starts[3, 2] = starts[T - 1, 1] = True
    return obs, state, starts


@KINDS
def test_a_whole_sequence_equals_its_steps_with_a_state_to_begin_with(kind):
    made = policy(kind)
    obs, state, starts = sequence(made)
    whole = made.run_sequence(obs, None, state, starts)
    logits, values, now = [], [], state
    for t in range(T):
        out = made.run_sequence(obs[t : t + 1], None, now, starts[t : t + 1])
        logits.append(out.logits[0])
        values.append(out.values[0])
        now = out.state
    torch.testing.assert_close(whole.logits, torch.stack(logits), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(whole.values, torch.stack(values), atol=1e-6, rtol=1e-5)
    for name in made.state_shapes:
        torch.testing.assert_close(whole.state[name], now[name], atol=1e-6, rtol=1e-5)
    changed = made.run_sequence(obs, None, {name: h + 1 for name, h in state.items()}, starts)
    assert (changed.logits[:3, 0] != whole.logits[:3, 0]).all()  # the state to begin with matters


@KINDS
def test_it_equals_torchs_cells_step_by_step(kind):
    made = policy(kind)
    obs, state, starts = sequence(made)
    module = made.module
    cell = (nn.LSTMCell if kind == "lstm" else nn.GRUCell)(4, H)
    for mine, theirs in zip(cell.parameters(), module.memory.cell.parameters(), strict=True):
        mine.data = theirs.data
    parts, outputs = [state[name] for name in made.state_shapes], []
    for t in range(T):
        parts = [part * ~starts[t].unsqueeze(-1) for part in parts]
        parts = list(cell(obs[t], tuple(parts))) if kind == "lstm" else [cell(obs[t], parts[0])]
        outputs.append(parts[0])
    h_TNH = torch.stack(outputs)
    out = made.run_sequence(obs, None, state, starts)
    torch.testing.assert_close(out.logits, module.actor(h_TNH), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(out.values, module.critic(h_TNH).squeeze(-1), atol=1e-6, rtol=1e-5)


@KINDS
def test_nothing_comes_through_a_reset_forwards_or_backwards(kind):
    made = policy(kind)
    obs, state, starts = sequence(made)
    obs.requires_grad_()
    begun = {name: h.requires_grad_() for name, h in state.items()}
    out = made.run_sequence(obs, None, begun, starts)
    # Sequence 0 is reset before step 3: its outputs from there on depend on nothing before.
    gradients = torch.autograd.grad(out.logits[3:, 0].sum() + out.values[3:, 0].sum(), [obs, *begun.values()])
    assert (gradients[0][:3] == 0).all()
    assert (gradients[0][3:, 0] != 0).any(-1).all()
    assert all((gradient == 0).all() for gradient in gradients[1:])
    poisoned = {name: torch.full_like(h, torch.nan) for name, h in state.items()}
    after = made.run_sequence(obs.detach(), None, poisoned, torch.ones(T, N, dtype=torch.bool))
    assert torch.isfinite(after.logits).all()


@KINDS
def test_act_carries_the_state_that_it_is_given(kind):
    made = policy(kind)
    obs, _, _ = sequence(made)
    whole = made.run_sequence(obs, None, made.initial_state(N), torch.zeros(T, N, dtype=torch.bool))
    state = None
    for t in range(T):
        actions, state = made.act(obs[t].numpy(), deterministic=True, state=state)
        assert actions.tolist() == whole.logits[t].argmax(-1).tolist()
    np.testing.assert_allclose(state["h"], whole.state["h"].detach(), atol=1e-6)
    action, one = made.act(obs[0, 0].numpy(), deterministic=True)
    assert isinstance(action, int)
    assert one["h"].shape == (H,)


def test_its_initial_weights_follow_from_the_seed_and_remember():
    first, second = (Policy(PolicySpec(recurrent="lstm"), SPACES, seed=n).get_weights() for n in (0, 0))
    np.testing.assert_array_equal(first, second)
    assert (Policy(PolicySpec(recurrent="lstm"), SPACES, seed=1).get_weights() != first).any()
    cell = Policy(PolicySpec(recurrent="lstm"), SPACES, seed=0).module.memory.cell
    assert (cell.bias_ih_l0.detach().split(64)[1] == 1).all()
    recurrent = cell.weight_hh_l0.detach().split(64)
    for gate in recurrent:
        torch.testing.assert_close(gate @ gate.T, torch.eye(64), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="got recurrent=None"):
        RecurrentActorCritic(PolicySpec(), SPACES, np.random.default_rng(0))


@pytest.mark.parametrize("action", [Discrete(3), Box(-1, 1, (2,), np.float32)])
def test_nested_observations_and_normalization_by_rows(action):
    space = Dict({"a": Box(-np.inf, np.inf, (2,), np.float32), "b": Discrete(3)})
    made = policy("gru", Spaces(space, action), normalize_obs=True)
    rng = np.random.default_rng(0)
    obs = {"a": rng.normal(3, 2, size=(T, N, 2)).astype(np.float32), "b": rng.integers(3, size=(T, N))}
    made.statistics.update(Batch({f"obs/{name}": column for name, column in obs.items()}, time_major=True))
    tensors = {name: torch.tensor(column) for name, column in obs.items()}
    state, starts = made.initial_state(N), torch.zeros(T, N, dtype=torch.bool)
    out = made.run_sequence(tensors, None, state, starts)
    made.set_weights(np.concatenate([made.get_weights()[:-4], [0, 0, 1, 1]]))  # mean and variance: no normalization
    mean, std = (torch.tensor(figure) for figure in (obs["a"].mean((0, 1)), obs["a"].std((0, 1))))
    scaled = {"a": (tensors["a"] - mean) / std, "b": tensors["b"]}
    plain = made.run_sequence(scaled, None, state, starts)
    torch.testing.assert_close(out.values, plain.values, atol=1e-5, rtol=1e-4)


def training_batch(made: Policy, envs: int = 6) -> Batch:
    rng = np.random.default_rng(3)
    starts, valid = rng.random((T, envs)) < 0.2, rng.random((T, envs)) < 0.9
    columns = {name: rng.normal(size=(T, envs)).astype(np.float32) for name in ("advantages", "returns")}
    states = {f"state/{name}": rng.normal(size=(T, envs, H)).astype(np.float32) for name in made.state_shapes}
    return Batch(
        {
            "obs": rng.normal(size=(T, envs, 4)).astype(np.float32),
            "actions": rng.integers(3, size=(T, envs)),
            "logp": np.full((T, envs), -1.1, np.float32),
            "starts": starts,
            "valid": valid,
            **columns,
            **states,
        },
        time_major=True,
    )


def learner(kind: str = "gru", **arguments) -> Learner:
    spec = PolicySpec(hidden=(6,), recurrent=kind, recurrent_size=H)
    made = Learner(spec, PPOLoss(entropy_cost=0.01), **{"seed": 0, **arguments})
    made.build({"default": SPACES})
    return made


@KINDS
def test_the_loss_is_that_of_the_valid_rows_seen_in_sequence(kind):
    made = learner(kind)
    batch = training_batch(made.policy)
    found = made.compute_gradients(batch)
    net = made.policy
    steps = {name: torch.tensor(column) for name, column in batch.items()}
    state = {name: steps[f"state/{name}"][0] for name in net.state_shapes}
    whole = net.run_sequence(steps["obs"], None, state, steps["starts"])
    valid = steps["valid"]

    class Rows:
        """Gives the outputs of the valid rows, whatever it is asked."""

        def forward(self, rows):
            return type(whole)(type(whole.dist)(whole.logits[valid]), whole.values[valid])

    rows = {name: column[valid] for name, column in steps.items()}
    expected = PPOLoss(entropy_cost=0.01)(Rows(), rows, Progress())
    np.testing.assert_allclose(found.payload, net.gradient(expected.loss), atol=1e-6)
    assert found.env_steps == int(valid.sum())


def test_minibatches_count_sequences_and_parts_change_nothing():
    whole, parts = learner(), learner()
    batch = training_batch(whole.policy)
    first = whole.train(batch, epochs=2, minibatch=4)
    second = parts.train(batch, epochs=2, minibatch=4, microbatch=1)
    np.testing.assert_allclose(first.published, second.published, atol=1e-6)
    metrics = {name: value for (_, name), value in first.metrics.items()}
    assert metrics["updates"] == 4  # 4 and 2 sequences, twice
    assert metrics["rows"] == batch.env_steps
    with pytest.raises(ValueError, match="needs a time-major batch"):
        whole.train(batch.flat())
    restored = learner(seed=5)
    restored.set_state(whole.get_state())
    np.testing.assert_array_equal(
        restored.train(batch, minibatch=4).published, whole.train(batch, minibatch=4).published
    )


class Adding(nn.Module):
    """A user's own module with memory: it adds up what it has seen since the episode's start."""

    def __init__(self, observation, action):
        super().__init__()
        self.state_shapes = {"total": (4,)}
        self.head, self.value = nn.Linear(4, int(action.n)), nn.Linear(4, 1)

    def forward(self, obs, state, starts):
        total, totals = state["total"], []
        for x, start in zip(obs, starts, strict=True):
            total = total.masked_fill(start.unsqueeze(-1), 0.0) + x
            totals.append(total)
        sums = torch.stack(totals)
        return self.head(sums), self.value(sums).squeeze(-1), {"total": total}


def test_a_module_of_ones_own_may_have_memory():
    spec = PolicySpec(model=Adding)
    worker = RolloutWorker("CartPole-v1", spec, steps=40, num_envs=3, seed=0)
    learner = Learner(spec, PPOLoss(), seed=0)
    worker.set_weights(learner.build(worker.spaces()).published, 0)
    worker.sample()
    batch = worker.sample().payload
    # The state before a step, which does not count at an episode's start, and the observation give the next one.
    total = np.where(batch["starts"][..., None], 0, batch["state/total"]) + batch["obs"]
    np.testing.assert_allclose(batch["state/total"][1:], total[:-1], rtol=1e-5, atol=1e-6)
    assert 0 < batch["starts"].sum() < batch["starts"].size / 2
    out = learner.policy.forward(batch)
    valid = torch.tensor(batch["valid"])
    torch.testing.assert_close(out.values.detach()[valid], torch.tensor(batch["values"])[valid], atol=1e-5, rtol=1e-4)
    with_advantages = batch.with_columns(advantages=batch["rewards"], returns=batch["rewards"])
    first = {name: value for (_, name), value in learner.train(with_advantages).metrics.items()}
    assert abs(first["kl"]) < 1e-9
    assert learner.train(with_advantages, minibatch=2).policy_version == 2


class Choosing(gymnasium.Env):
    """Allows one action of three, another one at each step, and says which in its observation."""

    observation_space = Dict({"x": Box(-1, 1, (2,), np.float32), "action_mask": Box(0, 1, (3,), np.int8)})
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return self._obs(), {}

    def step(self, action):
        assert action == self._step % 3
        self._step += 1
        return self._obs(), 1.0, self._step == 7, False, {}

    def _obs(self):
        return {"x": np.ones(2, np.float32), "action_mask": np.eye(3, dtype=np.int8)[self._step % 3]}


@KINDS
def test_masks_hold_in_sequences(kind):
    spec = PolicySpec(hidden=(6,), recurrent=kind, recurrent_size=H)
    worker = RolloutWorker(Choosing, spec, steps=20, num_envs=2, seed=0)
    learner = Learner(spec, PPOLoss(entropy_cost=0.1), seed=0)
    worker.set_weights(learner.build(worker.spaces()).published, 0)
    batch = worker.sample().payload
    batch = batch.with_columns(advantages=batch["rewards"], returns=batch["rewards"])
    found = {name: value for (_, name), value in learner.train(batch, epochs=2, minibatch=1).metrics.items()}
    assert found["entropy"] == 0  # there was no choice
    assert found["kl"] == 0
    assert found["value_loss"] > 0
