"""Whole units of a plane copied within a device, or between it and the host."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from kvcore.numerics import Array
from kvcore.portable import programs
from kvcore.portable.engine import Engine, chunks_of


def move_plane(
    engine: Engine, origin: Any, target: Any, nbytes: int, src: Array, dst: Array
) -> None:
    """Copy units of `nbytes` bytes of one plane; either side may be a NumPy array."""
    on_host = [isinstance(x, np.ndarray) for x in (origin, target)]
    if not any(on_host):
        chunks = chunks_of(-(-nbytes // 4))
        lists = [engine.ints(x).buffer for x in (src, dst)]
        program = engine.program(programs.plain_recipe, "move")
        planes = [engine.buffer(origin), engine.buffer(target)]
        groups = (chunks * len(src), 1, 1)
        engine.launch(program, "move", groups, [*planes, *lists, nbytes, chunks])
        return
    for first, last in _runs(src, dst):
        here, there, n = int(src[first]), int(dst[first]), last - first
        if on_host[0]:
            data = _rows(origin, nbytes)[here : here + n]
            if on_host[1]:
                _rows(target, nbytes)[there : there + n] = data
            else:
                engine.device.upload(engine.buffer(target), data, there * nbytes)
        else:
            raw = engine.device.download(engine.buffer(origin), n * nbytes, here * nbytes)
            _rows(target, nbytes)[there : there + n] = raw.reshape(n, nbytes)


def _rows(array: Array, nbytes: int) -> Array:
    return array.reshape(-1).view(np.uint8).reshape(-1, nbytes)


def _runs(a: Array, b: Array) -> list[tuple[int, int]]:
    """Return [first, last) of every stretch in which both lists count up by one."""
    breaks = np.flatnonzero((np.diff(a) != 1) | (np.diff(b) != 1)) + 1
    edges = [0, *breaks.tolist(), len(a)]
    return list(itertools.pairwise(edges))
