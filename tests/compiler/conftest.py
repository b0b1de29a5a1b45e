"""A ``device`` fixture over everything that can execute a body here, and a private cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.shims.devices import IDS, TARGETS, open_device


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVCORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=IDS)
def executing(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A device and the name of its target."""
    device = open_device(request.param)
    if isinstance(device, str):
        pytest.skip(f"{request.param}: {device}")
    return device, TARGETS[request.param]
