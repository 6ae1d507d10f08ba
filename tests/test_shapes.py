"""Values in a few words, whatever they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from flowrl import Batch
from flowrl.shapes import describe


class Talkative:
    """Describes itself, which nobody asked for."""

    def describe(self) -> str:
        raise AssertionError("called")


class Shaped:
    dtype, shape = "float", 3


class Broken(Mapping[str, int]):
    """A mapping that cannot be read."""

    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise OSError("gone")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Batch({"obs": np.zeros((2, 4), np.float32)}), "Batch(2,): obs f32[4]"),
        (np.zeros(3, np.float32), "ndarray float32(3,)"),
        ([1, 2], "list of 2 × int"),
        ({"a": 1}, "dict with a"),
        (Talkative(), "Talkative"),
        (Shaped(), "Shaped"),
        (Broken(), "Broken"),
        (np.ndarray, "type"),
        (logging.getLogger("x"), "Logger"),
    ],
)
def test_a_value_in_a_few_words(value: Any, told: str) -> None:
    assert describe(value) == told
