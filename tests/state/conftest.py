"""The backends that state tests run on: every one this machine has, the others as named skips."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kvcore
from kvcore.backend import Backend


def _params() -> Iterator[object]:
    for info in kvcore.backends():
        skip = pytest.mark.skipif(not info.available, reason=f"{info.name}: {info.reason}")
        yield pytest.param(info.name, marks=skip)


@pytest.fixture(params=list(_params()))
def backend(request: pytest.FixtureRequest) -> Backend:
    return kvcore.get_backend(request.param)
