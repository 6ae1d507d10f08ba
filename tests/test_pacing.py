"""The bounds that a replay group declares."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from flowrl.pacing import Pacing


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"min_size": 0}, "min_size must be at least 1, got 0"),
        ({"item_rows": 1.5}, "item_rows must be an integer of at least 1, got 1.5"),
        ({"max_times_sampled": 0}, "max_times_sampled must be at least 1, got 0"),
        ({"samples_per_insert": float("inf")}, "samples_per_insert must be a finite number, got inf"),
        ({"samples_per_insert": -1.0}, "samples_per_insert must be above 0, got -1.0; None sets no limit"),
        ({"error_buffer": 3.0}, "error_buffer says how far samples_per_insert may be off: set samples_per_insert too"),
        ({"samples_per_insert": 4.0, "max_times_sampled": 3}, "asks for more than max_times_sampled=3 of each row"),
    ],
)
def test_bounds_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Pacing(**settings)


def test_a_sequence_counts_as_its_rows() -> None:
    assert Pacing(item_rows=80).rows_of(32) == 2560


def test_it_needs_no_numpy() -> None:
    code = "import sys\nfrom flowrl.pacing import Pacing\nPacing(5, 2.0)\nprint('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
