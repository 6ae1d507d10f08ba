"""Actors as Ray actors: joins a running Ray, or starts a local one; the only module that imports ray."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from flowrl import process
from flowrl.backends.placement import Placement
from flowrl.backends.protocol import Copy, Died, GroupPlan, Sent
from flowrl.engine.failure import record_of
from flowrl.engine.host import Host
from flowrl.engine.record import FAILED, Record, sealed
from flowrl.errors import ActorDied, FlowError, StartError

MANY = 256  # above so many pending calls ray.wait costs more than completion callbacks
LAST_WORDS = "flowrl:last-words:"  # of an actor, by its id
CONNECT_S = 3.0  # how long an address may take to accept a connection

_held: dict[int, dict[str, float]] = {}  # resources of this process's live runs
_owned_cpus: float | None = None  # of the Ray that this process started, if it did


class RayHost(Host):
    """The host of an actor, as Ray makes it: what it answers travels."""

    def __init__(self, group: str, index: int):
        super().__init__(group, index)
        process.belongs_to_one_actor(_last_words)

    def call(self, message: bytes, *payloads: Any) -> tuple[Any, Any]:
        """The answer to one message."""
        return sealed(*super().call(message, *payloads))

    def next(self) -> tuple[Any, Any]:
        """The answer to a pull."""
        return sealed(*super().next())

    def node_id(self) -> str:
        """The node that this actor lives on; asked where another group is to be colocated."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


