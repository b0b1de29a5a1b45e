"""The command ``kvcore``: one file per command, what they share in `options`, `show` and `live`.

Exit codes: 0 done; 1 a mismatch, or something is not available here; 2 the call itself is wrong.
An error is one line on stderr, never a traceback, unless it is a bug of kvcore.
"""

from __future__ import annotations

from kvcore.cli.app import main

__all__ = ["main"]
