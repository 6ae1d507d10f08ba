"""Learners in step: equal to one learner on all rows, with the same weights at every member, whatever rows each has."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from flowrl.batch import Batch
from flowrl.metrics import Sum
from flowrl.rl.in_step import _scale, _sizes, share_of
from flowrl.rl.learner import Learner
from flowrl.rl.losses import LossOut, PPOLoss, VTraceLoss
from flowrl.rl.peers import GlooPeers, Meeting, PeerLost, Whereabouts, open_store
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.worker import RolloutWorker

SPACES = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(2))
SPEC = PolicySpec(hidden=(8, 8))


def learner(seed: int = 0, loss: Any = None, spec: PolicySpec = SPEC, **arguments: Any) -> Learner:
    made = Learner(spec, loss or PPOLoss(entropy_cost=0.01), seed=seed, **{"learning_rate": 0.01, **arguments})
    made.build({"default": SPACES})
    return made


def group(count: int, **arguments: Any) -> list[Learner]:
    """Learners that have met in this process."""
    members = [learner(seed, **arguments) for seed in range(count)]
    names = tuple(f"learners[{i}]" for i in range(count))
    meeting = Meeting(f"test-{id(members)}", names, (Whereabouts.here(),) * count, None, 10.0)
    for rank in reversed(range(count)):
        members[rank].join(meeting, rank)
    return members


def train(members: Sequence[Learner], batches: Sequence[Batch | None], **options: Any) -> Any:
    answers = [members[rank].train_in_step(batches[rank], **options) for rank in reversed(range(len(members)))]
    assert all(answer.payload is None and answer.published is None for answer in answers[:-1])
    return answers[-1]


def batch_of(rows: int, seed: int = 0, **replaced: Any) -> Batch:
    rng = np.random.default_rng(seed)
    columns = {
        "obs": rng.normal(1.0, 3.0, size=(rows, 4)).astype(np.float32),
        "actions": rng.integers(2, size=rows),
        "logp": rng.normal(-0.7, 0.1, size=rows).astype(np.float32),
        "advantages": rng.normal(5.0, 2.0, size=rows).astype(np.float32),
        "returns": rng.normal(size=rows).astype(np.float32),
        "valid": rng.random(rows) < 0.8,
    }
    return Batch({**columns, **replaced})


def numbers(answer: Any) -> dict[str, float]:
    return {name: value.value if isinstance(value, Sum) else value for (_, name), value in answer.metrics.items()}


def weights_of(members: Sequence[Learner]) -> np.ndarray[Any, Any]:
    """The weights of all, which are the same bit for bit."""
    first = members[0].policy.get_weights()
    for other in members[1:]:
        np.testing.assert_array_equal(other.policy.get_weights(), first)
        assert other._updates == members[0]._updates
        assert other._version == members[0]._version
    return first


@pytest.mark.parametrize("sizes", [(40, 40), (50, 7), (31, 0, 20), (0, 60)])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_group_equals_one_learner_on_all_rows(sizes, normalize):
    spec = dataclasses.replace(SPEC, normalize_obs=normalize)
    batches = [batch_of(size, seed) if size else None for seed, size in enumerate(sizes)]
    members = group(len(sizes), spec=spec, target_kl=10.0)
    alone = learner(0, spec=spec, target_kl=10.0)
    np.testing.assert_array_equal(weights_of(members), alone.policy.get_weights())  # the first member's, at first
    whole = Batch.concat([batch for batch in batches if batch is not None])
    for call in range(3):
        answer = train(members, batches, epochs=2, env_steps=call)
        expected = alone.train(whole, epochs=2, env_steps=call)
        np.testing.assert_allclose(weights_of(members), alone.policy.get_weights(), rtol=0, atol=2e-6)
        assert numbers(answer) == pytest.approx(numbers(expected), rel=1e-4, abs=1e-6)
        assert answer.policy_version == expected.policy_version == call + 1
        np.testing.assert_array_equal(answer.published, weights_of(members))


def test_minibatches_are_of_all_members_and_each_row_is_taken_once_an_epoch():
    seen: list[list[int]] = []

    class Counting(PPOLoss):
        needs = PPOLoss().needs | {"rewards"}

        def __call__(self, net, batch, now):
            seen.append(batch["rewards"].int().tolist())
            return super().__call__(net, batch, now)

    members = group(3, loss=Counting())
    rows = [np.arange(0, 10), np.arange(10, 13), np.arange(13, 43)]
    batches = [batch_of(len(r), rewards=r.astype(np.float32), valid=np.ones(len(r), np.bool_)) for r in rows]
    answer = train(members, batches, epochs=2, minibatch=12)
    assert numbers(answer)["updates"] == 2 * 4  # 43 rows
    assert numbers(answer)["trained_steps"] == 2 * 43
    assert numbers(answer)["rows"] == 43
    weights_of(members)
    flat = [row for part in seen for row in part]
    assert sorted(flat) == sorted([*range(43)] * 2)
    orders = [[row for row in flat if row in r] for r in rows]
    assert all(order != sorted(order) for order in orders)


def test_the_scale_of_advantages_is_that_of_all_members_rows():
    members, alone = group(2, loss=PPOLoss()), learner(loss=PPOLoss())
    batches = [batch_of(20, 1), batch_of(30, 2, advantages=np.full(30, -40.0, np.float32))]
    train(members, batches)
    alone.train(Batch.concat(batches))
    np.testing.assert_allclose(weights_of(members), alone.policy.get_weights(), rtol=0, atol=2e-6)
    # of equal advantages nothing is left, and a single row stays as it is
    assert _scale(torch.tensor([4.0, 4 * 1.5, 4 * 2.25], dtype=torch.float64), 2.0) == (3.5, 0.0)
    assert _scale(torch.tensor([1.0, 3.0, 9.0], dtype=torch.float64), 2.0) == (0.0, 1.0)
    assert _scale(torch.tensor([3.0, 3.0, 5.0], dtype=torch.float64), 1.0) == (2.0, 1.0)  # of 1, 2 and 3


def test_no_update_is_without_rows():
    assert _sizes([1, 1], 2) == ((1, 1),)
    assert _sizes([10, 3, 0], 3) == ((3, 1, 0), (3, 1, 0), (4, 1, 0))
    assert _sizes([0, 0], 1) == ()


def test_a_round_without_any_rows_trains_nothing():
    members = group(2)
    before = weights_of(members)
    answer = train(members, [None, batch_of(3, valid=np.zeros(3, np.bool_))], epochs=3, minibatch=2)
    assert numbers(answer) == {"rows": 0, "trained_steps": 0}
    np.testing.assert_array_equal(weights_of(members), before)
    assert answer.policy_version == 0


def test_the_early_stop_is_by_the_kl_over_all_rows():
    far = np.full(30, -3.0, np.float32)  # the policy is far from the one that acted on one member's rows only
    near, apart = batch_of(170, 1), batch_of(30, 2, logp=far)
    whole = Batch.concat([near, apart])
    kl = numbers(learner().train(whole))["kl"]
    assert numbers(learner().train(near))["kl"] < kl < numbers(learner().train(apart))["kl"]
    for target, updates in ((kl * 0.99, 0), (kl * 1.01, 1)):
        members, alone = group(2, target_kl=target), learner(target_kl=target)
        answer, expected = train(members, [near, apart], epochs=4), alone.train(whole, epochs=4)
        assert numbers(expected)["updates"] >= updates
        assert numbers(answer) == pytest.approx(numbers(expected), rel=1e-3, abs=1e-6)
        np.testing.assert_allclose(weights_of(members), alone.policy.get_weights(), rtol=0, atol=2e-6)


def test_the_clip_is_after_the_average():
    members, alone = group(2, max_grad_norm=1e-3), learner(max_grad_norm=1e-3)
    batches = [batch_of(20, 1), batch_of(5, 2, returns=np.full(5, 1e3, np.float32))]
    answer, expected = train(members, batches), alone.train(Batch.concat(batches))
    assert numbers(answer)["grad_norm"] == pytest.approx(numbers(expected)["grad_norm"], rel=1e-5)
    np.testing.assert_allclose(weights_of(members), alone.policy.get_weights(), rtol=0, atol=2e-6)


def test_policies_with_memory_train_on_whole_sequences():
    spec = PolicySpec(hidden=(8,), recurrent="gru")
    ((state, width),) = learner(spec=spec).policy.state_shapes.items()

    def sequences(count, seed):
        rng = np.random.default_rng(seed)
        shape = (5, count)
        valid = np.ones(shape, np.bool_)
        valid[:, 0] = False
        return Batch(
            {
                "obs": rng.normal(size=(*shape, 4)).astype(np.float32),
                "actions": rng.integers(2, size=shape),
                "logp": np.full(shape, -0.7, np.float32),
                "advantages": rng.normal(size=shape).astype(np.float32),
                "returns": rng.normal(size=shape).astype(np.float32),
                "starts": rng.random(shape) < 0.2,
                f"state/{state}": rng.normal(size=(*shape, *width)).astype(np.float32),
                "valid": valid,
            },
            time_major=True,
        )

    batches = [sequences(6, 0), sequences(3, 1), sequences(1, 2)]  # the last has no valid row
    members, alone = group(3, spec=spec), learner(spec=spec)
    answer = train(members, batches)
    expected = alone.train(Batch.concat(batches))
    np.testing.assert_allclose(weights_of(members), alone.policy.get_weights(), rtol=0, atol=2e-6)
    assert numbers(answer)["rows"] == numbers(expected)["rows"] == 35
    answer = train(members, batches, epochs=2, minibatch=3)
    assert numbers(answer)["updates"] == 1 + 2 * 3
    weights_of(members)


def test_a_loss_over_time_gets_whole_sequences():
    loss = VTraceLoss(discount=0.99)
    worker = RolloutWorker("CartPole-v1", SPEC, steps=20, num_envs=3, next_obs=True, seed=1)
    batches = [worker.sample().payload for _ in range(3)]

    def made(seed: int) -> Learner:
        found = Learner(SPEC, loss, seed=seed, learning_rate=0.01)
        found.build(worker.spaces())
        return found

    members, alone = [made(0), made(1)], made(0)
    meeting = Meeting("vtrace", ("a", "b"), (Whereabouts.here(),) * 2, None, 10.0)
    for rank in (1, 0):
        members[rank].join(meeting, rank)
    answer = train(members, [Batch.concat(batches[:2]), batches[2]], epochs=2)
    expected = alone.train(Batch.concat(batches), epochs=2)
    np.testing.assert_allclose(weights_of(members), alone.policy.get_weights(), rtol=0, atol=2e-6)
    assert numbers(answer)["trained_steps"] == numbers(expected)["trained_steps"]
    train(members, [Batch.concat(batches[:2]), None], epochs=2, minibatch=2)
    weights_of(members)


def test_microbatches_change_nothing():
    results = []
    for microbatch in (None, 4):
        members = group(2)
        train(members, [batch_of(20, 1), batch_of(9, 2)], microbatch=microbatch, minibatch=16)
        results.append(weights_of(members))
    np.testing.assert_allclose(*results, rtol=0, atol=2e-6)


def test_each_takes_its_share_of_one_batch():
    whole = batch_of(11, 3)
    shares = [share_of(whole, i, 3) for i in range(3)]
    assert [share.rows for share in shares if share] == [3, 4, 4]
    assert Batch.concat([share for share in shares if share]) == whole
    assert share_of(batch_of(1), 0, 2) is None
    columns = Batch({"x": np.arange(12).reshape(3, 4)}, time_major=True)
    assert share_of(columns, 1, 2) == Batch({"x": columns["x"][:, 2:]}, time_major=True)
    members, alone = group(2), learner()
    for rank in (1, 0):
        members[rank].train_in_step(whole, share=(rank, 2))
    alone.train(whole)
    np.testing.assert_allclose(weights_of(members), alone.policy.get_weights(), rtol=0, atol=2e-6)


def test_all_take_over_the_state_of_the_one_that_trained_the_most():
    members = [learner(0), learner(1), learner(2)]
    members[1].train(batch_of(20), epochs=3)
    expected = members[1].policy.get_weights()
    meeting = Meeting("most", ("a", "b", "c"), (Whereabouts.here(),) * 3, None, 10.0)
    for rank in (2, 1, 0):
        members[rank].join(meeting, rank)
    np.testing.assert_array_equal(weights_of(members), expected)
    assert members[2]._version == 1
    assert members[0].get_state()["optimizers"]["all"]["count"] == 3
    assert members[0].get_state()["generator"] != members[2].get_state()["generator"]


def test_no_global_generator_is_touched():
    torch.manual_seed(5)
    before = (torch.random.get_rng_state(), np.random.get_state()[1], random.getstate(), torch.get_num_threads())

    class Dropping(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))

        def forward(self, obs):
            out = self.net(obs)
            return out[:, :2], out[:, 2]

    members = group(3, spec=PolicySpec(model=lambda obs, act: Dropping()))
    train(members, [batch_of(20, 1), batch_of(9, 2), batch_of(9, 3)], minibatch=16, epochs=2)
    weights_of(members)
    torch.testing.assert_close(torch.random.get_rng_state(), before[0], rtol=0, atol=0)
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
    assert torch.get_num_threads() == before[3]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("learners[")]


class Failing(PPOLoss):
    """Fails at the member whose rewards say so."""

    needs = PPOLoss().needs | {"rewards"}

    def __call__(self, net, batch, now):
        if batch["rewards"].min() < 0:
            raise LookupError("no such thing")
        return super().__call__(net, batch, now)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_exception_of_one_is_raised_with_its_own_type(failing):
    members = group(3, loss=Failing())
    signs = [-1.0 if rank == failing else 1.0 for rank in range(3)]
    batches = [batch_of(6, rewards=np.full(6, sign, np.float32)) for sign in signs]
    with pytest.raises(LookupError, match="no such thing") as raised:
        train(members, batches, minibatch=4)
    notes = getattr(raised.value, "__notes__", [])
    assert [note for note in notes if "learners[" in note] == ([f"in learners[{failing}]"] if failing else [])


def test_a_gradient_that_is_not_finite_stops_all_before_the_update():
    class Overflow(PPOLoss):
        def __call__(self, net, batch, now):
            out = super().__call__(net, batch, now)
            return LossOut(out.loss * 1e38, out.metrics)

    members = group(2, loss=Overflow(standardize_advantages=False))
    before = weights_of(members)
    with pytest.raises(FloatingPointError, match="so the parameters were left as they are"):
        train(members, [batch_of(20, returns=np.full(20, 1e4, np.float32))] * 2)
    np.testing.assert_array_equal(weights_of(members), before)


def test_a_member_that_was_not_asked_is_lost_and_all_may_meet_again():
    members = group(3)
    assert members[1].train_in_step(batch_of(5)).payload is None
    answer = members[0].train_in_step(batch_of(5))
    assert answer.payload == "learners[0] has lost learners[2]"
    assert numbers(answer) == {"trained_steps": 0, "rounds_lost": 1}
    assert members[0].train_in_step(batch_of(5)).payload == "learners[0] has left its group"
    meeting = Meeting("again", ("learners[0]", "learners[1]"), (Whereabouts.here(),) * 2, None, 10.0)
    for rank in (1, 0):
        members[rank].join(meeting, rank)
    assert numbers(train(members[:2], [batch_of(5), batch_of(6)]))["updates"] == 1
    weights_of(members[:2])


def test_a_learner_in_no_group_says_so():
    with pytest.raises(RuntimeError, match=r"is in no group yet: call join\(meeting, rank\)"):
        learner().train_in_step(batch_of(5))


# between processes: threads stand for them here, each with a connection of its own to the others


def meet_by_network(count: int, act: Any, timeout_s: float = 20.0, *, apart: bool = False) -> list[Any]:
    store = open_store(timeout_s)
    address = Whereabouts.here().address
    here = [Whereabouts(f"machine {process if apart else 0}", process, address) for process in range(count)]
    meeting = Meeting("network", tuple(f"m[{i}]" for i in range(count)), tuple(here), store.port, timeout_s)
    results: list[Any] = [None] * count

    def member(rank: int) -> None:
        try:
            results[rank] = act(GlooPeers(meeting, rank, store if rank == 0 else None))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(("count", "apart"), [(2, False), (2, True), (3, False), (3, True)])
def test_members_by_network_give_what_those_in_one_process_do(count, apart):
    values = [torch.tensor(np.random.default_rng(rank).normal(size=11).astype(np.float32)) for rank in range(count)]

    def act(peers):
        mine = values[peers.rank]
        return (
            peers.sum(mine),
            peers.sum(mine.double()),
            peers.gather({"rank": peers.rank, "long": "x" * 5000 * peers.rank}),
            peers.share([peers.rank] * 3000, count - 1),
        )

    in_order = values[0].clone()
    for value in values[1:]:
        in_order += value
    for total, exact, gathered, shared in meet_by_network(count, act, apart=apart):
        assert torch.equal(total, in_order)
        assert torch.equal(exact.float(), torch.stack(values).double().sum(0).float())
        assert gathered == [{"rank": rank, "long": "x" * 5000 * rank} for rank in range(count)]
        assert shared == [count - 1] * 3000


def test_a_member_that_leaves_is_noticed_at_the_next_meeting():
    def act(peers):
        peers.sum(torch.ones(3))
        if peers.rank == 1:
            with pytest.raises(ZeroDivisionError):
                peers.work(lambda: 1 // 0)
            with pytest.raises(PeerLost, match=r"m\[1\] has left its group"):
                peers.sum(torch.ones(3))
            return "left"
        peers.sum(torch.ones(3))

    first, second, third = meet_by_network(3, act)
    assert second == "left"
    for error, name in ((first, "m[0]"), (third, "m[2]")):
        assert isinstance(error, PeerLost)
        assert str(error).startswith(f"{name} has lost one of m[0], m[1], m[2]: ")


def test_who_never_comes_is_not_waited_for_longer_than_the_timeout():
    store = open_store(0.3)
    meeting = Meeting("alone", ("a", "b"), (Whereabouts("m", 1, ""), Whereabouts("m", 2, "")), store.port, 0.3)
    with pytest.raises(PeerLost, match="a did not find all of a, b"):
        GlooPeers(meeting, 0, store)


def test_who_does_not_answer_is_not_waited_for_longer_than_the_timeout():
    done = threading.Event()

    def act(peers):
        if peers.rank == 0:
            try:
                peers.sum(torch.ones(3))
            finally:
                done.set()
        done.wait(10)

    lost, _ = meet_by_network(2, act, timeout_s=2.0)
    assert isinstance(lost, PeerLost)
    assert "m[0] has lost one of m[0], m[1]" in str(lost)
