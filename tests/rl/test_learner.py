"""The learner: what a train call computes and answers, resuming bit for bit, and what stops it."""

import dataclasses
import pickle
import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.metrics import Sum
from flowrl.rl.adam import Adam
from flowrl.rl.learner import Learner
from flowrl.rl.losses import LossOut, PPOLoss
from flowrl.rl.policy import Policy
from flowrl.rl.schedules import Linear
from flowrl.rl.spec import PolicySpec, Progress, Spaces

SPACES = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(2))
SPEC = PolicySpec(hidden=(8, 8))


def learner(loss=None, spec=SPEC, **arguments) -> Learner:
    made = Learner(spec, loss or PPOLoss(entropy_cost=0.01), **{"seed": 0, **arguments})
    made.build({made.policy_id: SPACES})
    return made


def batch_of(rows: int = 50, seed: int = 0, **replaced) -> Batch:
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(size=(rows, 4)).astype(np.float32),
        "actions": rng.integers(2, size=rows),
        "logp": np.full(rows, -0.7, np.float32),
        "advantages": rng.normal(size=rows).astype(np.float32),
        "returns": rng.normal(size=rows).astype(np.float32),
        "rewards": np.full(rows, np.nan, np.float32),  # not needed by the loss: not looked at
    }
    return Batch({**columns, **replaced})


def numbers(answer) -> dict[str, float]:
    return {name: value for (_, name), value in answer.metrics.items()}


def test_build_publishes_the_initial_weights_and_again_the_same():
    made = Learner(SPEC, PPOLoss(), seed=3)
    with pytest.raises(RuntimeError, match=r"no policy yet: call build\(spaces\) first"):
        made.publish()
    answer = made.build({"default": SPACES, "other": Spaces(SPACES.observation, Discrete(9))})
    assert (answer.payload, answer.policy_version) == (None, 0)
    np.testing.assert_array_equal(
        answer.published, Learner(SPEC, PPOLoss(), seed=3).build({"default": SPACES}).published
    )
    assert (answer.published != Learner(SPEC, PPOLoss(), seed=4).build({"default": SPACES}).published).any()
    made.train(batch_of())
    again = made.build({"default": Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(2))})
    assert again.policy_version == 1
    np.testing.assert_array_equal(again.published, made.publish().published)
    assert (again.published != answer.published).any()
    with pytest.raises(ValueError, match="cannot change to"):
        made.build({"default": Spaces(SPACES.observation, Discrete(3))})
    with pytest.raises(KeyError, match=r"no policy 'default' in the environments; they have \['a'\]"):
        made.build({"a": SPACES})


