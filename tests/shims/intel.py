"""Intel's OpenCL CPU runtime as the machine under both shims."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvcore.backends.sycl.discovery import opencl_devices

# In this language mode the optimizer reassociates sums (by 32, where a loop is that long), which
# neither CUDA nor Metal may do; unoptimized text also builds ten times as fast.
EXACT = ("-cl-fp32-correctly-rounded-divide-sqrt", "-cl-opt-disable")
FAST = "-cl-fast-relaxed-math"
GARBAGE = 0xA5
_ALIGN = 256


@dataclass(frozen=True)
class Runtime:
    """pyopencl, and a queue of the Intel CPU device."""

    cl: Any
    device: Any
    context: Any
    queue: Any

    def build(self, text: str, *options: str) -> Any:
        """Compile C++ for OpenCL; raises pyopencl's error with the log."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.cl.CompilerWarning)
            return self.cl.Program(self.context, text).build(["-cl-std=CLC++2021", *options])


@functools.cache
def intel_runtime() -> Runtime | None:
    """Return the runtime, or None where it is not installed."""
    for found in opencl_devices():
        if found.usable and "Intel" in found.name and found.kind == "cpu":
            import pyopencl as cl

            context = cl.Context([found.handle])
            return Runtime(cl, found.handle, context, cl.CommandQueue(context))
    return None


def garbage(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return aligned memory full of a byte that no test writes."""
    raw = np.full(nbytes + _ALIGN, GARBAGE, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + nbytes]
