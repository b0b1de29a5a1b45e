"""One portable backend per device that can execute a body here; what is missing is a named skip."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.dispatch import backend_class
from kvcore.portable.backend import PortableBackend
from tests.shims.devices import IDS, open_device

CLASSES = {
    "dpctl": "sycl",
    "opencl": "opencl",
    "pocl": "opencl",
    "cuda-text": "cuda",
    "metal-text": "metal",
    "cuda": "cuda",
    "metal": "metal",
}
_opened: dict[str, PortableBackend] = {}


def open_backend(name: str) -> PortableBackend:
    """Return the backend on a device of this machine, or skip with the reason."""
    if name not in _opened:
        device = open_device(name)
        if isinstance(device, str):
            pytest.skip(f"{name}: {device}")
        made: Any = backend_class(CLASSES[name])
        _opened[name] = made(device)
    return _opened[name]


@pytest.fixture(params=IDS)
def be(request: pytest.FixtureRequest) -> PortableBackend:
    """Every device in turn."""
    return open_backend(request.param)


@pytest.fixture(params=["opencl", "cuda-text", "metal-text", "cuda", "metal"])
def quick(request: pytest.FixtureRequest) -> PortableBackend:
    """Devices that build a body within a second: for tests that build many."""
    return open_backend(request.param)