def test_arguments_are_checked_at_construction():
    for name in ("learning_rate", "max_grad_norm", "adam_eps"):
        with pytest.raises(ValueError, match=f"{name} must be above 0 and finite, got -1"):
            Learner(SPEC, PPOLoss(), **{name: -1})
    with pytest.raises(ValueError, match="loss must be callable and have `needs`"):
        Learner(SPEC, loss=lambda net, batch, now: None)
    for name in ("epochs", "minibatch"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            learner().train(batch_of(), **{name: 0})


@pytest.mark.parametrize("max_grad_norm", [0.01, None])
def test_full_batch_training_equals_torchs_adam_on_the_same_loss(max_grad_norm):
    made = learner(max_grad_norm=max_grad_norm, learning_rate=0.01)
    reference = Policy(SPEC, SPACES)
    reference.set_weights(made.publish().published)
    flat = nn.Parameter(reference.flat)
    adam = torch.optim.Adam([flat], lr=0.01, eps=1e-5)
    tensors = {name: torch.tensor(column) for name, column in batch_of().items()}
    for _ in range(5):
        flat.grad = reference.gradient(PPOLoss(entropy_cost=0.01)(reference, tensors, Progress()).loss)
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_([flat], max_grad_norm)
        adam.step()
    made.train(batch_of(), epochs=5)
    np.testing.assert_allclose(made.publish().published, reference.get_weights(), rtol=1e-5, atol=1e-6)


def test_adam_equals_torchs():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = torch.ones(20), nn.Parameter(torch.ones(20))
    adam, reference = Adam(20, eps=1e-5), torch.optim.Adam([theirs], lr=0.03, eps=1e-5, fused=True)
    for _ in range(50):
        theirs.grad = torch.randn(20, generator=generator)
        adam.step(ours, theirs.grad.clone(), 0.03)
        reference.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class Recording:
    """Records the rows of every minibatch; its metric is the mean of a column."""

    seen: list
    needs: ClassVar[frozenset[str]] = frozenset({"obs", "id"})

    def __call__(self, net, batch, now):
        self.seen.append((batch["id"].tolist(), now))
        mean = batch["id"].float().mean()
        return LossOut(net.forward(batch).values.mean(), {"id_mean": mean, "constant": 2.0})


def test_every_row_once_an_epoch_in_a_new_order_and_the_short_minibatch_is_kept():
    seen: list = []
    made = learner(Recording(seen))
    answer = made.train(batch_of(10, id=np.arange(10)), epochs=3, minibatch=4, env_steps=77)
    assert [len(ids) for ids, _ in seen] == [4, 4, 2] * 3
    epochs = [[row for ids, _ in seen[i : i + 3] for row in ids] for i in (0, 3, 6)]
    assert all(sorted(ids) == list(range(10)) for ids in epochs)
    assert len({tuple(ids) for ids in epochs}) == 3
    assert [now for _, now in seen] == [Progress(77, n) for n in range(9)]
    found = numbers(answer)
    # weighted by rows: a mean of means over (4, 4, 2) would not be 4.5
    assert found["id_mean"] == pytest.approx(4.5)
    assert found["constant"] == 2.0
    assert (found["updates"], found["rows"], found["trained_steps"]) == (9, 10, Sum(30))
    assert found["learning_rate"] == 3e-4
    assert found["grad_norm"] > 0
    assert answer.policy_version == 1
    assert all(policy == "default" for policy, _ in answer.metrics)
    for name, value in found.items():
        assert isinstance(value, int | float | Sum), name


@pytest.mark.parametrize("microbatch", [1, 7, 16, 50])
def test_accumulated_gradients_are_those_of_the_whole_minibatch(microbatch):
    apart, together = learner(), learner()
    parts = apart.compute_gradients(batch_of(), microbatch=microbatch)
    whole = together.compute_gradients(batch_of())
    np.testing.assert_allclose(parts.payload, whole.payload, rtol=1e-5, atol=1e-7)
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-5, abs=1e-7)
    first = numbers(apart.train(batch_of(), epochs=3, minibatch=20, microbatch=microbatch))
    second = numbers(together.train(batch_of(), epochs=3, minibatch=20))
    assert first.pop("trained_steps") == second.pop("trained_steps") == Sum(150)
    assert first == pytest.approx(second, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(apart.publish().published, together.publish().published, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="microbatch must be at least 1, got 0"):
        apart.train(batch_of(), microbatch=0)


def test_a_learning_rate_schedule_follows_the_global_steps():
    scheduled = learner(learning_rate=Linear(0.01, 0.0, 1000))
    first = scheduled.train(batch_of(), env_steps=500)
    assert numbers(first)["learning_rate"] == 0.005
    np.testing.assert_array_equal(first.published, learner(learning_rate=0.005).train(batch_of()).published)
    still = scheduled.train(batch_of(), env_steps=1000)
    assert numbers(still)["learning_rate"] == 0
    np.testing.assert_array_equal(still.published, first.published)
    gradient = scheduled.compute_gradients(batch_of()).payload
    assert numbers(scheduled.apply_gradients(gradient, env_steps=900))["learning_rate"] == pytest.approx(0.001)


@dataclass(frozen=True)
class Moving:
    """Its kl is what it is told for each update."""

    kl: tuple
    needs: ClassVar[frozenset[str]] = frozenset({"obs"})

    def __call__(self, net, batch, now):
        return LossOut(net.forward(batch).values.mean(), {"kl": self.kl[now.updates]} if self.kl else {})


def test_training_on_a_batch_ends_before_the_update_that_is_too_far():
    made, reference = learner(Moving((0.0, 0.01, 0.03, 0, 0, 0)), target_kl=0.02), learner(Moving((0,) * 9))
    found = numbers(made.train(batch_of(), epochs=3, minibatch=30))  # rows: 30, 20, 30
    expected = reference.train(batch_of(), epochs=1, minibatch=30)
    np.testing.assert_array_equal(made.publish().published, expected.published)
    assert (found["updates"], found["trained_steps"], found["kl_stops"]) == (2, Sum(50), Sum(1))
    assert found["kl"] == pytest.approx((0 * 30 + 0.01 * 20 + 0.03 * 30) / 80)
    again = numbers(made.train(batch_of()))  # update 2 again, and the same distance
    assert (again["updates"], again["trained_steps"], again["kl_stops"]) == (2, Sum(0), Sum(1))
    made.loss = Moving((0.0,) * 9)
    assert numbers(made.train(batch_of()))["kl_stops"] == Sum(0)
    assert "kl_stops" not in numbers(expected)


def test_the_distance_that_ends_training_is_the_whole_minibatchs():
    """Parts far above and far below the target, whose mean decides."""

    @dataclass(frozen=True)
    class OfIds:
        needs: ClassVar[frozenset[str]] = frozenset({"obs", "id"})

        def __call__(self, net, batch, now):
            return LossOut(net.forward(batch).values.mean(), {"kl": batch["id"].float().mean()})

    batch = batch_of(id=np.arange(50))  # mean 24.5
    for target, stops in ((24.6, 0), (24.4, 1)):
        made = learner(OfIds(), target_kl=target)
        assert numbers(made.train(batch, microbatch=10))["kl_stops"] == Sum(stops)


def test_a_target_without_a_distance_is_refused():
    with pytest.raises(KeyError, match=r"target_kl=0.1 needs a loss with the metric 'kl', this one gave \[\]"):
        learner(Moving(()), target_kl=0.1).train(batch_of())
    with pytest.raises(ValueError, match="target_kl must be above 0 and finite, got 0"):
        Learner(SPEC, PPOLoss(), target_kl=0)


def test_ppo_stops_early_in_earnest():
    made = learner(learning_rate=0.02, target_kl=0.01)
    batch = batch_of(logp=np.full(50, np.log(0.5), np.float32))  # what an untrained policy of two actions says
    found = numbers(made.train(batch, epochs=50))
    assert 1 < found["updates"] < 50
    assert found["kl_stops"] == Sum(1)


def test_only_valid_rows_are_trained_on():
    valid = np.ones((5, 10), bool)
    valid[2, 3:7] = False
    full = batch_of(50)
    grid = {name: column.reshape(5, 10, *column.shape[1:]) for name, column in full.items()}
    nan = {name: column.copy() for name, column in grid.items()}
    nan["advantages"][~valid] = np.nan
    nan["obs"][~valid] = np.inf
    first, second = learner(), learner()
    found = numbers(first.train(Batch({**nan, "valid": valid}, time_major=True), epochs=2, minibatch=16))
    second.train(full.rows_at(valid.reshape(-1)), epochs=2, minibatch=16)
    assert (found["rows"], found["trained_steps"]) == (46, Sum(92))
    np.testing.assert_array_equal(first.publish().published, second.publish().published)


def test_its_policy_is_taken_from_a_multi_agent_batch():
    made, alone = learner(policy_id="b"), learner(policy_id="b")
    before = made.publish().published
    nothing = made.train(MultiAgentBatch({"a": batch_of()}, env_steps=50))
    assert numbers(nothing) == {"trained_steps": Sum(0), "rows": 0}
    assert nothing.policy_version == 0
    np.testing.assert_array_equal(nothing.published, before)
    made.train(MultiAgentBatch({"a": batch_of(seed=1), "b": batch_of()}, env_steps=50))
    alone.train(batch_of())
    np.testing.assert_array_equal(made.publish().published, alone.publish().published)
    assert numbers(made.train(batch_of(0)))["trained_steps"] == Sum(0)


def test_a_missing_column_is_named():
    with pytest.raises(KeyError, match=r"policy 'default', update 0: the loss needs column 'logp' and the batch has"):
        learner().train(batch_of().without(["logp"]))


def test_a_value_that_is_not_finite_names_column_and_row_and_changes_nothing():
    made = learner()
    before = made.publish().published
    advantages = batch_of()["advantages"].copy()
    advantages[17] = np.nan
    with pytest.raises(FloatingPointError, match=r"column 'advantages' holds nan at row 17 \(1 of 50 valid rows"):
        made.train(batch_of(advantages=advantages))
    obs = np.zeros((5, 10, 4))
    obs[3, 2, 1] = -np.inf
    grid = {name: column.reshape(5, 10, *column.shape[1:]) for name, column in batch_of().items()}
    with pytest.raises(FloatingPointError, match="column 'obs' holds -inf at t=3, n=2"):
        made.train(Batch({**grid, "obs": obs}, time_major=True))
    np.testing.assert_array_equal(made.publish().published, before)
    assert made.publish().policy_version == 0


@dataclass(frozen=True)
class Broken:
    """From update 2 on its loss, or only its gradient, is not finite."""

    what: str
    needs: ClassVar[frozenset[str]] = frozenset({"obs"})

    def __call__(self, net, batch, now):
        value = net.forward(batch).values.mean()
        if now.updates < 2:
            return LossOut(value)
        zero = (value - value.detach()).abs()
        return LossOut(value * torch.nan if self.what == "loss" else value + torch.sqrt(zero))


@pytest.mark.parametrize("what", ["loss is nan", "norm of the gradient is (nan|inf)"])
def test_a_loss_or_gradient_that_is_not_finite_stops_before_the_update(what):
    made, reference = learner(Broken("loss" if "loss" in what else "gradient")), learner(Broken("none"))
    with pytest.raises(FloatingPointError, match=f"policy 'default', update 2: the {what}.*what went in was finite"):
        made.train(batch_of(), epochs=5)
    reference.train(batch_of(), epochs=2)
    np.testing.assert_array_equal(made.publish().published, reference.publish().published)


def test_an_update_with_broken_columns_names_them():
    made = learner()
    tensors = {name: torch.tensor(column) for name, column in batch_of().without(["rewards"]).items()}
    tensors["returns"] = tensors["returns"] * torch.inf
    from flowrl.rl.tensors import TensorBatch

    with pytest.raises(FloatingPointError, match=r"\(not finite: \['returns'\]\)"):
        made.update(TensorBatch(tensors), Progress())


class Dropout(nn.Module):
    """Draws from torch's global generator in training."""

    def __init__(self, observation, action):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.3))
        self.head, self.value = nn.Linear(16, int(action.n)), nn.Linear(16, 1)

    def forward(self, obs):
        features = self.body(obs)
        return self.head(features), self.value(features).squeeze(-1)


