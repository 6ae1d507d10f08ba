"""References on the driver: joined, deferred, counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from flowrl import Answer, Batch, Context, Info, Operator, Ref


@dataclass
class Plus(Operator[Any, Any]):
    pure: ClassVar[bool] = True
    n: int

    def process(self, value: Batch, ctx: Context) -> Iterable[Batch]:
        yield value.with_columns(x=value["x"] + self.n)


@dataclass
class Twice(Operator[Any, Any]):
    pure: ClassVar[bool] = True

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value
        yield value


def batch(*xs: int) -> Batch:
    return Batch({"x": np.array(xs)})


def test_info_of_values():
    assert Info.of(batch(1, 2)).env_steps == 2
    assert Info.of("text") == Info()
    assert Info.of(np.zeros(4, np.float32)).nbytes == 16


def test_total_adds_steps_and_keeps_the_oldest_version():
    total = Info.total([Info(3, 4, 7, 10, {}, {"a": 3}), Info(1, 1, None, 5), Info(2, 2, 5, 1, {}, {"a": 1, "b": 1})])
    assert total == Info(6, 7, 5, 16, {}, {"a": 4, "b": 1})


def test_concat_joins_where_it_is_fetched():
    ref = Ref.concat([Ref.of(batch(1, 2)), Ref.of(batch(3)).then(Plus(10)), Ref.of(batch(4))])
    assert ref.info.env_steps == 4
    assert ref.get()["x"].tolist() == [1, 2, 13, 4]
    assert ref.then(Plus(100)).get()["x"].tolist() == [101, 102, 113, 104]


def test_concat_of_one_is_the_same_reference():
    ref = Ref.of(batch(1))
    assert Ref.concat([ref]) is ref


def test_concat_of_none_is_refused():
    with pytest.raises(ValueError, match="needs at least one reference, got none"):
        Ref.concat([])


def test_joining_other_types_says_what_they_lack():
    with pytest.raises(
        TypeError, match=r"cannot join items of type int: give the type a static method concat\(items\)"
    ):
        Ref.concat([Ref.of(1), Ref.of(2)]).get()


def test_a_deferred_operator_names_itself_in_errors():
    with pytest.raises(KeyError) as caught:
        Ref.of(Batch({"y": np.array([1])})).then(Plus(1), name="plus-one", where="me.py:3").get()
    assert "in the deferred node 'plus-one', defined at me.py:3" in caught.value.__notes__


def test_a_pure_operator_must_give_one_result():
    with pytest.raises(
        ValueError, match="'Twice' is marked pure, so it must give exactly one result an item; it gave 2"
    ):
        Ref.of(1).then(Twice()).get()


def test_a_reference_is_unchanged_by_then():
    ref = Ref.of(batch(1))
    ref.then(Plus(1))
    assert ref.get()["x"].tolist() == [1]


class Foreign:
    """Has members of the names that batches have, all of them something else."""

    leading = shape = dtype = "x"

    def info(self, text: str) -> None:
        raise AssertionError("called")

    def describe(self, text: str) -> None:
        raise AssertionError("called")

    @property
    def nbytes(self) -> int:
        raise OSError("gone")


class Negative:
    nbytes = -3


@pytest.mark.parametrize("value", [Foreign(), Foreign, logging.getLogger("x"), np.ndarray, Negative(), Batch])
def test_a_foreign_item_counts_nothing(value: Any) -> None:
    assert Info.of(value) == Info()
    assert Ref.of(value).info == Info()


def test_an_answer_takes_whole_numbers_of_any_kind() -> None:
    answer = Answer(1, policy_version=np.int64(3), env_steps=np.int32(0))
    assert (type(answer.policy_version), answer.policy_version) == (int, 3)
    assert (type(answer.env_steps), answer.env_steps) == (int, 0)
    assert Answer(1) == Answer(1, policy_version=None, env_steps=None)


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda: Answer(1, env_steps=-50), ValueError, r"Answer\(env_steps=...\) must be at least 0, got -50"),
        (lambda: Answer(1, env_steps=float("nan")), TypeError, r"\(env_steps=...\) must be a whole number .* got nan"),
        (lambda: Answer(1, env_steps="3"), TypeError, r"\(env_steps=...\) must be a whole number or None, got '3'"),
        (lambda: Answer(1, env_steps=True), TypeError, r"\(env_steps=...\) must be a whole number or None, got True"),
        (lambda: Answer(1, policy_version=1.5), TypeError, r"\(policy_version=...\) must be a whole number .* got 1.5"),
        (
            lambda: Answer(1, metrics=[("a", 1)]),
            TypeError,
            r"Answer\(metrics=...\) must map names to numbers, got",
        ),
        (lambda: Answer(Answer(1)), TypeError, r"Answer\(payload=...\) got an Answer; give its payload"),
    ],
)
def test_an_answer_is_checked_where_it_is_made(make: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        make()
