"""Which node each actor goes to: spread, packed, side by side; where there is room, and after its node was lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.backends.assignment import Assignment, NoNode
from flowrl.backends.placement import Placement
from flowrl.backends.protocol import GroupPlan
from flowrl.errors import StartError

NODES = {node: {"CPU": 4.0} for node in "abc"}


def assigned(place: dict[str, Any], *plans: GroupPlan, nodes: Any = NODES) -> tuple[Assignment, dict[str, list[Any]]]:
    """And the nodes of each group's actors."""
    made = Assignment(Placement(place), plans)
    made.begin(nodes)
    return made, {plan.name: [made.node_of((plan.name, i)) for i in range(plan.count)] for plan in plans}


def test_where_nothing_is_wished_ray_chooses() -> None:
    assert assigned({"g": {"cpus": 2}}, GroupPlan("g", 2, 1, 0))[1] == {"g": [None, None]}


def test_spread_over_all_nodes_in_turn() -> None:
    assert assigned({"g": {"strategy": "SPREAD"}}, GroupPlan("g", 7, 1, 0))[1] == {"g": list("abcabca")}
    nodes = {"a": {"CPU": 1.0}, "b": {"CPU": 9.0}, "c": {"CPU": 2.0}}
    assert assigned({"g": {"strategy": "SPREAD"}}, GroupPlan("g", 5, 1, 0), nodes=nodes)[1] == {"g": list("abcbc")}


def test_packed_on_as_few_nodes_as_will_do() -> None:
    nodes = {"a": {"CPU": 1.0}, "b": {"CPU": 2.0}, "c": {"CPU": 3.0}}
    assert assigned({"g": {"strategy": "PACK"}}, GroupPlan("g", 5, 1, 0), nodes=nodes)[1] == {"g": list("cccbb")}
    assert assigned({"g": {"strategy": "PACK"}}, GroupPlan("g", 3, 0, 0), nodes=nodes)[1] == {"g": list("aaa")}


def test_side_by_side_with_room_for_all_of_them() -> None:
    """Two learners with a GPU and four workers, of which each follows one."""
    nodes = {"small": {"CPU": 2.0, "GPU": 1.0}, "a": {"CPU": 4.0, "GPU": 1.0}, "b": {"CPU": 4.0, "GPU": 1.0}}
    place = {"workers": {"colocate": "learners"}, "learners": {"strategy": "SPREAD"}}
    learners, workers = GroupPlan("learners", 2, 1, 1), GroupPlan("workers", 4, 1.5, 0)
    made, found = assigned(place, workers, learners, nodes=nodes)
    assert found == {"learners": ["a", "b"], "workers": ["a", "b", "a", "b"]}
    assert made.shares(("workers", 3))
    chain = {"x": {"colocate": "y"}, "y": {"colocate": "z"}}
    plans = [GroupPlan(name, 2, 1, 0) for name in "xyz"]
    assert assigned(chain, *plans)[1] == {name: ["a", "b"] for name in "xyz"}


def test_those_of_whom_nothing_is_wished_leave_the_others_their_places() -> None:
    place = {"replay": {"colocate": "learner"}}
    plans = GroupPlan("workers", 6, 1, 0), GroupPlan("learner", 1, 2, 0), GroupPlan("replay", 2, 1, 0)
    _, found = assigned(place, *plans)
    assert found["replay"] == found["learner"] * 2 == ["a", "a"]
    assert Counter(found["workers"]) == {"b": 3, "c": 3}


def test_one_that_came_later_is_left_to_ray_and_placed_after_its_death() -> None:
    made, _ = assigned({"g": {"strategy": "SPREAD"}}, GroupPlan("g", 2, 1, 0))
    assert made.node_of(("g", 2)) is None
    assert made.again(("g", 2), NODES) == "c"


def test_no_room_is_said() -> None:
    told = r"no node has room for g\[0\] \(CPU: 5, fast: 1 needed; free on the nodes: CPU: 4, fast: 0\)"
    with pytest.raises(NoNode, match=told):
        assigned({"g": {"strategy": "PACK"}}, GroupPlan("g", 1, 5, 0, {"fast": 1.0}))
    told = (
        r"no node has room for h\[0\], g\[0\], g\[1\], which share a node, \(CPU: 6 needed; free on the nodes: CPU: 4"
    )
    with pytest.raises(NoNode, match=told):
        assigned({"g": {"colocate": "h"}}, GroupPlan("h", 1, 2, 0), GroupPlan("g", 2, 2, 0))


