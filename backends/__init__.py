"""The backends of kvcore, one folder each. A folder knows exactly one vendor.

Importing a folder makes this module the attribute ``kvcore.backends``, which is also the public
function that lists the backends: so the module is callable, and means the same.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Backends(ModuleType):
    def __call__(self) -> Any:
        """Return every known backend; see :func:`kvcore.dispatch.backends`."""
        from kvcore.dispatch import backends

        return backends()


sys.modules[__name__].__class__ = _Backends
