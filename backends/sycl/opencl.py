"""OpenCL: the same text through pyopencl, for any vendor's device."""

from __future__ import annotations

from kvcore.backends.sycl.discovery import opencl_devices

from kvcore.backend import Availability
from kvcore.compiler.device import Device
from kvcore.portable.backend import PortableBackend
from kvcore.portable.found import availability, first_usable
from kvcore.registry import link


class OpenCl(PortableBackend):
    """The portable bodies as OpenCL C on any OpenCL device."""

    name = "opencl"
    target = "opencl"

    def __init__(self, device: Device | None = None) -> None:
        if device is None:
            from kvcore.backends.sycl.opencl_device import OpenClDevice

            device = OpenClDevice(first_usable(self.name, opencl_devices()).handle)
        super().__init__(device)

    @classmethod
    def probe(cls) -> Availability:
        """Return the OpenCL device that would be used, or why there is none."""
        return availability(opencl_devices())


BACKEND = link(OpenCl)
