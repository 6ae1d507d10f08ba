"""MixInReplay: recent items given again among the new ones."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowrl.numbers import check_finite, check_whole
from flowrl.operator import Context, ItemId, Operator
from flowrl.ref import Ref


@dataclass
class MixInReplay(Operator[Any, Any]):
    """Each item, and behind it on average `proportion` of those kept from before, chosen at random.

    For on-policy learners that stand some staleness (IMPALA with replay, arXiv:1802.01561, section 5.2.2): a learner
    that would wait for workers trains on recent batches again. The last `slots` items are kept, by reference, so the
    data stay in the object store. What comes again has the origins and the version of when it was new.

    proportion: 0.5 gives one old item for every two new ones, 2 gives two for each; counted exactly, not by chance.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"

    slots: int
    proportion: float

    def __post_init__(self) -> None:
        check_whole("slots", self.slots)
        check_finite("proportion", self.proportion)
        if self.proportion < 0:
            raise ValueError(f"proportion must be at least 0, got {self.proportion!r}")

    def open(self) -> None:
        self._kept: list[tuple[Ref[Any], ItemId]] = []
        self._seen = self._replayed = 0
        self._random: random.Random | None = None

    def process(self, value: Ref[Any], ctx: Context) -> Iterable[Any]:
        if self._random is None:
            self._random = random.Random(ctx.seed)
        ctx.emit(value, [ctx.item_id])
        self._seen += bool(self._kept)
        while self._kept and self._replayed + 1 <= self._seen * self.proportion:
            again, source = self._kept[self._random.randrange(len(self._kept))]
            self._replayed += 1
            ctx.metrics.add("replayed")
            ctx.emit(again, [source])
        self._kept.append((value, ctx.item_id))
        del self._kept[: -self.slots]
        return ()

    def get_state(self) -> dict[str, Any]:
        drawn = None if self._random is None else self._random.getstate()
        return {"kept": list(self._kept), "seen": self._seen, "replayed": self._replayed, "random": drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        self._kept, self._seen, self._replayed = list(state["kept"]), state["seen"], state["replayed"]
        if state["random"] is not None:
            self._random = random.Random()
            self._random.setstate(state["random"])
