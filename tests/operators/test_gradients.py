"""Gradients as items: computed on the shards, averaged by reference, applied once; weights back to their origin."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import flowrl
from flowrl import Batch, Local, MultiAgentBatch, run
from flowrl.errors import GraphError
from flowrl.operators import (
    AddAdvantages,
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    ParallelRollouts,
    SendWeights,
    TrainOneStep,
)
from flowrl.operators.training import TrainInfo
from flowrl.rl import Learner, PolicySpec, RolloutWorker
from flowrl.rl.gradient_batch import Gradients, mean_of
from flowrl.rl.losses import ActorCriticLoss
from flowrl.rl.schedules import Linear

SPEC = PolicySpec(hidden=(8,))


def workers_of(count: int = 2, spec: PolicySpec = SPEC, **settings: Any) -> Any:
    given = {"steps": 10, "num_envs": 2, **settings}
    return flowrl.actors(RolloutWorker, "CartPole-v1", spec, count=count, name="workers", **given)


def learner_of(spec: PolicySpec = SPEC, loss: Any = None, **settings: Any) -> Any:
    return flowrl.actor(Learner, spec, loss or ActorCriticLoss(), name="learner", **settings)


def gradients_of(workers: Any, spec: PolicySpec = SPEC, loss: Any = None, **settings: Any) -> Any:
    computed = ComputeGradients(spec, loss or ActorCriticLoss(), **settings)
    return ParallelRollouts(workers).for_each(AddAdvantages()).for_each(computed)


def weights_after(flow: Any, items: int = 1) -> np.ndarray:
    with run(flow, Local(), seed=0) as running:
        running.step(items)
        return np.asarray(running.policy_state()["weights"])


# what an item is


def test_an_item_is_a_row_of_gradients_that_counts_its_experience() -> None:
    flow = gradients_of(workers_of()).gather_sync()
    infos = []
    with run(
        flow.tap(lambda item, ctx: infos.append((ctx.policy_version, ctx.origins[0].name))), Local(), seed=0
    ) as it:
        items = it.step(4)
        steps = it.stats().env_steps
    assert infos == [(0, "workers[0]"), (0, "workers[1]")] * 2
    assert all(isinstance(item, Gradients) for item in items)
    assert {item["gradients"].shape for item in items} == {
        (1, len(RolloutWorker("CartPole-v1", SPEC).get_weights()[0]))
    }
    assert items[0]["gradients"].dtype == np.float32
    assert sum(item.env_steps for item in items) == sum(int(item["rows"][0]) for item in items) == steps
    assert 60 < steps <= 80  # less the rows that only reset


def test_several_join_by_rows_and_survive_a_journey() -> None:
    two = Gradients.concat([Gradients.of([1.0, 2.0], 3), Gradients.of([4.0, 5.0], 1)])
    back = pickle.loads(pickle.dumps(two))
    assert isinstance(back, Gradients)
    assert back == two
    assert back.env_steps == back.info().env_steps == 4
    mean, rows = mean_of(back, 2)
    assert rows == 4
    np.testing.assert_array_equal(mean, np.float32([1.75, 2.75]))  # (3·1 + 4) / 4, (3·2 + 5) / 4


def test_the_gradient_is_the_learners_own() -> None:
    worker = RolloutWorker("CartPole-v1", SPEC, steps=20, num_envs=2, seed=1)
    (batch,) = AddAdvantages().process(worker.sample().payload, None)  # type: ignore[arg-type]
    learner = Learner(SPEC, ActorCriticLoss(entropy_cost=0.1), seed=5)
    worker.set_weights(learner.build(worker.spaces()).published, 7)
    ctx = flowrl.Context("node", actor=worker)
    for microbatch in (None, 3):
        op = ComputeGradients(SPEC, ActorCriticLoss(entropy_cost=0.1), microbatch)
        op.open()
        (item,) = op.process(batch, ctx)
        expected = learner.compute_gradients(batch, microbatch=microbatch)
        np.testing.assert_array_equal(item["gradients"][0], expected.payload)
        assert item["rows"].tolist() == [batch.env_steps]
        said = {(policy, name): value for _, policy, name, rule, value, _ in ctx.metrics.take() if rule == "last"}
        assert said == expected.metrics


def test_newer_weights_are_taken_at_once_and_only_then() -> None:
    worker = RolloutWorker("CartPole-v1", SPEC, steps=20, num_envs=2, seed=1)
    (batch,) = AddAdvantages().process(worker.sample().payload, None)  # type: ignore[arg-type]
    op, ctx = ComputeGradients(SPEC, ActorCriticLoss()), flowrl.Context("node", actor=worker)
    op.open()
    before, again = (next(iter(op.process(batch, ctx)))["gradients"] for _ in range(2))
    np.testing.assert_array_equal(before, again)
    worker.set_weights(worker.get_weights()[0] * 0.5, 1)
    (after,) = op.process(batch, ctx)
    assert (after["gradients"] != before).any()


def test_without_a_row_of_the_policy_it_is_0_of_0_rows() -> None:
    worker = RolloutWorker("CartPole-v1", SPEC, steps=4, seed=1)
    ctx = flowrl.Context("node", actor=worker)
    op = ComputeGradients(SPEC, ActorCriticLoss())
    op.open()
    (item,) = op.process(MultiAgentBatch({}, env_steps=3), ctx)
    assert not item["gradients"].any()
    assert item["rows"].tolist() == [0]


# averaging and applying


def in_step(workers: Any, learner: Any, spec: PolicySpec = SPEC) -> Any:
    averaged = gradients_of(workers, spec).gather_sync().for_each(AverageGradients(workers.count))
    return averaged.for_each(ApplyGradients(learner)).for_each(SendWeights(learner, to=workers))


def full_batch(workers: Any, learner: Any, parts: int) -> Any:
    rollouts = ParallelRollouts(workers).for_each(AddAdvantages()).gather_sync()
    return (
        rollouts.batch(parts)
        .for_each(joined)
        .for_each(TrainOneStep(learner))
        .for_each(SendWeights(learner, to=workers))
    )


def joined(batches: list[Batch]) -> Batch:
    return Batch.concat(batches)


@pytest.mark.parametrize("spec", [SPEC, PolicySpec(hidden=(8,), normalize_obs=True)], ids=["plain", "normalized"])
def test_gradients_of_k_parts_are_that_of_one_full_batch(spec: PolicySpec) -> None:
    # Parts have unequal numbers of valid rows: it is the mean over rows, not the mean of the parts' means.
    workers, learner = workers_of(4, spec, steps=30), learner_of(spec, max_grad_norm=0.01)
    averaged = in_step(workers, learner, spec)
    whole = full_batch(workers, learner, 4)
    if spec.normalize_obs:  # whose first update is with the statistics that the batch itself has given
        size = 2 * 4
        np.testing.assert_allclose(weights_after(averaged)[-size:], weights_after(whole)[-size:], rtol=1e-6)
    else:
        np.testing.assert_allclose(weights_after(averaged), weights_after(whole), rtol=0, atol=1e-6)


def test_several_updates_in_step_are_those_of_full_batches() -> None:
    workers, learner = workers_of(2), learner_of(learning_rate=1e-3)
    averaged = in_step(workers, learner)
    np.testing.assert_allclose(
        weights_after(averaged, 5), weights_after(full_batch(workers, learner, 2), 5), rtol=0, atol=2e-5
    )


def test_what_comes_out_is_what_training_says() -> None:
    workers, learner = workers_of(2), learner_of()
    flow = gradients_of(workers).gather_sync().for_each(AverageGradients(2)).for_each(ApplyGradients(learner))
    with run(flow, Local(), seed=0) as running:
        items = running.step(3)
        steps, table = running.stats().env_steps, running.stats().metrics
    assert all(isinstance(item, TrainInfo) for item in items)
    assert [item.policy_version for item in items] == [1, 2, 3]
    assert sum(item.env_steps for item in items) == steps
    assert {"default/grad_norm", "default/learning_rate", "default/updates", "default/rows"} <= items[0].metrics.keys()
    assert items[-1].metrics["default/trained_steps"] == items[-1].env_steps
    assert items[-1].answer is None
    assert "default/policy_loss" in table["ComputeGradients"]


def test_the_rest_comes_out_at_the_end() -> None:
    rows = [Gradients.of(np.zeros(2), n) for n in (1, 2, 3)]
    flow = flowrl.from_items(rows, num_shards=1).gather_sync().for_each(AverageGradients(2))
    with run(flow, Local()) as running:
        assert [item["rows"].tolist() for item in running] == [[1, 2], [3]]


def test_a_learner_without_rows_stays_as_it_is() -> None:
    learner = Learner(SPEC, ActorCriticLoss(), seed=0)
    before = learner.build(RolloutWorker("CartPole-v1", SPEC).spaces())
    size = len(before.published)
    answer = learner.apply_gradients(Gradients.of(np.zeros(size), 0))
    np.testing.assert_array_equal(answer.published, before.published)
    assert answer.policy_version == 0
    assert answer.metrics["default", "trained_steps"].value == 0
    learner.apply_gradients(Gradients.concat([Gradients.of(np.ones(size), 5), Gradients.of(np.zeros(size), 0)]))
    alone = Learner(SPEC, ActorCriticLoss(), seed=0)
    alone.build(RolloutWorker("CartPole-v1", SPEC).spaces())
    alone.apply_gradients(np.ones(size))
    np.testing.assert_array_equal(learner.publish().published, alone.publish().published)


def test_weights_go_back_to_the_origin_alone() -> None:
    workers, learner = workers_of(3), learner_of()
    applied = gradients_of(workers).gather_async(num_async=1).for_each(ApplyGradients(learner))
    origins: list[str] = []
    flow = applied.for_each(SendWeights(learner, to="origin")).tap(lambda _, ctx: origins.append(ctx.origins[0].name))
    with run(flow, Local(), seed=0) as running:
        running.step(5)
        versions = {handle.name: handle.ask("get_weights").result()[1] for handle in running.actors["workers"]}
    for worker, version in versions.items():  # of the update that its own last gradient made, and of no other's
        assert version == max(i + 1 for i, name in enumerate(origins) if name == worker)


@pytest.mark.ray
def test_both_backends_give_the_same_numbers(ray_session: None) -> None:
    workers, learner = workers_of(2), learner_of()
    flow = in_step(workers, learner)
    found = []
    for backend in (Local(), flowrl.Ray()):
        with run(flow, backend, seed=1) as running:
            running.step(4)
            found.append(running.policy_state()["weights"])
    np.testing.assert_array_equal(*found)


def test_schedules_on_the_shards_follow_the_steps_of_the_whole_run() -> None:
    loss = ActorCriticLoss(entropy_cost=Linear(1.0, 0.0, 400))
    workers, learner = workers_of(2), learner_of(loss=loss)
    flow = gradients_of(workers, loss=loss).gather_sync().for_each(ApplyGradients(learner))
    with run(flow, Local(), seed=0) as running:
        running.step(2)
        first = running.stats().metrics["ComputeGradients"]["default/entropy_cost"]
        running.step(8)
        steps = running.stats().env_steps
        costs = running.stats().metrics["ComputeGradients"]["default/entropy_cost"]
        told = [handle.ask(lambda worker: worker.env_steps).result() for handle in running.actors["workers"]]
    assert all(steps - 60 < one <= steps for one in told)
    assert first == 1.0  # of the first round, before which there was nothing
    assert costs == pytest.approx(1 - steps * 4 / 5 / 400, abs=0.05)  # of the fifth


def test_nobody_is_told_the_steps_where_nothing_follows_them() -> None:
    workers, learner = workers_of(2), learner_of()
    flow = gradients_of(workers).gather_sync().for_each(ApplyGradients(learner))
    with run(flow, Local(), seed=0) as running:
        running.step(6)
        assert [handle.ask(lambda worker: worker.env_steps).result() for handle in running.actors["workers"]] == [0, 0]


# what is wrong


def test_the_actor_of_a_shard_is_not_there_on_the_driver() -> None:
    gathered = ParallelRollouts(workers_of()).for_each(AddAdvantages()).gather_sync()
    with (
        run(gathered.for_each(ComputeGradients(SPEC, ActorCriticLoss())), Local()) as running,
        pytest.raises(RuntimeError, match=r"ctx\.actor is for operators inside a shard; this one runs on the driver"),
    ):
        running.step()


def test_batches_of_experience_are_refused_before_anything_starts() -> None:
    gathered = ParallelRollouts(workers_of()).gather_sync()
    with pytest.raises(GraphError, match="gradients"):
        run(gathered.for_each(ApplyGradients(learner_of())), Local())
    with pytest.raises(GraphError, match="advantages"):
        run(ParallelRollouts(workers_of()).for_each(ComputeGradients(SPEC, ActorCriticLoss())).gather_sync(), Local())


def test_a_learner_refuses_what_are_no_gradients_of_its_policy() -> None:
    learner = Learner(SPEC, ActorCriticLoss(), seed=0)
    learner.build(RolloutWorker("CartPole-v1", SPEC).spaces())
    with pytest.raises(KeyError, match=r"needs the columns 'gradients' and 'rows', as ComputeGradients makes them"):
        learner.apply_gradients(Batch({"obs": np.zeros((2, 4))}))
    with pytest.raises(ValueError, match=r"gradients must be flat with shape \(1, \d+\), got \(1, 3\)"):
        learner.apply_gradients(Gradients.of(np.zeros(3), 1))
    with pytest.raises(FloatingPointError, match="norm of the gradient is nan"):
        learner.apply_gradients(Gradients.of(np.full(len(learner.policy.flat_parameters), np.nan), 1))


class Linears(torch.nn.Module):
    """Actor and critic of a layer each, registered in either order: 4·2 + 2 + 4·1 + 1 = 15 parameters."""

    def __init__(self, order: tuple[str, ...]):
        super().__init__()
        for name in order:
            self.add_module(name, torch.nn.Linear(4, 2 if name == "actor" else 1))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.get_submodule("actor")(obs), self.get_submodule("critic")(obs).squeeze(-1)


def built(policy_id: str, *order: str) -> Learner:
    learner = Learner(PolicySpec(model=lambda *_: Linears(order)), ActorCriticLoss(), policy_id=policy_id)
    learner.build({policy_id: RolloutWorker("CartPole-v1", SPEC).spaces()["default"]})
    return learner


def described(learner: Learner) -> str:
    return learner.policy.described(learner.policy_id)


def test_gradients_of_two_policies_are_not_averaged() -> None:
    red, blue = (described(built(policy_id, "actor", "critic")) for policy_id in ("red", "blue"))
    made = [Gradients.of(np.ones(2), 3, policy=policy) for policy in (red, blue)]
    told = r"different policies have no mean: 'blue' \(15 .*\) and 'red' \(15 .*\); average and apply those of each"
    with pytest.raises(ValueError, match=told):
        Gradients.concat(made)
    with pytest.raises(ValueError, match=told):
        mean_of(Batch({name: np.concatenate([one[name] for one in made]) for name in made[0]}), 2)
    assert Gradients.concat([made[0], made[0]])["policy"].tolist() == [red, red]


def test_a_learner_refuses_gradients_of_another_policy() -> None:
    red, blue = built("red", "actor", "critic"), built("blue", "actor", "critic")
    theirs = Gradients.of(np.ones(15), 3, policy=described(blue))
    with pytest.raises(ValueError, match=r"of the policy 'blue' \(15 .*\) cannot be applied to the policy 'red' \(15 "):
        red.apply_gradients(theirs)
    assert blue.apply_gradients(theirs).policy_version == 1
    turned = built("red", "critic", "actor")  # as many parameters, in another order
    with pytest.raises(ValueError, match="give ComputeGradients and the learner the same PolicySpec and policy_id"):
        red.apply_gradients(Gradients.of(np.ones(15), 3, policy=described(turned)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AverageGradients(0), "n must be at least 1, got 0"),
        (lambda: ApplyGradients(learner_of(), in_flight=0), "in_flight must be at least 1, got 0"),
        (
            lambda: ApplyGradients(workers_of(2)),
            r"ApplyGradients: RolloutWorker \(group 'workers'\) has no method apply_",
        ),
        (lambda: ApplyGradients(replace(learner_of(), count=2)), "trains one learner, group 'learner' has 2"),
        (lambda: ComputeGradients(SPEC, ActorCriticLoss(), 0), "microbatch must be at least 1, got 0"),
        (
            lambda: ComputeGradients(PolicySpec(head="soft_actor"), ActorCriticLoss()),
            "ComputeGradients needs all weights where experience is made",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_concatenated_batches_of_gradients_apply_too() -> None:
    workers, learner = workers_of(2), learner_of()
    flow = gradients_of(workers).gather_sync().for_each(ConcatBatches(min_steps=30)).for_each(ApplyGradients(learner))
    with run(flow, Local(), seed=0) as running:
        assert running.step(1)[0].env_steps >= 30
