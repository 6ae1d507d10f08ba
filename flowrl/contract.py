"""The operator contract: what an engine expects of every operator, checked on a few items."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle

from flowrl.batch import Batch
from flowrl.difference import difference
from flowrl.engine.failure import InNode
from flowrl.engine.stage import Stage
from flowrl.engine.transport import pack, unpack
from flowrl.errors import add_note, text_of
from flowrl.handles import ActorHandle
from flowrl.operator import AskOperator, Context, Operator
from flowrl.ref import Ref


def check_operator(op: Operator[Any, Any], items: Iterable[Any], *, ctx: Context | None = None) -> None:
    """Passes if an operator keeps the contract on these items, whose values it gets (or, if it wants them, references).

    1. It pickles, its repr is a label, and a copy has the same one. A label is one line without memory addresses, and
       names the class unless the class writes its own.
    2. Its fields are configuration: a run changes none, and adds only underscore names.
    3. Saved after any item, with `get_state`, and restored into a fresh copy with `set_state`, it gives the same rest,
       `finish` included; saving and restoring disturb nobody.
    4. `pure`: exactly one result an item, from the item alone, and nothing from `finish`. `adds`: Batches that come out
       have these columns. `hands_on`: no other results than the item itself.
    5. `close` may be called twice.

    Results are compared element by element; NaN equals NaN. Items arrive as from an actor, with read-only arrays, and
    come from two sources in turn. Of an AskOperator, whose work needs actors, 1, 2 and 5 are checked and that its state
    can be restored.

    ctx: what the operator is given, where it needs more than a plain Context.

    Raises:
        AssertionError: names the operator, the step and the difference.
    """
    if not isinstance(op, Operator):
        raise AssertionError(f"{op!r} is no Operator")
    _check_label(op)
    before = _Configuration(op)
    if isinstance(op, AskOperator):
        _check_asking(op, ctx)
    else:
        packed = [pack(item.get() if isinstance(item, Ref) else item) for item in items]
        _check_restoring(op, packed, ctx)
        if op.pure:
            _check_pure(op, packed, ctx)
    before.check(op, "the operator that was checked")


class _Trial:
    """A fresh copy of an operator at work."""

    def __init__(self, op: Operator[Any, Any], ctx: Context | None):
        self.op: Operator[Any, Any] = _copy_of(op)
        self.label = repr(op)
        self.configuration = _Configuration(self.op)
        context = Context(type(op).__name__) if ctx is None else ctx
        self.stage = Stage(type(op).__name__, self.op, context)
        self.stage.open()

    def push(self, packed: Any, number: int) -> list[Any]:
        """The results for item `number`."""
        value = unpack(packed)
        given = Ref.of(value) if self.op.wants == "reference" else value
        self.stage.number = number  # a restored copy goes on counting where the saved one stood
        try:
            results = _values(self.stage.push(given, (ActorHandle("source", number % 2),), number // 2))
        except InNode as located:
            raise _unwrapped(located, self.label, f"item {number}") from located.__cause__
        if self.op.hands_on and any(result is not value for result in results):
            raise AssertionError(f"{self.label} hands its items on, but item {number} came out as another object")
        columns = frozenset(self.op.adds)
        for result in results:
            if isinstance(result, Batch) and not columns <= set(result):
                lacking = ", ".join(sorted(columns - set(result)))
                raise AssertionError(f"{self.label} adds {lacking}, but the result of item {number} lacks that")
        return results

    def rest(self, packed: Sequence[Any], first: int) -> list[list[Any]]:
        """The results of each item from `first` on, and last those of finish; then it is closed, twice."""
        found = [self.push(item, number) for number, item in enumerate(packed[first:], first)]
        try:
            found.append(_values(self.stage.finish()))
        except InNode as located:
            raise _unwrapped(located, self.label, "finish") from located.__cause__
        self.op.close()
        self.op.close()
        self.configuration.check(self.op, "a run")
        return found


def _check_restoring(op: Operator[Any, Any], packed: Sequence[Any], ctx: Context | None) -> None:
    whole, end = _Trial(op, ctx).rest(packed, 0), len(packed)
    saved = _Trial(op, ctx)
    for step in range(end + 1):
        if step:
            found = saved.push(packed[step - 1], step - 1)
            _compare(op, [found], [whole[step - 1]], step - 1, f"after its state was saved {step} times")
        state = _state_of(saved.op, step)
        restored = _Trial(op, ctx)
        restored.op.set_state(state)
        rest = restored.rest(packed, step)
        _compare(op, rest, whole[step:], step, f"restored from the state after {step} of {end} items", end)
    _compare(op, saved.rest(packed, end), whole[-1:], end, "after copies of it were restored and run", end)


def _check_pure(op: Operator[Any, Any], packed: Sequence[Any], ctx: Context | None) -> None:
    together = _Trial(op, ctx).rest(packed, 0)
    for number, results in enumerate(together[:-1]):
        if len(results) != 1:
            raise AssertionError(f"{op!r} is marked pure, but gave {len(results)} results for item {number}, not one")
        alone = _Trial(op, ctx).push(packed[number], number)
        _compare(op, [alone], [results], number, "given this item alone, though it is marked pure")
    if together[-1]:
        raise AssertionError(f"{op!r} is marked pure, but finish gave {len(together[-1])} results")


def _check_asking(op: AskOperator[Any, Any], ctx: Context | None) -> None:
    if isinstance(op.calls_in_flight, bool) or op.calls_in_flight < 1:
        raise AssertionError(f"{op!r} has calls_in_flight={op.calls_in_flight!r}; it must be at least 1")
    trial = _Trial(op, ctx)
    state = _state_of(trial.op, 0)
    other = _Trial(op, ctx)
    other.op.set_state(state)
    wrong = difference(_state_of(other.op, 0), state)
    if wrong is not None:
        raise AssertionError(f"{op!r}: the state that was restored is another one afterwards: {wrong}")
    other.rest((), 0)


def _check_label(op: Operator[Any, Any]) -> None:
    label = repr(op)
    kind = type(op)
    owner = next(base for base in kind.__mro__ if "__repr__" in vars(base))
    generated = hasattr(owner.__repr__, "__wrapped__")  # what @dataclass makes
    if owner is object or " at 0x" in label:
        raise AssertionError(f"the repr of {kind.__name__} is its label, and so must not hold an address: {label}")
    if not label.strip() or "\n" in label:
        raise AssertionError(f"the repr of {kind.__name__} is its label, and so must be one line: {label!r}")
    if generated and kind.__name__ not in label:
        raise AssertionError(
            f"the repr of {kind.__name__} does not name it: {label}; decorate the class with @dataclass"
        )
    again = repr(_copy_of(op))
    if again != label:
        raise AssertionError(f"{label} is labelled {again} after pickling")


class _Configuration:
    """An operator's fields as they were, to see that a run leaves them alone."""

    def __init__(self, op: Operator[Any, Any]):
        self.names = [entry.name for entry in dataclasses.fields(op)]
        self.values = {name: getattr(op, name, None) for name in self.names}
        self.copies = {name: cloudpickle.loads(cloudpickle.dumps(value, 5)) for name, value in self.values.items()}

    def check(self, op: Operator[Any, Any], who: str) -> None:
        """Fields are the same, and other attributes have underscore names."""
        for name, value in self.values.items():
            now = getattr(op, name, None)
            wrong = difference(now, self.copies[name]) if now is value else difference(now, value)
            if wrong is not None:
                raise AssertionError(f"{op!r}: {who} changed the field {name!r}, which is configuration: {wrong}")
        added = [name for name in vars(op) if name not in self.names and not name.startswith("_")]
        if added:
            raise AssertionError(
                f"{op!r}: {who} added {', '.join(added)}; run state has underscore names, made in open()"
            )


