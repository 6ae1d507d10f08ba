"""Which Ray a process joins, whether that answers, and the local one that is started where there is none."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping

from flowrl.errors import StartError

CONNECT_S = 3.0  # how long an address may take to accept a connection
ANSWER_S = 10.0  # and then to say a first word: a busy head may need a while

# As it is imported into a notebook without ipywidgets, Ray asks for them; nothing of ours shows any.
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)

# How every HTTP/2 client begins, and so every gRPC client: its preface and an empty SETTINGS frame (RFC 9113, 3.4).
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


def connect(address: str | None, need: Mapping[str, float]) -> tuple[float | None, list[str]]:
    """Joins a Ray or starts a local one: the CPUs of the one that was started (None: joined), and warnings.

    address: as of `flowrl.Ray`. need: what a local one must have, by resource.

    Raises:
        StartError: none answers at the address, or a local one could not be started.
    """
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    wanted = address or os.environ.get("RAY_ADDRESS")
    warnings: list[str] = []
    if wanted is not None and wanted not in ("local", "auto"):
        see_that_it_answers(wanted)
        joined: str | None = wanted
    elif wanted == "local":
        joined = None
    else:
        joined, warnings = _answering(must=wanted == "auto")
    if joined is None:
        return _start(need), warnings
    try:
        ray.init(address=joined, logging_level=logging.ERROR)
    except Exception as error:
        raise StartError(f"no Ray answers at {joined!r}: {error}") from error
    return None, warnings


def see_that_it_answers(address: str) -> None:
    """Nothing, if something that speaks gRPC answers there. Ray itself would try for a minute and more.

    Raises:
        StartError: nothing accepts a connection, or nothing is said.
    """
    if (why := _why_silent(address)) is not None:
        raise StartError(
            f"no Ray answers at {address!r}: {why}; give host:port of a running cluster (`ray start --head` prints "
            "it), or leave the address out to start a local Ray"
        )


def _why_silent(address: str) -> str | None:
    """What is wrong with an address, None where it answers. A process that hangs accepts connections all the same."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        return str(error)
    try:
        with connection:
            connection.sendall(_HTTP2_GREETING)
            connection.settimeout(ANSWER_S)
            connection.recv(1)  # also a connection that is closed, as by a server that wants TLS, is an answer
    except TimeoutError:
        return f"it did not say a word within {ANSWER_S:g} s"
    except OSError:  # reset: closed all the same
        pass
    return None


def _answering(*, must: bool) -> tuple[str | None, list[str]]:
    """The Ray of this machine that answers, if one does, and what there is to be said of those that do not.

    Raises:
        StartError: none does and one must.
    """
    silent: list[str] = []
    for found, runs in _of_this_machine():
        why = _why_silent(found)
        if why is None:
            return found, []
        if runs:
            silent.append(f"the Ray that was found at {found} does not answer ({why})")
    if must:
        told = "; ".join(silent) or "none was found"
        raise StartError(f"no Ray runs on this machine: {told}; start one with `ray start --head`, or give its address")
    return None, [f"{told}, so a local one was started; `ray stop` ends what is left of it" for told in silent]


def _of_this_machine() -> Iterator[tuple[str, bool]]:
    """The addresses of Rays of this machine, and whether any process of theirs is there; the newest one first."""
    from ray._private import services

    services.find_gcs_addresses.cache_clear()
    running = services.find_gcs_addresses()
    newest = services.find_bootstrap_address(None)  # as a file says, which a Ray that was killed leaves behind
    if newest is not None:
        yield newest, newest in running
    yield from ((address, True) for address in sorted(running) if address != newest)


def _start(need: Mapping[str, float]) -> float:
    import ray

    cpus = max(os.cpu_count() or 1, math.ceil(need.get("CPU", 0.0)))
    custom = {name: amount for name, amount in need.items() if name not in ("CPU", "GPU")}
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            resources=custom or None,
            include_dashboard=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:
        raise StartError(f"a local Ray could not be started: {error}") from error
    return float(cpus)
