"""Values are taken apart and put together again, the same, through what a checkpoint can hold."""

from __future__ import annotations

import enum
import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl import Batch, CheckpointError, MultiAgentBatch
from flowrl.checkpoint.encoding import decode, encode
from flowrl.difference import difference
from flowrl.plain import TAG, class_named, from_plain, to_plain
from flowrl.rl.gradient_batch import Gradients


class Colour(enum.Enum):
    """One of two."""

    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    """Two things."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Frozen:
    """Checks its field when it is made, which putting it together again does not."""

    size: int
    parts: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("never of what was saved")


@dataclass(slots=True)
class Slotted:
    """Has no dictionary."""

    value: Any


def there_and_back(value: Any) -> Any:
    """The value after it was a state on disk."""
    encoded = encode(to_plain(value, "it"))
    return from_plain(decode(encoded.tree, dict(encoded.arrays), None))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.fractions(),
    st.complex_numbers(allow_nan=False),
    st.sampled_from(list(Colour)),
)
KEYS = st.one_of(
    st.integers(), st.text(max_size=3), st.booleans(), st.none(), st.tuples(st.integers(), st.text(max_size=2))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(st.sampled_from([TAG, "of", "class", "a"]), inner, max_size=4),
        st.lists(inner, max_size=4).map(lambda items: deque(items, maxlen=7)),
        st.tuples(inner, inner).map(lambda both: Pair(*both)),
        st.tuples(st.integers(0, 9), st.lists(inner, max_size=2)).map(lambda both: Frozen(*both)),
        inner.map(Slotted),
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(VALUES)
def test_nested_values_come_back_with_their_types(value: Any) -> None:
    assert difference(there_and_back(value), value) is None


BATCH = Batch({"obs": np.arange(6.0).reshape(3, 2), "valid": np.array([True, False, True])})


@pytest.mark.parametrize(
    "value",
    [
        {1, "two", (3,)},
        frozenset({1.5}),
        Counter("abba"),
        OrderedDict([("b", 1), ("a", 2)]),
        defaultdict(list, {"a": [1]}),
        BATCH,
        Batch({"rewards": np.ones((2, 3), np.float32)}, time_major=True),
        MultiAgentBatch({"left": BATCH}, env_steps=7),
        Gradients.of(np.arange(3.0), 5),
    ],
)
def test_containers_and_batches_come_back(value: Any) -> None:
    back = there_and_back(value)
    assert type(back) is type(value)
    assert back == value


def test_random_streams_go_on() -> None:
    for bits in (np.random.PCG64, np.random.MT19937, np.random.SFC64):
        generator = np.random.Generator(bits(3))
        generator.normal(size=5)
        again = there_and_back(generator)
        np.testing.assert_array_equal(again.normal(size=9), generator.normal(size=9))
    own = random.Random(4)
    own.random()
    assert there_and_back(own).random() == own.random()
    seeds = np.random.SeedSequence(2**70, spawn_key=(1, 2))
    seeds.spawn(2)
    again = there_and_back(seeds)
    assert again.spawn(1)[0].generate_state(2).tolist() == seeds.spawn(1)[0].generate_state(2).tolist()


def local_class() -> Any:
    @dataclass
    class Inner:
        value: int

    return Inner(1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, object()]}, r"it\['a'\]\[1\] is a builtins.object, which cannot be saved without pickle"),
        ([lambda: 0], r"it\[0\] is a builtins.function"),
        (Pair(1, int), r"it\[1\] is a builtins.type"),
        (Frozen(1, [open]), r"it.parts\[0\] is a builtins.builtin_function_or_method"),
        (local_class(), "is of the class local_class.<locals>.Inner, which cannot be found again by that name"),
        (defaultdict(Fraction), "a defaultdict of .* cannot be saved"),
    ],
)
def test_what_has_no_place_is_named(value: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        to_plain(value, "it")


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({TAG: "data", "class": "os:system", "of": {}}, "'os:system', which is not imported here"),
        ({TAG: "data", "class": "antigravity:Thing", "of": {}}, "'antigravity:Thing', which is not imported here"),
        ({TAG: "data", "class": "subprocess:Popen", "of": {"args": "true"}}, "subprocess.Popen is no data any more"),
        ({TAG: "named", "class": "subprocess:Popen", "of": ["true"]}, "subprocess.Popen is no named any more"),
        ({TAG: "Generator", "of": {"bit_generator": "seed"}}, "a random generator 'seed'"),
        ({TAG: "surprise", "of": 1}, "holds a 'surprise' in a place where there can be none"),
    ],
)
def test_a_state_cannot_name_what_is_run(state: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        from_plain(state)


def test_classes_are_found_only_where_they_are_imported() -> None:
    assert class_named(f"{__name__}:Frozen") is Frozen
    with pytest.raises(CheckpointError, match="import its module first"):
        class_named("no.such.module:Thing")
