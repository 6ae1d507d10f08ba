"""From a description to a running engine: names, copies, actors, cursors."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl import graph
from flowrl.backends.protocol import Backend, GroupPlan
from flowrl.checks import check_columns, check_replay, check_selected, pacing_of
from flowrl.engine.aggregation import AsyncAggregateCursor, SyncAggregateCursor
from flowrl.engine.asks import AskCursor
from flowrl.engine.blame import NodePlace
from flowrl.engine.branches import BranchCursor, DuplicateCursor, UnionCursor
from flowrl.engine.call import ActorState
from flowrl.engine.core import Engine
from flowrl.engine.cursors import ApplyCursor, Cursor, IterateCursor, TakeCursor
from flowrl.engine.failure import InNode
from flowrl.engine.gathers import AsyncGatherCursor, GatherCursor, ShardFeed, SyncGatherCursor
from flowrl.engine.host import Start
from flowrl.engine.kept import Keeper
from flowrl.engine.limiter import Limiter
from flowrl.engine.pickling import Handed, copied, own_copy, pickled
from flowrl.engine.replaced import Replacer
from flowrl.engine.replay import ReplayCursor, StoreCursor
from flowrl.engine.revived import Reviver
from flowrl.engine.served import ServedAsyncGatherCursor, ServedSyncGatherCursor
from flowrl.engine.shard import Pipeline
from flowrl.engine.stage import Stage
from flowrl.engine.stats import Accounts
from flowrl.engine.stragglers import TimedSyncGatherCursor
from flowrl.engine.view import NodeView
from flowrl.errors import GraphError
from flowrl.failures import Raise
from flowrl.handles import ActorGroup, Apart
from flowrl.operator import AskOperator, Context, Operator
from flowrl.pacing import Pacing
from flowrl.wiring import check_depth

if TYPE_CHECKING:
    from flowrl.engine.resuming import Resumption


def build(
    root: graph.Node, backend: Backend, seed: int | None, *, one_each: bool = False, resumed: Resumption | None = None
) -> Engine:
    """An engine with its actors started and greeted, ready for its first pull.

    one_each: a single actor of each group, whatever the description says (for `flow.check()`).
    resumed: the checkpoint from which it goes on.
    """
    if root.parallel:
        raise GraphError("a ParallelFlow lives in its shards; gather it (gather_sync, gather_async) before running it")
    check_depth(root)
    names = graph.names_of(root)
    groups = graph.groups_of(root)
    counts = {name: 1 if one_each else group.count for name, group in groups.items()}
    if resumed is not None:
        counts = {name: resumed.count(name, count) for name, count in counts.items()}
    check_columns(root, names)
    check_selected(root, names)
    check_replay(root, names)
    sources = frozenset(graph.source_group(node, groups) for node in names if isinstance(node, graph.Shards))
    accounts = Accounts(list(names.values()), counts, sources, backend.now)
    whole_seed = secrets.randbits(63) if seed is None else seed
    engine = Engine(backend, accounts, whole_seed, graph.why_not_deterministic(root, names) is None)
    engine.described = root, names, groups
    engine.counts = {name: group.count if one_each else counts[name] for name, group in groups.items()}
    if resumed is not None:
        resumed.check(root, names, groups)
    for node, name in names.items():
        engine.places[name] = NodePlace(name, node.where, graph.path_to(node, names))
    for name, group in groups.items():
        engine.states[name] = [ActorState(name, i, group.actor_class, None) for i in range(counts[name])]
        for state in engine.states[name] if resumed is not None else ():
            state.incarnation = resumed.incarnation(name, state.index)  # type: ignore[union-attr]
    builder = _Builder(engine, names, groups, one_each)
    try:
        engine.root = builder.cursor(root)
        engine.cursors = list(builder.cursors.values())
        revivers = builder.revivers()
        _start_actors(engine, groups, builder.pipelines)
        if resumed is not None:
            resumed.restore(engine)
        for reviver in revivers:
            reviver.begin(resumed=resumed is not None)
    except InNode as located:
        failed = located
    except BaseException:
        engine.close()
        raise
    else:
        return engine
    engine.close()
    engine.raise_located(failed)


class _Builder:
    """Makes a cursor for each driver node and a pipeline for each shard."""

    def __init__(
        self, engine: Engine, names: Mapping[graph.Node, str], groups: Mapping[str, ActorGroup[Any]], one_each: bool
    ):
        self.engine, self.names, self.groups, self.one_each = engine, names, groups, one_each
        self.cursors: dict[graph.Node, Cursor] = {}
        self.limiters: dict[str, Limiter] = {}
        self.pipelines: dict[str, dict[str, Pipeline]] = {name: {} for name in groups}

    def cursor(self, root: graph.Node) -> Cursor:
        """The cursor of a driver node; its upstream first."""
        for node in graph.walk(root):
            if not node.parallel:
                self.cursors[node] = self._make(node)
        return self.cursors[root]

    def _make(self, node: graph.Node) -> Cursor:
        name, engine = self.names[node], self.engine
        if isinstance(node, graph.Gather):
            return self._gather(node)
        if isinstance(node, graph.Replay):
            limiter = self._limiter(node, node.group)
            limiter.on_failure = node.on_failure
            return ReplayCursor(name, engine, node, limiter)
        above = [self.cursors[up] for up in node.upstream]
        if isinstance(node, graph.Iterate):
            return IterateCursor(name, engine, node.make)
        if isinstance(node, graph.Apply):
            stage = Stage(name, own_copy(node.op, name, node.where), self._context(node))
            stage.open()
            engine.stages.append(stage)
            self._replace(node, stage.op)
            group = graph.stored_in(node)
            if group is not None:
                return StoreCursor(name, engine, above[0], stage, self._limiter(node, group))
            if isinstance(stage.op, AskOperator):
                cursor = AskCursor(name, engine, above[0], stage)
                cursor.keeper = self._keeper(node, stage.op)
                return cursor
            return ApplyCursor(name, engine, above[0], stage, node.where)
        if isinstance(node, graph.Take):
            return TakeCursor(name, engine, above[0], node.n)
        if isinstance(node, graph.Duplicate):
            return DuplicateCursor(name, engine, above[0], node.max_lag, node.overflow)
        if isinstance(node, graph.Branch):
            assert isinstance(above[0], DuplicateCursor)
            return BranchCursor(name, engine, above[0])
        assert isinstance(node, graph.Unite), node
        return UnionCursor(name, engine, above, node.mode, node.weights, node.emit)

    def revivers(self) -> list[Reviver]:
        """Who decides about the groups whose description says what a death means.

        Raises:
            GraphError: an operator says it too.
        """
        found = []
        for name, group in self.groups.items():
            if group.on_failure is None:
                continue
            said = next((self.names[node] for node in self.names if _decides(node, name, self.groups)), None)
            if said is not None or any(map(self.engine.lives.watches, self.engine.states[name])):
                raise GraphError(
                    f"group {name!r} (described at {group.where}) has on_failure={group.on_failure!r}, but "
                    f"{said or 'an operator'} says what the deaths of its actors mean; say it there"
                )
            if not isinstance(group.on_failure, Raise):
                found.append(Reviver(self.engine, name, group, group.on_failure))
        return found

    def _keeper(self, node: graph.Node, op: AskOperator[Any, Any]) -> Keeper | None:
        kept = op.kept
        if kept is None:
            return None
        states = self.engine.states[graph.full_name(node, kept.group, self.groups)]
        return Keeper(self.engine, self.names[node], states, kept)

    def _replace(self, node: graph.Node, op: Operator[Any, Any]) -> None:
        replaced = op.replaced
        if replaced is not None:
            name = graph.full_name(node, replaced.group, self.groups)
            Replacer(self.engine, self.names[node], name, replaced.on_failure)

    def _context(self, node: graph.Node) -> Context:
        return Context(self.names[node], NodeView(self.engine, self.names[node], node.prefix))

    def _limiter(self, node: graph.Node, group: ActorGroup[Any]) -> Limiter:
        name = graph.full_name(node, group, self.groups)
        limiter = self.limiters.get(name)
        if limiter is None:
            pacing = pacing_of(group)
            if self.one_each:  # one item is wanted, not the wait for many
                pacing = Pacing(item_rows=pacing.item_rows)
            limiter = Limiter(self.engine, name, pacing, self.engine.states[name])
            self.limiters[name] = limiter
        return limiter

    def _gather(self, node: graph.Gather) -> Cursor:
        paths = graph.shard_paths(node.upstream[0])
        source, path = paths[0]
        return self._aggregate(node, source, path) if isinstance(source, graph.Aggregate) else self._shards(node, paths)

    def _shards(self, node: graph.Gather, paths: Sequence[tuple[Any, list[graph.Apply]]]) -> GatherCursor:
        name, engine = self.names[node], self.engine
        feeds: list[ShardFeed] = []
        servers: dict[str, list[ActorState]] = {}  # by the key of the source that they serve
        for number, (source, path) in enumerate(paths):
            group = graph.source_group(source, self.groups)
            key = f"{name}:{number}:{self.names[source]}"
            line = Pipeline(self.names[source], source.method, source.args, self._operators(path), source.takes)
            self.pipelines[group][key] = line
            own = [
                ShardFeed(s, engine.handle(s, name, held=True), key, self.names[source]) for s in engine.states[group]
            ]
            feeds += own
            if source.served_by is not None:
                servers[key] = engine.states[graph.full_name(source, source.served_by, self.groups)]
        if servers:
            return self._served(node, feeds, servers)
        if node.patience is not None:
            return TimedSyncGatherCursor(name, engine, feeds, node.on_failure, node.patience)
        if node.mode == "sync":
            return SyncGatherCursor(name, engine, feeds, node.on_failure)
        return AsyncGatherCursor(name, engine, feeds, node.on_failure, node.num_async)

    def _served(
        self, node: graph.Gather, feeds: list[ShardFeed], servers: Mapping[str, Sequence[ActorState]]
    ) -> GatherCursor:
        name, engine = self.names[node], self.engine
        cursor: ServedSyncGatherCursor | ServedAsyncGatherCursor
        if node.mode == "sync":
            cursor = ServedSyncGatherCursor(name, engine, feeds, node.on_failure)
        else:
            cursor = ServedAsyncGatherCursor(name, engine, feeds, node.on_failure, node.num_async)
        cursor.serve(servers)
        return cursor

    def _aggregate(self, node: graph.Gather, joined: graph.Aggregate, path: list[graph.Apply]) -> Cursor:
        paths = graph.shard_paths(joined.upstream[0])
        inner, before = paths[0]
        above: Any
        if isinstance(inner, graph.Aggregate):
            above = self._aggregate(node, inner, before)
        else:
            above = self._shards(node, paths)
        name, group = self.names[node], graph.full_name(joined, joined.group, self.groups)
        key = f"{name}:{self.names[joined]}"
        operators = self._operators(path)
        self.pipelines[group][key] = Pipeline(
            self.names[joined], "aggregate", (), operators, takes="aggregate", counts=False
        )
        kind = SyncAggregateCursor if node.mode == "sync" else AsyncAggregateCursor
        return kind(
            name, self.engine, above, self.engine.states[group], key, self.names[joined], joined.fan_in,
            node.on_failure, holds=bool(operators),
        )  # fmt: skip

    def _operators(self, path: Sequence[graph.Apply]) -> tuple[tuple[str, Any], ...]:
        # Copies: two sources in one actor may have operators behind their union in common.
        return tuple((self.names[step], own_copy(step.op, self.names[step], step.where)) for step in path)


def _decides(node: graph.Node, name: str, groups: Mapping[str, ActorGroup[Any]]) -> bool:
    """Whether it is this node that says what the deaths of a group's actors mean."""
    if isinstance(node, graph.Gather):
        return any(_lives_in(above, name, groups) for above in graph.walk(node))
    if isinstance(node, graph.Replay):
        return graph.full_name(node, node.group, groups) == name
    if not isinstance(node, graph.Apply) or not hasattr(node.op, "on_failure"):
        return False
    return any(graph.full_name(node, held, groups) == name for held in graph.held_groups(node.op))


