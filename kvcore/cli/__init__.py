"""The command ``kvcore``: one file per command, what they share in `options`, `show` and `live`.

Exit codes: 0 done; 1 a mismatch, or something is not available here; 2 the call itself is wrong.
An error is one line on stderr, never a traceback, unless it is a bug of kvcore.
"""

from __future__ import annotations

import os

# NumPy's BLAS threads spin for a while after each product, and so take the cores from the threads
# that attend over the cache: on two busy cores decoding was 15 times slower. Read when NumPy loads.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from kvcore.cli.app import main

__all__ = ["main"]
