"""What explain and to_mermaid say of a graph: golden texts, and a strict parser for any graph."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given

from flowrl import (
    Batch,
    Flow,
    Local,
    Operator,
    actor,
    actors,
    from_actors,
    from_items,
    from_iterable,
    graph,
)
from flowrl.described import clean, short
from tests.drawn_graphs import Advantages, Keeper, Worker, branching, flows, off_policy, ppo_like, replayed


def test_explain_shows_a_chain_with_its_actors_order_and_columns() -> None:
    assert (
        ppo_like().explain()
        == """\
SendWeights: each line gets its items from the line below it

● SendWeights       driver       SendWeights(learner=learner, to=workers)
● TrainOneStep      driver       TrainOneStep(learner=learner, epochs=4)  [in_flight=1]
● ConcatBatches     driver       ConcatBatches(min_steps=400)
● gather_sync       driver       rounds in shard order  [on_failure=Restart(3)]
● Advantages        2 × workers  Advantages(scale=ndarray float64(2, 3), shape=max)
● ParallelRollouts  2 × workers  Worker.sample()

actors
  workers  2 × Worker  cpus=1                  source of ParallelRollouts, held as `to` by
      SendWeights
  learner  1 × Keeper  cpus=0, gpus=1, fast=2  asked by TrainOneStep, held as `learner` by
      SendWeights

order
  deterministic: only sync gathers and round_robin unions, so timing cannot change the numbers
  worst lag of ParallelRollouts: 0 items (a message sent while consuming round k precedes round k+1)

columns
  gather_sync: advantages, obs, rewards"""
    )


def test_explain_draws_a_shared_node_once_and_refers_to_it() -> None:
    assert (
        branching().explain()
        == """\
Union: each line gets its items from the line below it

● Union          driver                 round_robin, weights 1:2
├─● batch        driver                 batch(2)
│ ● branch[0]    driver                 branch 0 of duplicate
│ ● duplicate    driver                 every item to 2 branches  [max_lag=4, overflow='drop_oldest']
│ ● gather_sync  driver                 rounds in shard order  [on_failure=Ignore()]
│ ● from_items   3 × from_items-shards  IteratorShard.next_item()
└─● filter       driver                 filter(bool)
  ● branch[1]    driver                 branch 1 of duplicate
  ○ duplicate                           drawn above

actors
  from_items-shards  3 × IteratorShard  cpus=0  source of from_items

order
  deterministic: only sync gathers and round_robin unions, so timing cannot change the numbers
  worst lag of from_items: 6 items (gather_sync asks for whole rounds of 3; duplicate max_lag=4)

columns
  gather_sync: not known before the run"""
    )


def test_explain_says_why_a_graph_is_not_deterministic_and_prefixes_everything() -> None:
    assert (
        off_policy().named("mix").explain()
        == """\
mix/Union: each line gets its items from the line below it

● mix/Union             driver           async, emits mix/SendWeights
├─● mix/Same            driver           Same(keeper=mix/replay)  [in_flight=4]
│ ● mix/gather_async    driver           items as they are ready  [num_async=3, on_failure=Restart(3)]
│ ● mix/from_actors     2 × mix/workers  Worker.sample(16)
└─● mix/SendWeights     driver           SendWeights(learner=mix/learner, to=mix/workers)
  ● mix/TrainOneStep    driver           TrainOneStep(learner=mix/learner, epochs=1)  [in_flight=2]
  ● mix/gather_async-2  driver           items as they are ready  [num_async=2, on_failure=Restart(2, backoff_s=1)]
  ● mix/from_actors-2   2 × mix/replay   Keeper.sample(32)

actors
  mix/workers  2 × Worker  cpus=1  source of mix/from_actors, held as `to` by mix/SendWeights
  mix/replay   2 × Keeper  cpus=0  asked by mix/Same, source of mix/from_actors-2
  mix/learner  1 × Keeper  cpus=0  asked by mix/TrainOneStep, held as `learner` by mix/SendWeights

order
  not deterministic: items of mix/gather_async, mix/gather_async-2, mix/Union come in the order in
      which they are ready
  worst lag of mix/from_actors: 8 items (mix/gather_async: num_async=3 × 2 shards, less the item
      consumed; mix/Same in_flight=4)
  worst lag of mix/from_actors-2: 4 items (mix/gather_async-2: num_async=2 × 2 shards, less the item
      consumed; mix/TrainOneStep in_flight=2)

