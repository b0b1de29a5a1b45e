"""Errors of the lab: models that cannot be named, fetched or read, and settings out of range.

A sound file that describes something this engine does not compute is an `UnsupportedError`.
"""

from __future__ import annotations

from kvcore.errors import KvcoreError


class UnknownModelError(KvcoreError, LookupError):
    """No model has this name."""


class FetchError(KvcoreError, RuntimeError):
    """A model could not be brought into the user's cache folder."""


class ModelFileError(KvcoreError, ValueError):
    """A model file is damaged, incomplete or contradicts itself."""


class SettingError(KvcoreError, ValueError):
    """A setting of a run outside its range."""


class DataFileError(KvcoreError, ValueError):
    """A dump or a file of logits is damaged, incomplete or contradicts itself."""
