"""Errors of the lab: a model that cannot be fetched or read.

A sound file that describes something this engine does not compute is an `UnsupportedError`.
"""

from __future__ import annotations

from kvcore.errors import KvcoreError


class FetchError(KvcoreError, RuntimeError):
    """A model could not be brought into the user's cache folder."""


class ModelFileError(KvcoreError, ValueError):
    """A model file is damaged, incomplete or contradicts itself."""
