"""From the devices a vendor folder found to an availability, or to the one to open."""

from __future__ import annotations

from collections.abc import Sequence

from kvcore.backend import Availability
from kvcore.compiler.device import Found, explain
from kvcore.errors import BackendUnavailable


def availability(found: Sequence[Found]) -> Availability:
    """Return the first usable device, with the rest as the reason; or why there is none."""
    for item in found:
        if item.usable:
            return Availability(
                available=True, device=item.name, kind=item.kind, version=item.version
            )
    return Availability(available=False, reason=explain(found) or "no device was found")


def first_usable(name: str, found: Sequence[Found]) -> Found:
    """Return the first usable device.

    Raises
    ------
    BackendUnavailable
        With the reason of every candidate.
    """
    for item in found:
        if item.usable:
            return item
    raise BackendUnavailable(f"[{name}] no usable device:\n{explain(found)}")
