"""States come back as they were, or are refused by their place."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from flowrl import CheckpointError
from flowrl.checkpoint import CheckpointWriter, Pickled, file_name, read_manifest, read_state, write_state
from flowrl.checkpoint.storage import folder
from tests.checkpoint.states import STATES, same


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state=STATES)
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    pytest.importorskip("fsspec")
    directory = "memory://states"
    entry = write_state(directory, "learner", state)
    assert same(read_state(directory, "learner", entry, trust_pickles=True), state)


def test_the_state_of_a_generator_goes_on_with_its_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rng.random(5)
    entry = write_state(tmp_path, "rng", rng.bit_generator.state)
    expected = rng.random(4)
    other = np.random.default_rng()
    other.bit_generator.state = read_state(tmp_path, "rng", entry)
    assert np.array_equal(other.random(4), expected)


def test_arrays_of_a_state_that_was_read_may_be_written_to(tmp_path: Path) -> None:
    state = {"a": np.arange(3), "b": np.asfortranarray(np.ones((2, 3))), "c": np.ones(2, np.complex128), "d": b"xy"}
    read = read_state(tmp_path, "s", write_state(tmp_path, "s", state))
    for name in "abc":
        read[name][...] = 0
        assert not read[name].any()


def test_a_pickle_lies_in_a_file_of_its_own_and_is_read_only_if_trusted(tmp_path: Path) -> None:
    state = {"envs": Pickled(b"first"), "more": [Pickled(b""), Pickled(b"second")]}
    entry = write_state(tmp_path, "workers[0]", state)
    assert [*entry["pickles"]] == ["workers[0].pickle"]
    assert (tmp_path / "workers[0].pickle").read_bytes() == b"firstsecond"
    assert b"first" not in (tmp_path / "workers[0].json").read_bytes()
    assert read_state(tmp_path, "workers[0]", entry, trust_pickles=True) == state
    withheld = read_state(tmp_path, "workers[0]", entry)
    assert withheld == {"envs": Pickled(None), "more": [Pickled(None), Pickled(None)]}
    again = write_state(tmp_path, "again", withheld)
    assert "pickles" not in again
    assert read_state(tmp_path, "again", again) == withheld


class Odd(dict):  # type: ignore[type-arg]
    pass


def _itself() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, r"state\['a'\]\[0\] is a builtins.set, which has no place in a checkpoint"),
        (Odd(), r"state\['a'\]\[0\] is a tests.checkpoint.test_states.Odd"),
        (OrderedDict(), r"is a collections.OrderedDict"),
        (np.array([object()]), r"state\['a'\]\[0\] is an array of object.*objects as a list"),
        (np.zeros(2, [("x", "f4")]), r"is an array of \[\('x', '<f4'\)\].*each field of records as an array"),
        (np.ma.masked_array([1]), r"is a numpy.ma.*MaskedArray"),
        (np.zeros(1, "S2000000"), r"2,000,000 bytes an entry"),
        (_itself(), r"is nested more than 100 deep, or contains itself"),
        (lambda: 0, r"is a builtins.function"),
    ],
)
def test_what_has_no_place_is_refused_by_where_it_is(tmp_path: Path, value: Any, said: str) -> None:
    with pytest.raises(CheckpointError, match=f"(?s)the state of 'w' cannot be saved: .*{said}"):
        write_state(tmp_path, "w", {"a": [value]})
    assert not [*tmp_path.iterdir()]


def test_names_of_any_kind_become_names_of_files() -> None:
    assert file_name("workers[3]") == "workers[3]"
    assert file_name("a/b") == "a%2Fb"
    assert file_name("../x") == "%2E.%2Fx"
    assert file_name("é") == "%C3%A9"
    long = {file_name("a" * 200), file_name("a" * 201), file_name("")}
    assert len(long) == 3
    assert all(0 < len(name) <= 150 for name in long)


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_a_checkpoint_is_written_read_and_replaced(tmp_path: Path, scheme: str) -> None:
    pytest.importorskip("fsspec")
    path = f"{scheme}{tmp_path}/checkpoint"
    for step in range(3):
        with CheckpointWriter(path) as writer:
            learner = write_state(writer.directory, "learner", {"weights": np.full(3, step)})
            worker = write_state(writer.directory, "workers[0]", {"step": (step,)})
            writer.commit({"actors": {"learner": [learner], "workers": [worker]}, "step": step})
        manifest = read_manifest(path)
        assert manifest.keys() == {"actors", "step", "directory"}
        assert manifest["step"] == step
        directory = manifest["directory"]
        assert same(read_state(directory, "learner", manifest["actors"]["learner"][0]), {"weights": np.full(3, step)})
        assert read_state(directory, "workers[0]", manifest["actors"]["workers"][0]) == {"step": (step,)}
    if not scheme:
        assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_a_url_that_went_through_pathlib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="is what pathlib makes of a URL: give it as a string, s3://bucket/run"):
        CheckpointWriter(Path("s3://bucket/run"))
    assert not list(tmp_path.iterdir())
    for plain in ("c:/run", "no-scheme:/run", "s3:"):
        assert str(folder(plain)) == plain
    (tmp_path / "s3:").mkdir()
    assert str(folder("s3:/run")) == "s3:/run"  # there is such a directory here


def test_file_urls_are_directories(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with CheckpointWriter(f"file://{tmp_path}/c") as writer:
        writer.commit({"x": 1})
    assert read_manifest(tmp_path / "c") == {"x": 1, "directory": str(tmp_path / "c")}
