"""Hypothesis strategies for what a cache meets: hard values, geometries, arrivals, page tables."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from kvcore.conformance.twin import layout_of, pages_of, shuffled_table
from kvcore.conformance.values import HARD, KINDS
from kvcore.formats import get as get_format
from kvcore.formats import names as format_names
from kvcore.layout import Layout
from kvcore.numerics import F32, Array

PAGE_SIZES = (1, 4, 8, 16, 32, 64, 96)


def hard_floats() -> st.SearchStrategy[float]:
    """Finite float32 values, the hard ones often."""
    return st.one_of(
        st.sampled_from(HARD),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.integers(-64, 64).map(lambda i: i / 4),
    )


def arrays_of(
    shape: tuple[int, ...], kinds: tuple[str, ...] = ("ordinary", "hard")
) -> st.SearchStrategy[F32]:
    """Float32 arrays of a shape from seeded value families, so that an example stays small."""
    return st.builds(
        lambda seed, kind: KINDS[kind](np.random.default_rng(seed), shape),
        st.integers(0, 2**32 - 1),
        st.sampled_from(kinds),
    )


def layouts(formats: tuple[str, ...] | None = None) -> st.SearchStrategy[Layout]:
    """Layouts of known formats: 1 to 3 heads, several head sizes and page sizes."""
    return st.builds(
        lambda name, heads, dims, page: layout_of(
            get_format(name), heads=heads, dims=dims, page_size=page
        ),
        st.sampled_from(formats or tuple(format_names())),
        st.integers(1, 3),
        st.tuples(st.sampled_from((32, 64, 96, 160)), st.sampled_from((32, 64, 128))),
        st.sampled_from(PAGE_SIZES),
    )


def arrivals(total: int, most: int = 40) -> st.SearchStrategy[list[int]]:
    """Ways to split `total` cells into calls of at most `most`."""
    sizes = st.lists(st.integers(1, most), min_size=1, max_size=total)
    return sizes.map(lambda calls: _fill(calls, total))


def _fill(calls: list[int], total: int) -> list[int]:
    out, left, i = [], total, 0
    while left:
        n = min(calls[i % len(calls)], left)
        out.append(n)
        left -= n
        i += 1
    return out


def random_table(seed: int, layout: Layout, n_cells: int, batch: int = 1) -> tuple[Array, int]:
    """Return a shuffled page table i32[batch, blocks] and the pages its pool needs."""
    table = shuffled_table(np.random.default_rng(seed), layout, batch, n_cells)
    return table, pages_of(layout, batch, n_cells)
