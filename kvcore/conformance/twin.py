"""Two of everything: the reference's objects and the backend's, in step and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcore import marks as rules
from kvcore.backend import Backend
from kvcore.layout import LENGTH, Layout, StateLayout
from kvcore.numerics import Array
from kvcore.pool import Pool, State
from kvcore.reference import Reference
from kvcore.spec import Format

STATE_ARRAYS = ("k", "v", "centre", "marks")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The backend under test, the reference and this case's random numbers."""

    be: Backend
    ref: Reference
    rng: np.random.Generator

    def host(self, array: Any) -> Array:
        """Return one of the backend's arrays as NumPy's."""
        return array if isinstance(array, np.ndarray) else self.be.to_host(array)

    def floats(self, x: Array) -> Any:
        """Return host floats as the backend's own array."""
        return self.be.arrays.asarray(x, "float", "check", "x")

    def ints(self, x: Array) -> Any:
        """Return host ints as the backend's own array."""
        return self.be.arrays.asarray(np.asarray(x, np.int32), "int", "check", "x")


def layout_of(
    fmt: Format,
    *,
    heads: int = 2,
    dims: tuple[int, int] = (96, 64),
    page_size: int = 32,
    gain: Any = 1.0,
    rule: str = "shrink",
) -> Layout:
    """Return a layout of `fmt` whose head sizes are `dims`, raised to what the codecs need."""
    dk, dv = (
        -(-d // c.dim_multiple) * c.dim_multiple for d, c in zip(dims, (fmt.k, fmt.v), strict=True)
    )
    return Layout(
        k=fmt.k,
        v=fmt.v,
        n_kv_heads=heads,
        head_dim_k=dk,
        head_dim_v=dv,
        page_size=page_size,
        k_gain=gain,
        rule=rule,
    )


def shuffled_table(rng: np.random.Generator, layout: Layout, batch: int, n_cells: int) -> Array:
    """Return i32[batch, blocks]: a random choice of whole units, none shared, some left over."""
    u = layout.unit_pages
    units = layout.pages_for(n_cells) // u
    chosen = rng.permutation(units * batch + 2)[: units * batch].reshape(batch, units)
    pages = chosen[..., None] * u + np.arange(u)
    return pages.reshape(batch, -1).astype(np.int32)


def pages_of(layout: Layout, batch: int, n_cells: int) -> int:
    """Return the pages of a pool that :func:`shuffled_table` fits."""
    return layout.pages_for(n_cells) * batch + 2 * layout.unit_pages


@dataclass(kw_only=True)
class Twin:
    """A pool and, if asked for, a state on both sides."""

    bench: Bench
    layout: Layout
    n_pages: int
    state_layout: StateLayout | None = None
    batch: int = 1
    centre: Array | None = None
    pools: tuple[Pool, Pool] = field(init=False)
    states: tuple[State, State] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        sides = (self.bench.ref, self.bench.be)
        mine, theirs = (side.pool(self.layout, self.n_pages) for side in sides)
        self.pools = (mine, theirs)
        for plane in mine.planes.values():
            noise = self.bench.rng.integers(0, 256, plane.nbytes, np.uint8)
            plane[...] = noise.view(plane.dtype).reshape(plane.shape)
        if self.state_layout is not None:
            one, two = (side.state(self.state_layout, self.batch, self.centre) for side in sides)
            self.states = (one, two)
        self.sync()

    def sync(self) -> None:
        """Give the backend's objects the reference's bytes."""
        mine, theirs = self.pools
        for name, plane in mine.planes.items():
            self.bench.be.write(theirs.planes[name], plane)
        if self.states is not None:
            for name in STATE_ARRAYS:
                self.bench.be.write(getattr(self.states[1], name), getattr(self.states[0], name))

    @property
    def lengths(self) -> list[int]:
        """Cells of each sequence."""
        return [int(n) for n in self.states[0].marks[:, LENGTH]] if self.states else []

    def append_reference(
        self, table: Array, positions: Array, k: Array, v: Array, **more: Any
    ) -> None:
        """Append on the reference only."""
        state = None if self.states is None else self.states[0]
        self.bench.ref.append(self.pools[0], table, positions, k, v, state=state, **more)

    def append(self, table: Array, positions: Array, k: Array, v: Array, **more: Any) -> None:
        """Append the same cells on both sides."""
        self.append_reference(table, positions, k, v, **more)
        state = None if self.states is None else self.states[1]
        self.bench.be.append(self.pools[1], table, positions, k, v, state=state, **more)
        self.bench.be.synchronize()

    def truncate(self, b: int, n: int, *, both: bool = True) -> None:
        """Drop the cells of sequence b from cell n on."""
        if self.states is None:
            raise TypeError("a twin without states cannot truncate")
        mine, theirs = self.states
        row = rules.truncate(mine.marks[b].tolist(), mine.layout, n).row
        mine.marks[b] = row
        if both:
            marks = self.bench.host(theirs.marks).copy()
            marks[b] = row
            self.bench.be.write(theirs.marks, marks)

    def differences(self) -> Iterator[str]:
        """Yield a line for every plane and state array that differs."""
        for name, plane in self.pools[0].planes.items():
            got = self.bench.host(self.pools[1].planes[name])
            yield from byte_differences(f"plane {name}", got, plane)
        if self.states is not None:
            for name in STATE_ARRAYS:
                got = self.bench.host(getattr(self.states[1], name))
                yield from byte_differences(f"state {name}", got, getattr(self.states[0], name))


def _bits(a: Array) -> Array:
    return a.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize])


def byte_differences(name: str, got: Array, expected: Array) -> Iterator[str]:
    """Yield a line if two arrays differ in shape, dtype or any bit."""
    yield from _compare(name, got, expected, nan_equal=False)


def value_differences(name: str, got: Array, expected: Array) -> Iterator[str]:
    """Yield a line if two float arrays differ in any bit, where any NaN equals any NaN.

    The sign of a NaN that arithmetic makes is the processor's choice.
    """
    yield from _compare(name, got, expected, nan_equal=True)


def _compare(name: str, got: Array, expected: Array, *, nan_equal: bool) -> Iterator[str]:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        yield f"{name}: got {got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}"
        return
    wrong = _bits(np.ascontiguousarray(got)) != _bits(np.ascontiguousarray(expected))
    if nan_equal and got.dtype.kind == "f":
        wrong &= ~(np.isnan(got) & np.isnan(expected))
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong)) if wrong.ndim else ()
        yield (
            f"{name} differs at {list(at)}: got {got[at]!r}, expected {expected[at]!r} "
            f"({int(wrong.sum())} of {wrong.size} differ)"
        )
