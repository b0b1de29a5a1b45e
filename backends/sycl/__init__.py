"""SYCL: dpctl queues and USM memory. Importing this touches no driver."""

from __future__ import annotations

import math

import numpy as np
from kvcore.backends.sycl.discovery import dpctl_devices

from kvcore.backend import Availability
from kvcore.compiler.device import Device
from kvcore.numerics import Array
from kvcore.portable.backend import PortableBackend
from kvcore.portable.found import availability, first_usable
from kvcore.registry import link


class Sycl(PortableBackend):
    """The portable bodies as OpenCL C on SYCL devices."""

    name = "sycl"
    target = "sycl"

    def __init__(self, device: Device | None = None) -> None:
        if device is None:
            from kvcore.backends.sycl.dpctl_device import DpctlDevice

            device = DpctlDevice(first_usable(self.name, dpctl_devices()).handle)
        super().__init__(device)

    def allocate_host(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return a zeroed NumPy array in USM host memory, which the device copies from directly."""
        from dpctl.memory import MemoryUSMHost

        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        memory = MemoryUSMHost(max(nbytes, 1), queue=self.engine.device.queue)  # type: ignore[attr-defined]
        host = np.frombuffer(memory, np.uint8, nbytes)
        host[...] = 0
        return host.view(dtype).reshape(shape)

    @classmethod
    def probe(cls) -> Availability:
        """Return the SYCL device that would be used, or why there is none."""
        return availability(dpctl_devices())


BACKEND = link(Sycl)