def test_after_a_death_it_goes_back_and_after_the_loss_of_its_node_elsewhere_with_all_that_share_it() -> None:
    place = {"replay": {"colocate": "learner"}, "workers": {"strategy": "SPREAD"}}
    plans = GroupPlan("learner", 1, 1, 0), GroupPlan("replay", 2, 1, 0), GroupPlan("workers", 3, 1, 0)
    made, found = assigned(place, *plans)
    assert found == {"learner": ["a"], "replay": ["a", "a"], "workers": ["a", "b", "c"]}
    assert made.again(("replay", 1), NODES) == "a"
    with pytest.raises(NoNode, match=r"no node has room for replay\[1\] \(CPU: 1 needed; free on the nodes: CPU: 0\)"):
        made.again(("replay", 1), {**NODES, "a": {"CPU": 0.0}})  # the others are there, so it must be, too
    left = {"b": {"CPU": 2.0}, "c": {"CPU": 3.0}}
    assert [made.again(seat, left) for seat in (("replay", 1), ("learner", 0), ("replay", 0))] == ["c"] * 3
    assert made.node_of(("learner", 0)) == "c"
    assert made.again(("workers", 0), left) == "b"  # one each on b and c: the first
    with pytest.raises(NoNode, match=r"no node has room for workers\[2\] \(CPU: 1 needed; free on the nodes: CPU: 0\)"):
        made.again(("workers", 2), {"d": {"CPU": 0.0}})


def test_without_wishes_only_the_room_is_looked_at() -> None:
    made, _ = assigned({}, GroupPlan("g", 2, 1, 0))
    assert made.node_of(("g", 0)) is None
    assert made.again(("g", 0), {"b": {"CPU": 2.0}, "c": {"CPU": 3.0}}) == "c"
    left = made.with_room_for({("g", 0): "b", ("g", 1): "lost"}, {"b": {"CPU": 2.0}, "c": {"CPU": 3.0}})
    assert left == {"b": {"CPU": 1.0}, "c": {"CPU": 3.0}}
    with pytest.raises(NoNode, match=r"no node has room for g\[1\]"):
        made.again(("g", 1), {"a": {"CPU": 0.5}})
    with pytest.raises(NoNode, match="no node is there"):
        made.again(("g", 1), {})


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 8), st.sampled_from(["SPREAD", "PACK"]))
def test_no_node_gets_more_than_it_has(sizes: list[int], count: int, strategy: str) -> None:
    nodes = {f"n{place}": {"CPU": float(size)} for place, size in enumerate(sizes)}
    if sum(sizes) < count:
        with pytest.raises(NoNode):
            assigned({"g": {"strategy": strategy}}, GroupPlan("g", count, 1, 0), nodes=nodes)
        return
    found = Counter(assigned({"g": {"strategy": strategy}}, GroupPlan("g", count, 1, 0), nodes=nodes)[1]["g"])
    assert all(found[node] <= nodes[node]["CPU"] for node in nodes)
    if strategy == "PACK":  # the largest first
        enough = next(k for k in range(1, len(sizes) + 1) if sum(sorted(sizes)[-k:]) >= count)
        assert len(found) == enough
    else:  # nobody has two more than another that had room
        assert all(found[a] <= found[b] + 1 for a in found for b in nodes if found[b] < nodes[b]["CPU"])


def resized(place: dict[str, Any], before: list[GroupPlan], now: GroupPlan, free: Any) -> list[Any]:
    """The nodes of a group that had another number of actors."""
    made, _ = assigned(place, *before)
    first = made.count(now.name)
    again = made.resized(now)
    again.seat(now.name, first, free)
    assert [again.node_of((now.name, i)) for i in range(min(first, now.count))] == [
        made.node_of((now.name, i)) for i in range(min(first, now.count))
    ]
    return [again.node_of((now.name, i)) for i in range(now.count)]


def test_who_is_new_in_a_group_is_placed_as_the_others_were() -> None:
    two, four = GroupPlan("g", 2, 1, 0), GroupPlan("g", 4, 1, 0)
    left = {"a": {"CPU": 3.0}, "b": {"CPU": 3.0}, "c": {"CPU": 4.0}}
    assert resized({"g": {"strategy": "SPREAD"}}, [two], four, left) == list("abca")
    assert resized({"g": {"strategy": "PACK"}}, [two], four, {"a": {"CPU": 1.0}, "b": {"CPU": 3.0}}) == list("aaab")
    assert resized({}, [two], four, left) == [None] * 4
    assert resized({"g": {"strategy": "SPREAD"}}, [four], two, left) == list("ab")
    with pytest.raises(NoNode, match=r"no node has room for g\[3\] \(CPU: 1 needed"):
        resized({"g": {"strategy": "PACK"}}, [two], four, {"a": {"CPU": 1.0}})


def test_who_is_new_follows_whom_its_group_follows() -> None:
    place = {"workers": {"colocate": "learner"}}
    plans = [GroupPlan("learner", 1, 1, 0), GroupPlan("workers", 1, 1, 0)]
    more = GroupPlan("workers", 3, 1, 0)
    assert resized(place, plans, more, {"a": {"CPU": 2.0}, "b": {"CPU": 4.0}}) == list("aaa")
    with pytest.raises(NoNode, match=r"no node has room for workers\[2\]"):
        resized(place, plans, more, {"a": {"CPU": 1.0}, "b": {"CPU": 4.0}})
    with pytest.raises(StartError, match="workers shares the nodes of learner, so learner cannot be resized"):
        resized(place, plans, GroupPlan("learner", 2, 1, 0), {"a": {"CPU": 2.0}})
