"""Actors as Ray actors; with ray_*.py beside it, the only modules that import ray."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from flowrl import process
from flowrl.backends.assignment import Assignment, NoNode, Seat
from flowrl.backends.placement import Placement
from flowrl.backends.protocol import Copy, GroupPlan, NoRoom, Sent
from flowrl.backends.ray_answers import Answers, first_line, last_words
from flowrl.backends.ray_connection import connect
from flowrl.backends.ray_resources import free_by_node, lacking, reachable, total_by_node
from flowrl.engine.host import Host
from flowrl.engine.record import sealed
from flowrl.errors import FlowError, PayloadLost, StartError
from flowrl.numbers import check_seconds

SETTLE_S = 10.0  # how long what a dead actor held may take to come free

_held: dict[int, dict[str, float]] = {}  # resources of this process's live runs
_owned_cpus: float | None = None  # of the Ray that this process started, if it did


class RayHost(Host):
    """The host of an actor, as Ray makes it: what it answers travels."""

    def __init__(self, group: str, index: int):
        super().__init__(group, index)
        process.belongs_to_one_actor(last_words)

    def call(self, message: bytes, *payloads: Any) -> tuple[Any, Any]:
        """The answer to one message."""
        return sealed(*super().call(message, *payloads))

    def next(self) -> tuple[Any, Any]:
        """The answer to a pull."""
        return sealed(*super().next())


class _RayActor:
    """A Ray actor and its cached method options."""

    __slots__ = ("call", "handle", "next", "start")

    def __init__(self, handle: Any):
        self.handle = handle
        self.call = handle.call.options(num_returns=2)
        self.next = handle.next.options(num_returns=2)
        self.start: Sent | None = None  # the message that makes its object

    @property
    def is_starting(self) -> bool:
        """Whether nothing was heard of it yet."""
        return self.start is None or (self.start.record is None and self.start.token is not None)


class Ray:
    """Runs a graph's actors on Ray.

    address: of a cluster; by default the Ray of this process, then RAY_ADDRESS, then one that runs on this machine,
        else a local one is started (quietly, without dashboard) and kept until the process ends. "local" always starts
        one.
    place: by group name, `dict(cpus=, gpus=, resources=, strategy="SPREAD" | "PACK", colocate="other group")`.
    runtime_env: Ray's, for every actor.
    wait_for_resources_s: how long to wait for missing resources before failing.

    A Ray that the user started is never shut down.
    """

    in_process = False

    def __init__(
        self,
        address: str | None = None,
        *,
        place: Mapping[str, Mapping[str, Any]] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        wait_for_resources_s: float = 0,
    ):
        self.address = address
        self.place = Placement(place)
        self.runtime_env = dict(runtime_env) if runtime_env else None
        check_seconds("wait_for_resources_s", wait_for_resources_s, may_be_0=True)
        self.wait_for_resources_s = wait_for_resources_s
        self._fresh()

    def _fresh(self) -> None:
        self._nodes = Assignment(self.place, ())
        self._starting: dict[Seat, str] = {}  # actors that were started again on these nodes
        self._actors: dict[tuple[str, int], _RayActor] = {}
        self._node = ""  # the driver's, which tells one Ray from the next
        self._free_cpus = False  # our own Ray is oversubscribed: actors are placed without asking for CPUs
        self._answers = Answers()

    def for_one_run(self) -> Ray:
        """The same configuration, for a run of its own."""
        session = object.__new__(type(self))
        session.__dict__.update(self.__dict__)
        session._fresh()
        return session

    def __repr__(self) -> str:
        return "Ray()" if self.address is None else f"Ray({self.address!r})"

    def describe(self) -> str:
        """A few words for explain()."""
        return "Ray" if self.address is None else f"Ray at {self.address}"

    def placement(self, plan: GroupPlan) -> str:
        """Where a group will run, and with what."""
        return f"Ray actor, {self.place.describe(plan)}"

    def open(self, plans: Sequence[GroupPlan]) -> list[str]:
        """Joins or starts Ray and sees that the plans fit."""
        import ray

        self.place.check(plans)
        self._nodes = Assignment(self.place, plans)
        need = self.place.needed(plans)
        global _owned_cpus
        if _owned_cpus is not None and not ray.is_initialized():
            _owned_cpus = None  # the user shut it down
        if _owned_cpus is not None and not _held and lacking(need, _held.values()):
            ray.shutdown()  # nobody uses the one we started, and it is too small
            _owned_cpus = None
        warnings: list[str] = []
        if not ray.is_initialized():
            _owned_cpus, warnings = connect(self.address, need)
        warnings += self._take(need)
        if _owned_cpus is None:
            self._assign(plans)
        self._node = ray.get_runtime_context().get_node_id()
        return warnings

    def resize(self, plan: GroupPlan) -> list[str]:
        """Sees that a group fits with another number of actors, and chooses the nodes of those that are new."""
        before, nodes = self._nodes, self._nodes.resized(plan)
        need, first = self.place.needed(nodes.plans), before.count(plan.name)
        if plan.count <= first:
            self._nodes, _held[id(self)] = nodes, need
            return []
        held, free_cpus = _held.pop(id(self), {}), self._free_cpus
        try:
            warnings = self._take(need)
            if _owned_cpus is None:
                nodes.seat(plan.name, first, self._left())
        except BaseException as error:
            _held[id(self)], self._free_cpus = held, free_cpus
            if isinstance(error, NoNode):
                raise StartError(f"{error}; use fewer or smaller actors, or add a node") from None
            raise
        self._nodes = nodes
        return warnings

    def _take(self, need: Mapping[str, float]) -> list[str]:
        """Sees that what is needed is free, and notes that this run holds it."""
        warnings: list[str] = []
        asked = dict(need)
        if _owned_cpus is not None:
            wanted = need.get("CPU", 0.0) + sum(held.get("CPU", 0.0) for held in _held.values())
            cores = os.cpu_count() or 1
            self._free_cpus = wanted > _owned_cpus
            if wanted > cores:
                warnings.append(f"oversubscribed: the runs ask for {wanted:g} CPUs and this machine has {cores}")
            asked.pop("CPU", None)
        self._wait_until_fits(asked)
        _held[id(self)] = dict(need)
        return warnings

    def _assign(self, plans: Sequence[GroupPlan]) -> None:
        """Chooses the nodes by what is free; by what there is, where that view lags behind those who have just gone."""
        try:
            self._nodes.begin(free_by_node())
        except NoNode:
            try:
                self._nodes.begin(total_by_node())
            except NoNode as full:
                raise StartError(f"{full}; use smaller actors, colocate fewer, or add a larger node") from None

    def _wait_until_fits(self, need: Mapping[str, float]) -> None:
        until = monotonic() + self.wait_for_resources_s
        while missing := lacking(need, _held.values()):
            left = until - monotonic()
            if left <= 0:
                told = ", ".join(f"{name}: {need[name]:g} needed, {free:g} free" for name, free in missing.items())
                ours = " beside this process's other runs (close them first)" if _held else ""
                raise StartError(
                    f"the cluster lacks resources{ours} ({told}); use fewer or smaller actors, add nodes, "
                    "or wait with Ray(wait_for_resources_s=...)"
                )
            sleep(min(0.5, left))

    def create(self, plan: GroupPlan, index: int) -> _RayActor:
        """Begins to start one Ray actor."""
        actor = self._actors[(plan.name, index)] = self._started(plan, index, self._nodes.node_of((plan.name, index)))
        return actor

    def _started(self, plan: GroupPlan, index: int, node: str | None) -> _RayActor:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cpus, gpus, resources = self.place.asked(plan)
        options: dict[str, Any] = {
            "num_cpus": 0 if self._free_cpus else cpus,
            "num_gpus": gpus,
            "max_restarts": 0,
            "enable_task_events": False,
        }
        if resources:
            options["resources"] = resources
        if self.runtime_env:
            options["runtime_env"] = self.runtime_env
        if node is not None:
            soft = not self._nodes.shares((plan.name, index))  # then another will do, if this one is full by now
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft, _spill_on_unavailable=soft)
        return _RayActor(ray.remote(RayHost).options(**options).remote(plan.name, index))

    def restart(self, actor: _RayActor, plan: GroupPlan, index: int) -> _RayActor:
        """A new Ray actor. Flows hold the names of actors, so their handles stay valid.

        Ray's own restart would not do: what is sent while it lasts fails at once, and where it is retried its place in
        the order of the actor's calls stays empty, which stops the calls behind it for 30 seconds (Ray 2.60).
        """
        import ray

        ray.kill(actor.handle, no_restart=True)  # one that could not be reached may still be there
        self._starting.pop((plan.name, index), None)
        node = None if self._free_cpus else self._node_again((plan.name, index))
        self._actors[(plan.name, index)] = made = self._started(plan, index, node)
        if node is not None:
            self._starting[(plan.name, index)] = node
        return made

    def _node_again(self, seat: Seat) -> str:
        """The node for an actor that has died.

        Raises:
            NoRoom: none has room now.
        """
        try:
            return self._nodes.again(seat, self._left())
        except NoNode as full:
            raise NoRoom(str(full), SETTLE_S + self.wait_for_resources_s) from None

    def _left(self) -> dict[str, dict[str, float]]:
        """What is left on each node that can be reached."""
        free = free_by_node()
        there = reachable(free)
        # The cluster may not know yet what those take that were started a moment ago, or may know it already.
        self._starting = {one: at for one, at in self._starting.items() if self._actors[one].is_starting}
        return self._nodes.with_room_for(self._starting, {node: free[node] for node in free if node in there})

    def send(self, actor: _RayActor, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        """Submits one actor task.

        Raises:
            FlowError: Ray was shut down meanwhile.
        """
        self._see_that_it_lives()
        sent = Sent(*actor.call.remote(message, *payloads))
        if start:
            actor.start = sent
        return sent

    def pull(self, actor: _RayActor) -> Sent:
        """Submits one actor task without arguments, which is some 60 µs cheaper.

        It needs no incarnation: after a death another Ray actor stands behind the handle.

        Raises:
            FlowError: Ray was shut down meanwhile.
        """
        self._see_that_it_lives()
        return Sent(*actor.next.remote())

    def _see_that_it_lives(self) -> None:
        import ray

        if not ray.is_initialized():
            raise FlowError("the Ray that this run's actors lived in was shut down; start another run")

    def gone(self) -> bool:
        """Whether the Ray of this run has been shut down; a message would start another."""
        import ray

        return not ray.is_initialized() or ray.get_runtime_context().get_node_id() != self._node

    def poll(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        """Those that are answered. Several threads may wait."""
        return self._answers.wait(sent, timeout_s)

    def load(self, payload: Any) -> Any:
        """Brings a payload to the driver."""
        import ray
        from ray.exceptions import ObjectLostError

        try:
            return ray.get(payload)
        except ObjectLostError as error:
            raise PayloadLost(f"a value was lost with the node that held it: {first_line(error)}") from error

    def copy(self, payload: Any) -> Copy:
        """Has Ray bring it to this node, where what is held is not evicted; Ray finds it here if its node is lost."""
        copy = Copy()

        def arrived(result: Any) -> None:
            if not isinstance(result, BaseException):
                copy.held, copy.there = result, True

        payload._on_completed(arrived)
        return copy

    def store(self, value: Any) -> Any:
        """A payload of the driver's own, in the object store."""
        import ray

        return ray.put(value)

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return monotonic()

    def kill(self, actor: _RayActor) -> None:
        """Ends the actor's process."""
        import ray

        for seat in [seat for seat, one in self._actors.items() if one is actor]:
            del self._actors[seat]
            self._starting.pop(seat, None)
        ray.kill(actor.handle, no_restart=True)

    def close(self) -> None:
        """Gives the resources back to this process's other runs; Ray itself stays."""
        _held.pop(id(self), None)
        self._actors.clear()
