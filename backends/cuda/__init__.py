"""CUDA: CuPy memory and streams, NVRTC. Importing this touches no driver."""

from __future__ import annotations

import math

import numpy as np
from kvcore.backends.cuda.device import CudaDevice, cuda_devices

from kvcore.backend import Availability
from kvcore.compiler.device import Device
from kvcore.numerics import Array
from kvcore.portable.backend import PortableBackend
from kvcore.portable.found import availability, first_usable
from kvcore.registry import link


class Cuda(PortableBackend):
    """The portable bodies as CUDA C; results are CuPy arrays on the caller's stream."""

    name = "cuda"
    target = "cuda"
    gives_external = True

    def __init__(self, device: Device | None = None) -> None:
        super().__init__(device or CudaDevice(first_usable(self.name, cuda_devices()).handle))

    def allocate_host(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return a zeroed NumPy array in pinned memory, which the device copies from directly."""
        import cupy

        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        memory = cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
        host = np.frombuffer(memory, np.uint8, nbytes)
        host[...] = 0
        return host.view(dtype).reshape(shape)

    @classmethod
    def probe(cls) -> Availability:
        """Return the CUDA device that would be used, or why there is none."""
        return availability(cuda_devices())


BACKEND = link(Cuda)