def _lives_in(node: graph.Node, name: str, groups: Mapping[str, ActorGroup[Any]]) -> bool:
    """Whether a node's work is a group's actors': the shards of a source, those that serve or join them."""
    if isinstance(node, graph.Shards):
        served = node.served_by is not None and graph.full_name(node, node.served_by, groups) == name
        return served or graph.source_group(node, groups) == name
    return isinstance(node, graph.Aggregate) and graph.full_name(node, node.group, groups) == name


def _start_actors(
    engine: Engine,
    groups: Mapping[str, ActorGroup[Any]],
    pipelines: Mapping[str, Mapping[str, Pipeline]],
) -> None:
    lives = engine.lives
    for name, group in groups.items():
        lives.plans[name] = GroupPlan(name, len(engine.states[name]), group.cpus, group.gpus, dict(group.resources))
        lives.bodies[name] = _start_body(engine, name, group, pipelines[name])
        for state in engine.states[name]:
            state.shards = len(pipelines[name])
    engine.accounts.warnings.extend(engine.backend.open(list(lives.plans.values())))
    lives.bring_up()
    lives.greet_all()
    engine.accounts.begin()


def _start_body(engine: Engine, name: str, group: ActorGroup[Any], pipelines: Mapping[str, Pipeline]) -> Any:
    # One message for all, or one for each: what is held apart must not be copied to every actor.
    differ = len(engine.states[name]) if any(isinstance(arg, Apart) for arg in group.args) else 1
    starts = [Start(group.cls, Apart.given(group.args, i), dict(group.kwargs), dict(pipelines)) for i in range(differ)]
    packed = [(_pickled_start(start, name, group, engine), ()) for start in starts]
    in_process = engine.backend.in_process
    given = group.open_parameters()

    def body(state: ActorState) -> Any:
        values = {
            "index": state.index,
            "count": engine.counts[name],
            "seed": engine.seed_of(name, state.index, 0 if name in engine.replaced else state.incarnation),
            "incarnation": state.incarnation,
        }
        at = state.index if differ > 1 else 0
        made = Handed(copied(starts[at], f"group {name!r}")) if in_process else packed[at]
        filled = {parameter: values[parameter] for parameter in given}
        return made, {**filled, "given": state.given} if state.resumes else filled

    return body


def _pickled_start(start: Start, name: str, group: ActorGroup[Any], engine: Engine) -> bytes:
    # Part by part, so that an error names the node or the group that it stands in.
    pickled((start.cls, start.args, start.kwargs), f"group {name!r} (described at {group.where})")
    for line in start.pipelines.values():
        pickled((line.method, line.args), f"node {line.source!r} (defined at {engine.places[line.source].where})")
        for node, op in line.operators:
            pickled(op, f"node {node!r} (defined at {engine.places[node].where})")
    return pickled(start, f"group {name!r}")