columns
  mix/gather_async: obs, rewards
  mix/gather_async-2: not known before the run"""
    )


def test_a_flow_that_is_not_gathered_is_explained_and_drawn() -> None:
    shards = from_actors(actors(Worker, count=2, name="workers"), "sample").for_each(Advantages(scale=1)).filter(bool)
    assert (
        shards.explain()
        == """\
filter: each line gets its items from the line below it

● filter       2 × workers  filter(bool)
● Advantages   2 × workers  Advantages(scale=1, shape=max)
● from_actors  2 × workers  Worker.sample()

actors
  workers  2 × Worker  cpus=1  source of from_actors

order
  not gathered yet: items stay in their shards until gather_sync() or gather_async()

columns
  filter: advantages, obs, rewards"""
    )
    labels, edges = parse(shards.to_mermaid())
    assert [lines[0] for lines in labels.values()] == ["2 × workers", "from_actors", "Advantages", "filter"]
    assert len(edges) == 2
    assert "The graph that ends in filter" in shards.to_svg()
    both = shards.union(from_items([1], num_shards=1))
    assert "union" in both.to_svg()
    assert "columns\n  union: not known before the run" in both.explain()


def test_explain_shows_what_paces_a_replay_group() -> None:
    assert (
        replayed().explain()
        == """\
Union: each line gets its items from the line below it

● Union               driver       async
├─● StoreToReplay     driver       StoreToReplay(shards=replay)  [in_flight=2, paced by replay]
│ ● gather_async      driver       items as they are ready  [num_async=2, on_failure=Restart(3)]
│ ● Advantages        2 × workers  Advantages(scale=ndarray float64(2, 3), shape=max)
│ ● ParallelRollouts  2 × workers  Worker.sample()
└─● UpdatePriorities  driver       UpdatePriorities(to='origin')
  ● TrainOneStep      driver       TrainOneStep(learner=learner, epochs=1)  [in_flight=1]
  ● Replay            driver       replay, batch=32, batches=4  [in_flight=2, paced by replay, on_failure=Ignore()]

actors
  workers  2 × Worker  cpus=1  source of ParallelRollouts
  replay   2 × Keeper  cpus=0  asked by StoreToReplay, asked by Replay, paced: min_size=100,
      samples_per_insert=8 ± at most max(256 rows, 2 inserts)
  learner  1 × Keeper  cpus=0  asked by TrainOneStep

order
  not deterministic: items of gather_async, Union come in the order in which they are ready
  worst lag of ParallelRollouts: 4 items (gather_async: num_async=2 × 2 shards, less the item
      consumed; StoreToReplay in_flight=2)
  worst lag of Replay: 1 sample (Replay in_flight=2)

columns
  gather_async: advantages, obs, rewards
  Replay: advantages, obs, rewards, slots, weights"""
    )


def test_explain_says_where_a_backend_places_the_groups() -> None:
    text = ppo_like().explain(Local())
    assert "on Local(): in this process\n" in text
    assert "  workers  2 × Worker  in this process  source of ParallelRollouts" in text
    assert "cpus" not in text


def test_explain_shows_a_graph_whose_columns_are_wrong_and_says_so() -> None:
    workers = actors(Worker, count=1, name="workers")
    flow = from_actors(workers, "sample").gather_sync().for_each(NeedsReturns())
    assert "columns\n  error: node 'NeedsReturns' (defined at" in flow.explain()
    assert "needs the columns returns," in flow.explain().replace("\n      ", " ")


@dataclass
class NeedsReturns(Operator[Any, Any]):
    """Needs what nobody adds."""

    needs = frozenset({"returns"})


def test_short_values() -> None:
    group = actor(Keeper, name="keeper")
    say = partial(short, name_of=lambda found: f"<{found.name}>")
    assert say({"a": [group, 1.5]}) == "{'a': [<keeper>, 1.5]}"
    assert say((group,)) == "(<keeper>,)"
    assert say(lambda: 0) == "lambda"
    assert say(Keeper.train) == "train"
    assert say(np.float32(2)) == repr(np.float32(2))
    assert say(Batch({"obs": np.zeros((3, 2), np.float32)})) != ""


def test_a_long_value_is_shortened_and_an_own_repr_kept() -> None:
    flow = from_iterable(list).for_each(Advantages(scale="x" * 200))
    assert f"scale='{'x' * 58}…, shape" in flow.explain()
    assert "● by_policy      driver  by_policy('a')" in from_iterable(list).by_policy("a")[0].explain()


def test_clean_keeps_one_line() -> None:
    assert clean("a\n b\t\x00c\ud800é") == "a b \N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}é"


LABEL = r'"((?:[^"<>&%`*$#]|#(?:\d+|quot|lt|gt|amp);|<br/>)*)"'
ENTITIES = {"quot": '"', "lt": "<", "gt": ">", "amp": "&"}


def decoded(label: str) -> str:
    return re.sub(r"#(\w+);", lambda m: ENTITIES[m[1]] if m[1] in ENTITIES else chr(int(m[1])), label)


def parse(text: str) -> tuple[dict[str, list[str]], list[tuple[str, str, str]]]:
    """(label lines of each id, edges as (from, arrow, to)); refuses whatever it does not know."""
    labels: dict[str, list[str]] = {}
    edges: list[tuple[str, str, str]] = []
    first, *lines = text.removesuffix("\n").split("\n")
    assert first == "flowchart LR"
    inside = False
    for line in lines:
        subgraph = re.fullmatch(rf"  subgraph (p\d+)\[{LABEL}\]", line)
        node = re.fullmatch(rf"  (?:  )?(n\d+)\[{LABEL}\]", line) or re.fullmatch(rf"  (g\d+)\[\({LABEL}\)\]", line)
        edge = re.fullmatch(r"  ([npg]\d+) (-->|-\.->)(?:\|[\w ]+\|)? ([npg]\d+)", line)
        if found := subgraph or node:
            assert found[1] not in labels, line
            labels[found[1]] = [decoded(part) for part in found[2].split("<br/>")]
            assert line.startswith("    ") == (inside and not subgraph), line
            inside = inside or bool(subgraph)
        elif edge:
            assert not inside, line
            assert edge[1] in labels, line
            assert edge[3] in labels, line
            edges.append((edge[1], edge[2], edge[3]))
        else:
            assert line == "  end", line
            assert inside, line
            inside = False
    assert not inside
    return labels, edges


def test_mermaid_of_a_chain() -> None:
    assert (
        ppo_like().to_mermaid()
        == """\
