"""The two backends on which the engine's promises hold alike."""

from __future__ import annotations

import pytest

import flowrl
from flowrl.backends.protocol import Backend


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """`Local()`, and `Ray()` on the Ray that all tests share."""
    if request.param == "local":
        return flowrl.Local()
    request.getfixturevalue("ray_session")
    return flowrl.Ray()


@pytest.fixture
def local() -> Backend:
    """For what does not depend on the backend."""
    return flowrl.Local()
