"""Groups as described, handles as they live."""

from __future__ import annotations

import functools
import pickle
import types
from typing import Any

import pytest

import flowrl
from flowrl.backends.protocol import Backend
from flowrl.errors import GraphError
from flowrl.handles import ActorHandle


class Worker:
    """Takes what a constructor may take."""

    default_cpus = 1

    def __init__(self, size: int, *, index: int = 0, seed: int = 0):
        self.size = size

    def sample(self) -> int:
        return self.size


class Named:
    """Its parameters clash with those of actors()."""

    def __init__(self, name: str, count: int):
        self.name, self.count = name, count

    def sample(self) -> tuple[str, int]:
        return self.name, self.count


def test_a_group_is_described_and_says_what_it_is() -> None:
    group = flowrl.actors(Worker, 3, count=2, name="workers", gpus=0.5, resources={"fast": 1}, seed=4)
    assert repr(group) == "workers: 2 × Worker"
    assert (group.count, group.cpus, group.gpus, dict(group.resources)) == (2, 1, 0.5, {"fast": 1})
    assert group.open_parameters() == ("index",)  # the seed is given; a count it does not take
    assert __file__ in group.where
    assert flowrl.actor(Worker, 3, name="one", cpus=0).cpus == 0


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"count": 0, "name": "w"}, "group 'w' needs count >= 1, got 0"),
        ({"count": True, "name": "w"}, "group 'w' needs count >= 1, got True"),
        ({"count": 1, "name": ""}, "a group's name must be a non-empty string without '/', got ''"),
        ({"count": 1, "name": "a/b"}, "without '/', got 'a/b'"),
        ({"count": 1, "name": "w", "cpus": -1}, "group 'w': cpus must be a number of at least 0, got -1"),
        ({"count": 1, "name": "w", "gpus": "all"}, "group 'w': gpus must be a number of at least 0, got 'all'"),
        ({"count": 1, "name": "w", "resources": {"x": None}}, "group 'w': x must be a number"),
        (
            {"count": 1, "name": "w", "speed": 3},
            r"group 'w': Worker\(size.* cannot be called .*unexpected keyword argument 'speed'",
        ),
    ],
)
def test_a_description_that_is_wrong(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(GraphError, match=told):
        flowrl.actors(Worker, 3, **kwargs)


def test_what_is_no_class() -> None:
    with pytest.raises(GraphError, match="actors are made from a class, got 5"):
        flowrl.actors(5, count=1, name="w")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="missing a required argument: 'size'"):
        flowrl.actors(Worker, count=1, name="w")


def test_a_method_that_the_class_lacks() -> None:
    with pytest.raises(GraphError, match="Worker \\(group 'w'\\) has no method 'smaple'"):
        flowrl.from_actors(flowrl.actors(Worker, 1, count=1, name="w"), "smaple")


def test_clashing_parameters_go_through_a_partial(local: Backend) -> None:
    group = flowrl.actors(functools.partial(Named, name="inner", count=9), count=2, name="outer")
    assert group.actor_class is Named
    with flowrl.run(flowrl.from_actors(group, "sample").gather_sync(), local) as run:
        assert run.step(2) == [("inner", 9)] * 2


def test_a_factory_makes_actors_too(backend: Backend) -> None:
    def make(index: int) -> Worker:
        return Worker(index * 10)

    with flowrl.run(
        flowrl.from_actors(flowrl.actors(make, count=2, name="made"), "sample").gather_sync(), backend
    ) as run:
        assert run.step(2) == [0, 10]


def test_handles_are_equal_by_name_and_lose_their_run_in_a_pickle(local: Backend) -> None:
    with flowrl.run(
        flowrl.from_actors(flowrl.actors(Worker, 1, count=2, name="w"), "sample").gather_sync(), local
    ) as run:
        zero, one = run.actors["w"]
        assert (zero.name, zero.group, zero.index) == ("w[0]", "w", 0)
        assert zero == ActorHandle("w", 0) != one
        assert len({zero, one, run.actors["w"][0]}) == 2
        copied = pickle.loads(pickle.dumps(zero))
        assert copied == zero
        with pytest.raises(RuntimeError, match=r"w\[0\] is a name without a run"):
            copied.ask("sample")
        pending = zero.ask("sample")
        assert repr(pending) in ("Pending(sample, out)", "Pending(sample, answered)")
        assert pending.result() == 1
        assert pending.made_from_info(lambda info: info.nbytes).result() == 0
        with pytest.raises(TypeError, match=r"made on the driver from the Info; send `pending.result\(\)` instead"):
            one.ask("sample", pending.made_from_info(lambda info: 1))
        with pytest.raises(TypeError):
            run.actors["w"] = ()  # type: ignore[index]
        with pytest.raises(KeyError, match="this run has no group 'workers'; it has w"):
            run.actors["workers"]
        assert run.actors.get("workers") is None


def test_a_group_that_nobody_holds_is_named(local: Backend) -> None:
    hidden = types.SimpleNamespace(group=flowrl.actor(Worker, 1, name="other"))

    def look(x: int, ctx: flowrl.Context) -> Any:
        return ctx.actors(hidden.group)  # in an object, where the graph does not see it

    flow = flowrl.from_actors(flowrl.actors(Worker, 1, count=1, name="w"), "sample").gather_sync().for_each(look)
    with (
        flowrl.run(flow, local) as run,
        pytest.raises(KeyError, match=r"group 'other' is not part of this run.*the run has w"),
    ):
        next(run)


def test_a_shard_has_no_handles(local: Backend) -> None:
    flow = flowrl.from_actors(flowrl.actors(Worker, 1, count=1, name="w"), "sample").for_each(lambda x, ctx: ctx.groups)
    with flowrl.run(flow.gather_sync(), local) as run, pytest.raises(RuntimeError, match="runs inside a shard: gather"):
        next(run)
