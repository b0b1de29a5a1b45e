"""The backends that state tests run on: every one this machine has, the others as named skips."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import kvcore
from kvcore.backend import Backend
from tests.state.world import FORMATS

COMPILES = ("opencl", "sycl")
"""Backends that compile a program per format, seconds each: they take the covering formats."""


def _params() -> Iterator[object]:
    for info in kvcore.backends():
        skip = pytest.mark.skipif(not info.available, reason=f"{info.name}: {info.reason}")
        yield pytest.param(info.name, marks=skip)


@pytest.fixture(params=list(_params()))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return a backend; ``KVCORE_CHECK=full`` runs every format on those that compile, too."""
    fmt = request.node.callspec.params.get("name")
    if (
        request.param in COMPILES
        and fmt in set(kvcore.formats()) - {*FORMATS, "k4v2c"}
        and os.environ.get("KVCORE_CHECK") != "full"
    ):
        pytest.skip(f"{request.param}: {fmt} only with KVCORE_CHECK=full")
    return kvcore.get_backend(request.param)
