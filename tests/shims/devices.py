"""Every device that can execute a body on this machine, by test id; ``-text`` are stand-ins."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from kvcore.compiler.device import Found
from tests.shims import fake_cupy, fake_metal
from tests.shims.intel import intel_runtime

IDS = ("dpctl", "opencl", "pocl", "cuda-text", "metal-text", "cuda", "metal")
TARGETS = {
    "dpctl": "sycl",
    "opencl": "opencl",
    "pocl": "opencl",
    "cuda-text": "cuda",
    "metal-text": "metal",
    "cuda": "cuda",
    "metal": "metal",
}


@functools.cache
def open_device(name: str) -> Any:
    """Return the device of a test id, or the reason (a str) why this machine lacks it."""
    return _OPENERS[name]()


def _dpctl() -> Any:
    from kvcore.backends.sycl.discovery import dpctl_devices
    from kvcore.backends.sycl.dpctl_device import DpctlDevice

    found = dpctl_devices()[0]
    return DpctlDevice(found.handle) if found.usable else found.reason


def _opencl(wanted: Callable[[Found], bool], missing: str) -> Any:
    from kvcore.backends.sycl.discovery import opencl_devices
    from kvcore.backends.sycl.opencl_device import OpenClDevice

    for found in opencl_devices():
        if found.usable and wanted(found):
            return OpenClDevice(found.handle)
    return missing


def _cuda_text() -> Any:
    from kvcore.backends.cuda.device import CudaDevice

    if intel_runtime() is None:
        return "Intel's OpenCL runtime, which executes CUDA text, is not installed"
    real = sys.modules.get("cupy")
    sys.modules["cupy"] = fake_cupy
    try:
        return CudaDevice(compiler=fake_cupy.TextCompiler())
    finally:
        _restore("cupy", real)


def _metal_text() -> Any:
    from kvcore.backends.metal.device import MetalDevice

    if intel_runtime() is None:
        return "Intel's OpenCL runtime, which executes MSL text, is not installed"
    real = sys.modules.get("Metal")
    sys.modules["Metal"] = fake_metal
    try:
        return MetalDevice()
    finally:
        _restore("Metal", real)


def _cuda() -> Any:
    from kvcore.backends.cuda.device import CudaDevice, cuda_devices

    found = cuda_devices()[0]
    return CudaDevice(found.handle) if found.usable else found.reason


def _metal() -> Any:
    from kvcore.backends.metal.device import MetalDevice, metal_devices

    found = metal_devices()[0]
    return MetalDevice(found.handle) if found.usable else found.reason


def _restore(name: str, module: Any) -> None:
    if module is None:
        del sys.modules[name]
    else:
        sys.modules[name] = module


_OPENERS: dict[str, Callable[[], Any]] = {
    "dpctl": _dpctl,
    "opencl": lambda: _opencl(lambda f: "Portable" not in f.name, "no OpenCL device but PoCL"),
    "pocl": lambda: _opencl(lambda f: "Portable" in f.name, "PoCL is not installed"),
    "cuda-text": _cuda_text,
    "metal-text": _metal_text,
    "cuda": _cuda,
    "metal": _metal,
}