@pytest.mark.parametrize("spec", [SPEC, PolicySpec(model=Dropout)])
@pytest.mark.parametrize("build_first", [True, False])
def test_a_restored_learner_goes_on_bit_for_bit(spec, build_first):
    original = learner(spec=spec)
    original.train(batch_of(), epochs=3, minibatch=16)
    original.policy.target.flat.mul_(0.5)
    state = pickle.loads(pickle.dumps(original.get_state()))
    restored = Learner(spec, PPOLoss(entropy_cost=0.01), seed=99)
    if build_first:
        restored.build({"default": SPACES})
    restored.set_state(state)
    restored.build({"default": SPACES})
    np.testing.assert_array_equal(restored.policy.target.get_weights(), original.policy.target.get_weights())
    for seed in (5, 6):
        first, second = (made.train(batch_of(seed=seed), epochs=2, minibatch=16) for made in (original, restored))
        np.testing.assert_array_equal(first.published, second.published)
        assert first.metrics == second.metrics
        assert first.policy_version == second.policy_version
    assert numbers(second)["updates"] == 12 + 8 + 8


def test_state_holds_only_arrays_numbers_and_strings():
    def check(value):
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            for entry in value.values():
                check(entry)
        else:
            assert value is None or isinstance(value, int | str | np.ndarray), type(value)

    made = learner()
    made.train(batch_of())
    check(made.get_state())