flowchart LR
  subgraph p0["2 × workers"]
    n0["ParallelRollouts<br/>Worker.sample()"]
    n1["Advantages<br/>scale=ndarray float64(2, 3), shape=max"]
  end
  n2["gather_sync<br/>rounds in shard order<br/>on_failure=Restart(3)"]
  n3["ConcatBatches<br/>min_steps=400"]
  n4["TrainOneStep<br/>learner=learner, epochs=4<br/>in_flight=1"]
  n5["SendWeights<br/>learner=learner, to=workers"]
  g1[("learner<br/>1 × Keeper")]
  n0 --> n1
  n1 --> n2
  n2 --> n3
  n3 --> n4
  n4 -.->|asks| g1
  n4 --> n5
  n5 -.->|learner| g1
  n5 -.->|to| p0
"""
    )


def test_mermaid_points_at_the_shards_of_a_group_that_is_asked() -> None:
    labels, edges = parse(off_policy().to_mermaid())
    by_label = {lines[0]: key for key, lines in labels.items()}
    dotted = {(a, b) for a, arrow, b in edges if arrow == "-.->"}
    assert (by_label["Same"], by_label["2 × replay"]) in dotted
    assert (by_label["TrainOneStep"], by_label["learner"]) in dotted
    assert (by_label["SendWeights"], by_label["2 × workers"]) in dotted
    assert "-->|not emitted| " in off_policy().to_mermaid()


NASTY = 'Ünïcode "q" <b> & #35; %%{init: {}}%% `c` *x* $$ 表 | ] ) ; end'


def test_a_name_with_every_special_character_comes_through() -> None:
    flow = from_items([1], num_shards=1).gather_sync().for_each(abs, name=NASTY).named("a'\"<")
    labels, _ = parse(flow.to_mermaid())
    name = f"a'\"</{NASTY}"
    assert name in [lines[0] for lines in labels.values()]
    assert name in flow.explain()


@given(flows())
def test_every_graph_can_be_told(flow: Flow[Any]) -> None:
    names = graph.names_of(flow.node)
    tree = flow.explain().split("\n\n")[1].split("\n")
    assert sum("● " in line for line in tree) == len(names)
    labels, edges = parse(flow.to_mermaid())
    assert [labels[f"n{at}"][0] for at in range(len(names))] == [clean(name) for name in names.values()]
    assert sum(arrow == "-->" for _, arrow, _ in edges) == sum(len(node.upstream) for node in names)


def test_a_chain_longer_than_pythons_stack_can_be_drawn() -> None:
    node = from_iterable(list).node
    for _ in range(1500):
        node = graph.Take(upstream=(node,), label="take", where="here:1", n=1)
    flow: Flow[Any] = Flow(node)
    assert flow.explain().count("\n● take-") == 1499
    assert len(parse(flow.to_mermaid())[0]) == 1501
