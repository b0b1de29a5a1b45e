"""A step captured as a CUDA graph, and what it may be replayed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcore.errors import ShapeError
from kvcore.pool import Pool, State


class CapturedStep:
    """One decode step as a graph: replay costs one launch.

    Device-held positions, lengths, ids and table entries may change between replays; the addresses
    may not, so a replay names the pools and states it is meant for.

    Parameters
    ----------
    step : callable
        Calls ops with ``out=`` and ``scratch=`` and device-held operands only. It must have run
        once before with the same shapes, so that its kernels are built and its scratch is large
        enough.
    held : sequence of Pool or State
        What the step reads and writes.

    Raises
    ------
    Exception
        CuPy's own, if the step synchronises or allocates.
    """

    def __init__(self, step: Callable[[], Any], held: tuple[Pool | State, ...]) -> None:
        import cupy

        self._held = held
        self._stream = cupy.cuda.Stream(non_blocking=True)
        with self._stream:
            self._stream.begin_capture()
            try:
                step()
            finally:
                self._graph = self._stream.end_capture()

    def replay(self, *held: Pool | State) -> None:
        """Run the step again on the caller's current stream.

        Parameters
        ----------
        *held : Pool or State
            The same objects as at the capture.

        Raises
        ------
        ShapeError
            If any is another object: a pool that grew or moved needs a fresh capture.
        """
        same = len(held) == len(self._held) and all(
            a is b for a, b in zip(held, self._held, strict=True)
        )
        if not same:
            raise ShapeError(
                "[graph] the step was captured on other pools or states: got new objects, expected "
                "those of the capture; capture again after a pool grows or moves"
            )
        import cupy

        self._graph.launch(cupy.cuda.get_current_stream())
