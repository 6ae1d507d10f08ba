"""Where each group is to run, and with what: the wishes of `Ray(place=...)` over what the groups themselves say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.backends.protocol import GroupPlan
from flowrl.errors import StartError

_KEYS = ("cpus", "gpus", "resources", "strategy", "colocate")
_STRATEGIES = ("SPREAD", "PACK")


class Placement:
    """The wishes by group.

    Raises:
        ValueError: a wish with an unknown key, or a strategy that is none.
    """

    def __init__(self, place: Mapping[str, Mapping[str, Any]] | None):
        self._wishes = {group: dict(wish) for group, wish in (place or {}).items()}
        for group, wish in self._wishes.items():
            unknown = set(wish) - set(_KEYS)
            if unknown:
                raise ValueError(
                    f"place[{group!r}] has unknown keys {', '.join(sorted(unknown))}; known are {', '.join(_KEYS)}"
                )
            if wish.get("strategy", "PACK") not in _STRATEGIES:
                raise ValueError(
                    f"place[{group!r}]: strategy must be one of {', '.join(_STRATEGIES)}, got {wish['strategy']!r}"
                )

    def check(self, plans: Sequence[GroupPlan]) -> None:
        """Compares the wishes with the groups that there are.

        Raises:
            StartError: a wish for a group that the graph does not have, or groups colocated in a circle.
        """
        names = {plan.name for plan in plans}
        for group in self._wishes:
            seen = [group]
            while (target := self.colocated(seen[-1])) is not None:
                if target in seen:
                    raise StartError(f"place colocates in a circle: {' → '.join([*seen, target])}")
                seen.append(target)
            for name in seen:
                if name not in names:
                    raise StartError(f"place names group {name!r}; this graph has {', '.join(sorted(names)) or 'none'}")

    def colocated(self, group: str) -> str | None:
        """The group whose nodes it is to share."""
        return self._wishes.get(group, {}).get("colocate")

    def strategy(self, group: str) -> str | None:
        """How its actors are to be distributed over the nodes: SPREAD, PACK, or as it comes."""
        return self._wishes.get(group, {}).get("strategy")

    def asked(self, plan: GroupPlan) -> tuple[float, float, dict[str, float]]:
        """CPUs, GPUs and custom resources of one actor."""
        wish = self._wishes.get(plan.name, {})
        cpus = float(wish.get("cpus", plan.cpus))
        gpus = float(wish.get("gpus", plan.gpus))
        return cpus, gpus, {**plan.resources, **wish.get("resources", {})}

    def needed(self, plans: Sequence[GroupPlan]) -> dict[str, float]:
        """What all actors need together, by resource."""
        need: dict[str, float] = {}
        for plan in plans:
            cpus, gpus, resources = self.asked(plan)
            for name, amount in {"CPU": cpus, "GPU": gpus, **resources}.items():
                if amount:
                    need[name] = need.get(name, 0.0) + amount * plan.count
        return need

    def describe(self, plan: GroupPlan) -> str:
        """In words, for explain()."""
        cpus, gpus, resources = self.asked(plan)
        parts = [f"cpus={cpus:g}"]
        if gpus:
            parts.append(f"gpus={gpus:g}")
        parts += [f"{name}={amount:g}" for name, amount in resources.items()]
        wish = self._wishes.get(plan.name, {})
        if "strategy" in wish:
            parts.append(str(wish["strategy"]).lower())
        if "colocate" in wish:
            parts.append(f"on the node of {wish['colocate']}")
        return ", ".join(parts)