def _compare(op: Operator[Any, Any], found: Any, wanted: Any, first: int, when: str, end: int = -1) -> None:
    for at, (ours, theirs) in enumerate(zip(found, wanted, strict=True), first):
        wrong = difference(ours, theirs, "results")
        if wrong is not None:
            raise AssertionError(f"{op!r}, {when}, differs at {'finish' if at == end else f'item {at}'}: {wrong}")


def _copy_of(op: Operator[Any, Any]) -> Any:
    try:
        return cloudpickle.loads(cloudpickle.dumps(op, 5))
    except Exception as error:
        raise AssertionError(f"{op!r} cannot be pickled: {type(error).__name__}: {text_of(error)}") from error


def _state_of(op: Operator[Any, Any], step: int) -> Any:
    state = op.get_state()
    if not isinstance(state, dict):
        raise AssertionError(f"{op!r}: get_state after {step} items gave a {type(state).__name__}, not a dict")
    try:
        cloudpickle.dumps(state, 5)
    except Exception as error:
        raise AssertionError(f"{op!r}: the state after {step} items cannot be pickled: {text_of(error)}") from error
    return copy.deepcopy(state)


def _values(results: Sequence[Any]) -> list[Any]:
    return [value.get() if isinstance(value, Ref) else value for value, _, _ in results]


def _unwrapped(located: InNode, label: str, where: str) -> BaseException:
    error = located.__cause__
    assert error is not None
    add_note(error, f"flowrl.testing.check_operator: {label}, {where}")
    return error
