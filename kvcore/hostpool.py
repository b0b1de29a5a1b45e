"""Pools on the host: in memory that the device copies from fastest, or in a mapped file."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvcore.errors import ShapeError, message
from kvcore.layout import Layout, Plane
from kvcore.numerics import Array
from kvcore.pool import Pool

if TYPE_CHECKING:
    from kvcore.backend import Backend


class HostPools:
    """Makes the host pools of one streamed cache and its forks.

    Parameters
    ----------
    backend : Backend
    path : str, optional
        File for the planes. A pool that replaces it (growth) goes to ``path.1`` and so on. A file
        is removed when its pool is gone; it holds nothing that another process could use.
    """

    def __init__(self, backend: Backend, path: str | None) -> None:
        self._backend = backend
        if path is not None and (not isinstance(path, str | os.PathLike) or not os.fspath(path)):
            raise ShapeError(
                message("stream", "path", got=path, expected="the name of a file that is not there")
            )
        # As it is now: the program may change its folder before the file is removed.
        self._path = None if path is None else Path(path).absolute()
        self._made = 0

    def make(self, layout: Layout, n_pages: int) -> Pool:
        """Return a zeroed pool of NumPy planes.

        Raises
        ------
        FileExistsError
            If the file is there: a streamed cache overwrites nothing.
        OSError
            If it cannot be made or mapped; nothing is left behind.
        """
        if self._path is None:
            planes = {
                p.name: self._backend.allocate_host(p.shape, p.dtype)
                for p in layout.planes(n_pages)
            }
            return Pool(layout=layout, n_pages=n_pages, planes=planes, backend="host")
        path = self._path if not self._made else Path(f"{self._path}.{self._made}")
        self._made += 1
        return _mapped(layout, n_pages, path)


def _mapped(layout: Layout, n_pages: int, path: Path) -> Pool:
    """Return a pool in a fresh file, each plane at a page boundary of the system."""
    step, at, places = mmap.ALLOCATIONGRANULARITY, 0, {}
    for plane in layout.planes(n_pages):
        places[plane.name] = at
        at += -(-plane.nbytes // step) * step
    with path.open("xb") as file:
        try:
            file.truncate(max(at, 1))
            planes = {p.name: _plane(path, p, places[p.name]) for p in layout.planes(n_pages)}
        except (OSError, ValueError):
            os.remove(path)
            raise
    pool = Pool(layout=layout, n_pages=n_pages, planes=planes, backend="host")
    weakref.finalize(pool, _remove, str(path))
    return pool


def _plane(path: Path, plane: Plane, at: int) -> Array:
    if not plane.nbytes:
        return np.zeros(plane.shape, plane.dtype)
    return np.memmap(path, plane.dtype, "r+", at, plane.shape).view(np.ndarray)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)