class _RayActor:
    """A Ray actor and its cached method options."""

    __slots__ = ("call", "handle", "next")

    def __init__(self, handle: Any):
        self.handle = handle
        self.call = handle.call.options(num_returns=2)
        self.next = handle.next.options(num_returns=2)


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
        self.wait_for_resources_s = wait_for_resources_s
        self._fresh()

    def _fresh(self) -> None:
        self._plans: dict[str, GroupPlan] = {}
        self._actors: dict[tuple[str, int], _RayActor] = {}
        self._node = ""  # the driver's, which tells one Ray from the next
        self._free_cpus = False  # our own Ray is oversubscribed: actors are placed without asking for CPUs
        self._hooked: dict[Sent, Any] = {}  # messages whose completion calls back, with their references
        self._news = threading.Condition()

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
        self._plans = {plan.name: plan for plan in plans}
        need = self.place.needed(plans)
        global _owned_cpus
        if _owned_cpus is not None and not ray.is_initialized():
            _owned_cpus = None  # the user shut it down
        if _owned_cpus is not None and not _held and _lacking(need):
            ray.shutdown()  # nobody uses the one we started, and it is too small
            _owned_cpus = None
        if not ray.is_initialized():
            _owned_cpus = _connect(self.address, need)
        warnings = self._take(need)
        self._node = ray.get_runtime_context().get_node_id()
        return warnings

    def resize(self, plan: GroupPlan) -> list[str]:
        """Sees that a group fits with another number of actors."""
        held, free, plans = _held.pop(id(self), {}), self._free_cpus, {**self._plans, plan.name: plan}
        try:
            warnings = self._take(self.place.needed(list(plans.values())))
        except BaseException:
            _held[id(self)], self._free_cpus = held, free
            raise
        self._plans = plans
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

    def _wait_until_fits(self, need: Mapping[str, float]) -> None:
        until = monotonic() + self.wait_for_resources_s
        while missing := _lacking(need):
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
        import ray

        made = self._actors.get((plan.name, index))
        if made is not None:  # another group wanted to be colocated with it
            return made
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
        strategy = self._strategy(plan, index)
        if strategy is not None:
            options["scheduling_strategy"] = strategy
        actor = _RayActor(ray.remote(RayHost).options(**options).remote(plan.name, index))
        self._actors[(plan.name, index)] = actor
        return actor

    def _strategy(self, plan: GroupPlan, index: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        target = self.place.colocated(plan.name)
        if target is not None:
            other = self._plans[target]
            node = ray.get(self.create(other, index % other.count).handle.node_id.remote())
            return NodeAffinitySchedulingStrategy(node, soft=False)
        return "SPREAD" if self.place.spread(plan.name) else None  # Ray's default packs

    def restart(self, actor: _RayActor, plan: GroupPlan, index: int) -> _RayActor:
        """A new Ray actor. Flows hold the names of actors, so their handles stay valid.

        Ray's own restart would not do: what is sent while it lasts fails at once, and where it is retried its place in
        the order of the actor's calls stays empty, which stops the calls behind it for 30 seconds (Ray 2.60).
        """
        import ray

        ray.kill(actor.handle, no_restart=True)  # one that could not be reached may still be there
        del self._actors[(plan.name, index)]
        return self.create(plan, index)

    def send(self, actor: _RayActor, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        """Submits one actor task.

        Raises:
            FlowError: Ray was shut down meanwhile.
        """
        self._see_that_it_lives()
        return Sent(*actor.call.remote(message, *payloads))

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
        """Waits with ray.wait, or with completion callbacks where many calls are out. Several threads may wait."""
        import ray

        if not sent:
            if timeout_s:
                sleep(timeout_s)
            return []
        here = [one for one in sent if one.record is not None or one.token is None]  # None: taken in by another thread
        if here:
            return here
        if len(sent) > MANY or any(one in self._hooked for one in sent):
            return self._poll_hooked(sent, timeout_s)
        by_ref = {one.token: one for one in sent}
        refs = list(by_ref)
        # Waiting for one and then looking at the rest is cheaper than to look first and then to wait.
        ready, rest = ray.wait(refs, num_returns=1, timeout=timeout_s)
        if ready and rest:
            ready = ready + ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        _fill([by_ref[ref] for ref in ready], ready)
        return [by_ref[ref] for ref in ready]

    def _poll_hooked(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        for one in sent:
            token = one.token
            if one.record is None and token is not None and one not in self._hooked:
                self._hook(one, token)

        def answered() -> list[Sent]:
            return [one for one in sent if one.record is not None or one.token is None]

        with self._news:
            self._news.wait_for(answered, timeout_s)
            return answered()

    def _hook(self, one: Sent, token: Any) -> None:
        def arrived(result: Any) -> None:
            record = _what_came_instead(result) if isinstance(result, BaseException) else result
            with self._news:
                self._hooked.pop(one, None)
                if one.token is not None:  # else another thread has taken it in
                    one.record = record
                self._news.notify_all()

        self._hooked[one] = token
        token._on_completed(arrived)

    def load(self, payload: Any) -> Any:
        """Brings a payload to the driver."""
        import ray

        return ray.get(payload)

    def keep(self, payload: Any) -> Copy | None:
        """Copies a payload into the driver's object store, in a cluster; while the Copy lives it is not evicted there.

        Ray leaves what an actor answers on the actor's node, and can make nothing anew that an actor made.
        """
        import ray

        if sum(node["Alive"] for node in ray.nodes()) < 2:
            return None
        copy = Copy()

        def came(value: Any) -> None:
            if not isinstance(value, BaseException):
                copy.value = value

        payload._on_completed(came)
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

        for key in [key for key, one in self._actors.items() if one is actor]:
            del self._actors[key]
        ray.kill(actor.handle, no_restart=True)

    def close(self) -> None:
        """Gives the resources back to this process's other runs; Ray itself stays."""
        _held.pop(id(self), None)
        self._actors.clear()


def _lacking(need: Mapping[str, float]) -> dict[str, float]:
    """What is free of those resources that do not suffice, less what this process's live runs hold."""
    import ray

    total = ray.cluster_resources()
    free = {name: total.get(name, 0.0) - sum(held.get(name, 0.0) for held in _held.values()) for name in need}
    return {name: free[name] for name, amount in need.items() if amount > free[name] + 1e-9}


def _connect(address: str | None, need: Mapping[str, float]) -> float | None:
    """Joins a Ray (None), or starts a local one (its CPUs)."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    wanted = address or os.environ.get("RAY_ADDRESS")
    if wanted is not None and wanted not in ("local", "auto"):
        _see_that_it_answers(wanted)
        try:
            ray.init(address=wanted, logging_level=logging.ERROR)
        except Exception as error:
            raise StartError(f"no Ray answers at {wanted!r}: {error}") from error
        return None
    if wanted != "local":
        try:
            ray.init(address="auto", logging_level=logging.ERROR)
        except ConnectionError as error:
            if wanted == "auto":
                raise StartError(f"no Ray runs on this machine: {error}") from error
        else:
            return None
    cpus = max(os.cpu_count() or 1, math.ceil(need.get("CPU", 0.0)))
    custom = {name: amount for name, amount in need.items() if name not in ("CPU", "GPU")}
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            resources=custom or None,
            include_dashboard=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:
        raise StartError(f"a local Ray could not be started: {error}") from error
    return float(cpus)


def _see_that_it_answers(address: str) -> None:
    """Ray itself would try for a minute and more."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        number = int(port)
        socket.create_connection((host.strip("[]"), number), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise StartError(
            f"no Ray answers at {address!r}: {error}; give host:port of a running cluster (`ray start --head` prints "
            "it), or leave the address out to start a local Ray"
        ) from error


def _fill(ready: Sequence[Sent], refs: Sequence[Any]) -> None:
    import ray

    try:
        for one, record in zip(ready, ray.get(list(refs)), strict=True):
            one.record = record
    except Exception:
        for one, ref in zip(ready, refs, strict=True):
            try:
                one.record = ray.get(ref)
            except Exception as error:
                one.record = _what_came_instead(error)


def _what_came_instead(error: BaseException) -> Record | Died:
    from ray.exceptions import RayActorError, RayTaskError, WorkerCrashedError

    # A RayTaskError comes from a living actor, also where its cause is the death of one that an argument came from.
    if isinstance(error, RayActorError | WorkerCrashedError) and not isinstance(error, RayTaskError):
        said = _said_last(getattr(error, "actor_id", None))
        return Died(str(error).strip().split("\n")[0] if said is None else said)
    return Record(FAILED, error=record_of(_plainly(error)))


def _last_words(reason: str) -> None:
    """Leaves, in the cluster, why this actor's process is about to end itself."""
    import ray
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(f"{LAST_WORDS}{ray.get_runtime_context().get_actor_id()}", reason)


def _said_last(actor_id: str | None) -> str | None:
    """What an actor whose process has ended left to be said."""
    from ray.experimental import internal_kv

    if actor_id is None:
        return None
    try:
        said = internal_kv._internal_kv_get(f"{LAST_WORDS}{actor_id}")
    except Exception:  # no cluster any more, or another Ray's way
        return None
    return None if said is None else said.decode()


def _plainly(error: BaseException) -> BaseException:
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayTaskError) and isinstance(error, RayActorError):
        return ActorDied("an argument of this call is the answer of an actor that died")
    return error
