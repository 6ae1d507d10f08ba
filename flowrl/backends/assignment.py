"""Which node each actor goes to, by the wishes of `Ray(place=...)`, and where one goes whose node was lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flowrl.backends.placement import Placement
from flowrl.backends.protocol import GroupPlan
from flowrl.errors import StartError

Seat = tuple[str, int]  # an actor: group, index
Amounts = Mapping[str, float]
_ROUNDING = 1e-9


class NoNode(Exception):  # noqa: N818  (caught by the backend)
    """No node has room for an actor and those that are to share its node."""


class Assignment:
    """The node of each actor. Actors that are to share one are a family, and are placed together.

    SPREAD puts a family where the fewest of its group are, PACK where the most are, and first where the most would fit.
    A family without a strategy is packed. An actor on its own of whose group nothing is wished goes where most is left;
    where nothing is wished of any group, Ray itself chooses.
    """

    def __init__(self, place: Placement, plans: Sequence[GroupPlan]):
        self._place = place
        self._plans = {plan.name: plan for plan in plans}
        self._wished = any(place.strategy(plan.name) or place.colocated(plan.name) for plan in plans)
        self._families: dict[Seat, list[Seat]] = {}  # by the one that the others follow
        for plan in plans:
            for index in range(plan.count):
                self._families.setdefault(self._head((plan.name, index)), []).append((plan.name, index))
        self._homes: dict[Seat, str] = {}  # of those that others follow

    def _head(self, seat: Seat) -> Seat:
        group, index = seat
        while (target := self._place.colocated(group)) is not None:
            group, index = target, index % self._plans[target].count
        return group, index

    def begin(self, free: Mapping[str, Amounts]) -> None:
        """Places all. free: what is left on each node that lives, those to be preferred first.

        Raises:
            NoNode: one has no place; says what it needs and what the roomiest node has.
        """
        self._homes.clear()
        if not self._wished:
            return
        left = {node: dict(amounts) for node, amounts in free.items()}
        for head in sorted(self._families, key=lambda head: len(self._family(head)) == 1):  # the larger ones first
            node = self._homes[head] = self._chosen(head, left)
            for what, amount in self._need(head).items():
                left[node][what] = left[node].get(what, 0.0) - amount

    @property
    def plans(self) -> list[GroupPlan]:
        """All groups."""
        return list(self._plans.values())

    def resized(self, plan: GroupPlan) -> Assignment:
        """The same with another number of actors in a group, for which no node is chosen yet.

        Raises:
            StartError: others live where the actors of this group do, so that its number says where.
        """
        others = [name for name in self._plans if self._place.colocated(name) == plan.name]
        if others:
            raise StartError(f"{', '.join(others)} shares the nodes of {plan.name}, so {plan.name} cannot be resized")
        made = Assignment(self._place, [plan if name == plan.name else self._plans[name] for name in self._plans])
        made._homes = {head: node for head, node in self._homes.items() if head in made._families}
        return made

    def count(self, group: str) -> int:
        """How many actors a group has."""
        return self._plans[group].count

    def seat(self, group: str, first: int, free: Mapping[str, Amounts]) -> None:
        """Chooses the nodes of a group's actors from the `first` on. free: what is left on each node, without them.

        Raises:
            NoNode: one has no place.
        """
        left = {node: dict(amounts) for node, amounts in free.items()}
        for index in range(first, self._plans[group].count if self._wished else first):
            seat = (group, index)
            head, alone = self._head(seat), [seat]
            need, home = self._need(head, alone), self._homes.get(head)
            if home is None:
                home = self._homes[head] = self._chosen(head, left, alone)
            elif not _how_often(need, left.get(home, {})):
                raise NoNode(self._why(head, need, {home: left.get(home, {})}, alone))
            for what, amount in need.items():
                left[home][what] = left[home].get(what, 0.0) - amount

    def node_of(self, seat: Seat) -> str | None:
        """Where an actor is to live; None where Ray may choose."""
        return self._homes.get(self._head(seat))

    def shares(self, seat: Seat) -> bool:
        """Whether it must live where others do."""
        return len(self._family(self._head(seat))) > 1

    def again(self, seat: Seat, free: Mapping[str, Amounts]) -> str:
        """The node for one that has died: where it was, or, if that node is lost, a new one for its family.

        It is not left to Ray, which may not know yet that a node is lost.

        Raises:
            NoNode: none has room.
        """
        head = self._head(seat)
        home = self._homes.get(head)
        alone = [seat]
        if home is None:
            return self._chosen(head, free, among=alone)
        if home not in free:
            home = self._homes[head] = self._chosen(head, free)
        elif not _how_often(self._need(head, alone), free[home]):
            raise NoNode(self._why(head, self._need(head, alone), {home: free[home]}, alone))
        return home

    def with_room_for(self, seats: Mapping[Seat, str], free: Mapping[str, Amounts]) -> dict[str, dict[str, float]]:
        """What is left on each node when those that are about to start on it have."""
        left = {node: dict(amounts) for node, amounts in free.items()}
        for seat, node in seats.items():
            for what, amount in self._need(self._head(seat), [seat]).items() if node in left else ():
                left[node][what] = left[node].get(what, 0.0) - amount
        return left

    def _chosen(self, head: Seat, left: Mapping[str, Amounts], among: Sequence[Seat] | None = None) -> str:
        need = self._need(head, among)
        able = {node: _how_often(need, amounts) for node, amounts in left.items()}
        able = {node: times for node, times in able.items() if times}
        if not able:
            raise NoNode(self._why(head, need, left, among))
        group = head[0]
        here = {node: 0 for node in able}
        for (other, _), node in self._homes.items():
            if other == group and node in here:
                here[node] += 1
        order = {node: place for place, node in enumerate(able)}
        strategy = self._place.strategy(group) or ("PACK" if len(self._family(head)) > 1 else None)
        if strategy == "SPREAD":
            return min(able, key=lambda node: (here[node], order[node]))
        if strategy == "PACK":
            return min(able, key=lambda node: (-here[node], -able[node], order[node]))
        return min(able, key=lambda node: (-left[node].get("CPU", 0.0), order[node]))

    def _family(self, head: Seat) -> list[Seat]:
        return self._families.get(head, [head])  # of a group that has grown, one on its own

    def _need(self, head: Seat, among: Sequence[Seat] | None = None) -> dict[str, float]:
        need: dict[str, float] = {}
        for group, _ in among or self._family(head):
            cpus, gpus, resources = self._place.asked(self._plans[group])
            for what, amount in {"CPU": cpus, "GPU": gpus, **resources}.items():
                if amount:
                    need[what] = need.get(what, 0.0) + amount
        return need

    def _why(self, head: Seat, need: Amounts, left: Mapping[str, Amounts], among: Sequence[Seat] | None) -> str:
        names = [f"{group}[{index}]" for group, index in among or self._family(head)]
        who = names[0] if len(names) == 1 else f"{', '.join(names[:4])}{', …' * (len(names) > 4)}, which share a node,"
        rooms = {tuple(f"{what}: {amounts.get(what, 0.0):g}" for what in need): None for amounts in left.values()}
        told = " / ".join(", ".join(room) for room in rooms) or "no node is there"
        wanted = ", ".join(f"{what}: {amount:g}" for what, amount in need.items())
        return f"no node has room for {who} ({wanted} needed; free on the nodes: {told})"


def _how_often(need: Amounts, free: Amounts) -> float:
    """How many times what is needed fits into what is free; infinite where nothing is."""
    return min(
        (math.floor((free.get(what, 0.0) + _ROUNDING) / amount) for what, amount in need.items()), default=math.inf
    )
