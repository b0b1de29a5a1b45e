"""Metal: PyObjC, shared-storage buffers. Importing this touches no driver."""

from __future__ import annotations

from kvcore.backends.metal.device import MetalDevice, metal_devices

from kvcore.backend import Availability
from kvcore.compiler.device import Device
from kvcore.portable.backend import PortableBackend
from kvcore.portable.found import availability, first_usable
from kvcore.registry import link


class Metal(PortableBackend):
    """The portable bodies as MSL."""

    name = "metal"
    target = "metal"

    def __init__(self, device: Device | None = None) -> None:
        super().__init__(device or MetalDevice(first_usable(self.name, metal_devices()).handle))

    @classmethod
    def probe(cls) -> Availability:
        """Return the Metal device that would be used, or why there is none."""
        return availability(metal_devices())


BACKEND = link(Metal)