@pytest.mark.parametrize("spec", [SPEC, PolicySpec(model=Dropout)])
def test_global_generators_and_the_number_of_threads_are_left_alone(spec):
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate(), torch.get_num_threads())
    torch.set_num_threads(2)
    try:
        seen = []

        class Watching(Learner):
            def update(self, batch, now):
                seen.append(torch.get_num_threads())
                return super().update(batch, now)

        made = Watching(spec, PPOLoss(), seed=0)
        made.build({"default": SPACES})
        made.train(batch_of(), epochs=2)
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
        with pytest.raises(FloatingPointError):
            made.train(batch_of(returns=np.full(50, 1e30, np.float32)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before[3])
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_computed_and_applied_gradients_are_one_update():
    apart, together = learner(max_grad_norm=0.01), learner(max_grad_norm=0.01)
    answer = apart.compute_gradients(batch_of())
    assert answer.env_steps == 50
    assert answer.policy_version == 0
    assert np.linalg.norm(answer.payload) > 0.01  # the clip comes when it is applied
    assert ("default", "policy_loss") in answer.metrics
    applied = apart.apply_gradients(answer.payload)
    together.train(batch_of())
    np.testing.assert_array_equal(applied.published, together.publish().published)
    assert applied.policy_version == 1
    assert numbers(applied)["updates"] == 1
    with pytest.raises(ValueError, match=r"gradients must be flat with shape \(\d+,\), got \(3,\)"):
        apart.apply_gradients(np.zeros(3))
    with pytest.raises(FloatingPointError, match="norm of the gradient is nan"):
        apart.apply_gradients(answer.payload * np.nan)
    np.testing.assert_array_equal(apart.publish().published, applied.published)
    with pytest.raises(ValueError, match="no valid row of policy 'default'"):
        apart.compute_gradients(batch_of(0))


def test_update_may_train_parameter_groups_apart():
    class Apart(Learner):
        def update(self, batch, now):
            return self.step("critic", dataclasses.replace(self.loss, value_cost=1.0), batch)

    made = Apart(SPEC, PPOLoss(), seed=0)
    before = made.build({"default": SPACES}).published
    after = made.train(batch_of()).published
    critic = made.policy.span("critic")
    assert (after[critic] != before[critic]).any()
    np.testing.assert_array_equal(after[: critic.start], before[: critic.start])
    assert made.get_state()["optimizers"].keys() == {"critic"}


def test_policy_state_says_what_it_takes_to_act():
    made = learner()
    made.train(batch_of())
    state = made.policy_state()
    assert (state["spec"], state["spaces"], state["version"]) == (SPEC, SPACES, 1)
    np.testing.assert_array_equal(state["weights"], made.publish().published)


def test_it_learns_which_action_is_better():
    made = learner(learning_rate=0.01)
    batch = batch_of(256)
    better = (batch["actions"] == (batch["obs"][:, 0] > 0)).astype(np.float32)
    answer = made.train(batch.with_columns(advantages=better, returns=better), epochs=30, minibatch=64)
    obs = batch_of(200, seed=9)["obs"]
    chosen = made.policy.act(obs, deterministic=True)
    assert (chosen == (obs[:, 0] > 0)).mean() > 0.9
    assert numbers(answer)["clip_fraction"] > 0.1


def test_beginning_again_is_as_being_new_but_counts_go_on():
    made, first = learner(seed=5), learner(seed=5)
    initial = first.publish().published.copy()
    for _ in range(3):
        made.train(batch_of())
    answer = made.begin_again()
    np.testing.assert_array_equal(answer.published, initial)
    assert (answer.policy_version, made.version) == (4, 4)
    first.train(batch_of(), shuffle=False)
    again = made.train(batch_of(), shuffle=False)  # Adam's moments are new, too
    np.testing.assert_array_equal(again.published, first.publish().published)
    assert numbers(again)["updates"] == 4
    with pytest.raises(RuntimeError, match=r"no policy yet: call build\(spaces\) first"):
        Learner(SPEC, PPOLoss()).begin_again()
