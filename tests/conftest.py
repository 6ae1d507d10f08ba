"""What all tests share: one thread for numeric libraries, hypothesis profiles, and one Ray for the session."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator

# Before anything imports NumPy or torch. Two cores run several actors, and one thread makes sums reproducible.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

# A shell starts what it runs in the background with Ctrl-C ignored, and so would be every test of an interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings

# A busy machine must not fail a property, so examples have no deadline; CI draws the same examples every time.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks `ray` every test that uses the shared Ray."""
    for item in items:
        if "ray_session" in getattr(item, "fixturenames", ()):
            item.add_marker("ray")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leaves no reproductions of faults that tests had on purpose; the process that ends last cleans up for all."""
    if hasattr(session.config, "workerinput"):
        return  # one of several processes of pytest-xdist
    shutil.rmtree(session.config.rootpath / "flowrl-crashes", ignore_errors=True)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray of four logical CPUs, started by the first test that asks and stopped after the last.

    `flowrl.Ray()` joins it, as it joins any Ray that is running. A test that needs a Ray of its own
    starts it in a subprocess.
    """
    import ray

    ray.init(
        address="local",  # never a cluster that RAY_ADDRESS names
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 * 2**20,
    )
    yield
    ray.shutdown()
