"""Which Ray is joined: one that does not answer is said within a bound, and keeps nobody from a local one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from flowrl.backends import ray_connection
from flowrl.backends.ray_connection import connect, see_that_it_answers
from flowrl.errors import StartError

SETTINGS = b"\0\0\0\x04\0\0\0\0\0"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a process that hangs: connections are accepted, nothing is said."""
    monkeypatch.setattr(ray_connection, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refused() -> str:
    """An address at which nobody listens any more, as of a Ray whose head was killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def answering() -> Iterator[str]:
    """The address of one that answers as gRPC does, and notes nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(SETTINGS)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)


def found(monkeypatch: pytest.MonkeyPatch, *addresses: str, runs: bool = True) -> None:
    monkeypatch.setattr(ray_connection, "_of_this_machine", lambda: iter([(one, runs) for one in addresses]))
    monkeypatch.setattr(ray_connection, "_start", lambda need: 2.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_an_address_that_says_nothing_is_an_error_in_time(silent: str) -> None:
    began = monotonic()
    with pytest.raises(StartError, match=f"no Ray answers at '{silent}': it did not say a word within 0.1 s; give hos"):
        see_that_it_answers(silent)
    assert monotonic() - began < 5
    with pytest.raises(StartError, match="did not say a word"):
        connect(silent, {})


def test_one_that_answers_is_one(answering: str) -> None:
    see_that_it_answers(answering)


def test_a_ray_that_is_left_over_does_not_keep_from_starting_one(
    silent: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, refused, silent)
    cpus, warnings = connect(None, {"CPU": 2.0})
    assert cpus == 2.0
    assert [warning.split(" does not answer (")[0] for warning in warnings] == [
        f"the Ray that was found at {address}" for address in (refused, silent)
    ]
    assert all("so a local one was started" in warning for warning in warnings)


def test_auto_wants_one_that_answers(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, refused)
    with pytest.raises(StartError, match=f"no Ray runs on this machine: the Ray that was found at {refused} does not"):
        connect("auto", {})
    found(monkeypatch)
    with pytest.raises(StartError, match="no Ray runs on this machine: none was found; start one with `ray start"):
        connect("auto", {})
    assert connect(None, {}) == (2.0, [])


def test_of_what_a_file_alone_knows_nothing_is_said(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, refused, runs=False)
    assert connect(None, {}) == (2.0, [])


def test_the_first_that_answers_is_taken(refused: str, answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, refused, answering)
    assert ray_connection._answering(must=True) == (answering, [])


def test_the_ray_of_a_test_session_answers(ray_session: None) -> None:
    import ray

    see_that_it_answers(ray.get_runtime_context().gcs_address)
    assert (ray.get_runtime_context().gcs_address, True) in list(ray_connection._of_this_machine())
