"""Pools over the caller's memory, moves of whole units, and what a pool refuses."""

from __future__ import annotations

import numpy as np
import pytest
from caches import spec_of, tokens
from hypothesis import given
from hypothesis import strategies as st

import kvcore
from kvcore.errors import FormatError, ShapeError
from kvcore.layout import StateLayout
from kvcore.numerics import to_f16
from kvcore.reference import Reference
from tests.strategies import random_table

BE = Reference()
N = 70


def filled(layout, planes=None):
    table, n_pages = random_table(4, layout, N)
    pool = BE.pool(layout, n_pages, planes)
    BE.append(pool, table, np.arange(N), *tokens(N))
    return pool, table


def own_planes(layout, n_pages, make):
    return {p.name: make(p.shape, np.dtype(p.dtype)) for p in layout.planes(n_pages)}


@pytest.mark.parametrize("name", ["f16", "int8", "q4_0", "q2k"])
def test_kb_11_planes_may_be_contiguous_views_of_anything(name):
    """Halves of one buffer, at an odd offset in it: bit for bit as pages of its own."""
    layout = spec_of(name, recipe=None).layout
    plain, table = filled(layout)
    buffer = np.zeros(plain.nbytes + 64, np.uint8)
    at = 2

    def carve(shape, dtype):
        nonlocal at
        size = int(np.prod(shape)) * dtype.itemsize
        view = buffer[at : at + size].view(dtype).reshape(shape)
        at += size
        return view

    pool, _ = filled(layout, own_planes(layout, plain.n_pages, carve))
    for plane in plain.planes:
        np.testing.assert_array_equal(plain.planes[plane], pool.planes[plane])
    ids = np.arange(N)[::-1]
    for a, b in zip(BE.gather(plain, table, ids), BE.gather(pool, table, ids), strict=True):
        np.testing.assert_array_equal(a, b)
    assert buffer[:2].tolist() == [0, 0], "what lies before the planes is not touched"


def test_kb_11_strided_planes_are_refused_when_the_pool_is_made():
    layout = spec_of("q4_0", recipe=None).layout
    planes = own_planes(layout, 8, lambda s, d: np.zeros((s[0] * 2, *s[1:]), d)[::2])
    with pytest.raises(ShapeError, match=r"\[pool\] plane k_codes is not contiguous: got strides"):
        BE.pool(layout, 8, planes)


def test_a_pool_names_what_is_wrong_with_its_planes():
    layout = spec_of("q4_0", recipe=None).layout
    planes = own_planes(layout, 8, np.zeros)
    with pytest.raises(ShapeError, match=r"\[pool\] planes: got \['k_codes', 'k_scales', 'v_codes"):
        BE.pool(layout, 8, {k: v for k, v in planes.items() if k != "v_scales"})
    with pytest.raises(ShapeError, match=r"plane k_scales: got float32.*expected f2"):
        BE.pool(layout, 8, planes | {"k_scales": planes["k_scales"].astype(np.float32)})
    with pytest.raises(ShapeError, match=r"plane k_codes: got uint8\(9, 2, 4, 32\)"):
        BE.pool(layout, 8, planes | {"k_codes": np.zeros((9, 2, 4, 32), np.uint8)})
    for n in (-1, 2.0, True):
        with pytest.raises(ShapeError, match=r"\[pool\] n_pages"):
            BE.pool(layout, n)
    units = spec_of("q2k", recipe=None).layout
    with pytest.raises(ShapeError, match=r"n_pages is not whole units: got 9, expected a multiple"):
        BE.pool(units, 9)


def test_a_state_wants_a_centre_if_and_only_if_it_is_calibrated():
    layout = spec_of("q4_0", recipe=None).layout
    plain = StateLayout(layout=layout)
    calibrated = StateLayout(layout=layout, centred=True)
    automatic = StateLayout(layout=layout, centred=True, center_cells=32, window=8)
    centre = np.full((2, 64), 1.5, np.float32)
    state = BE.state(calibrated, 3, centre)
    np.testing.assert_array_equal(state.centre, to_f16(np.broadcast_to(centre, (3, 2, 64))))
    assert BE.state(automatic).centre.any() == False  # noqa: E712
    for sl, c in ((plain, centre), (automatic, centre), (calibrated, None)):
        with pytest.raises(FormatError, match=r"\[state\] centre"):
            BE.state(sl, 1, c)


@pytest.mark.parametrize("name", list(kvcore.formats()))
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dim", [64, 256])
def test_kb_23_a_move_takes_codes_and_scales_of_whole_units(name, heads, dim):
    spec = kvcore.CacheSpec(format=name, n_kv_heads=heads, head_dim=dim, page_size=4, recipe=None)
    layout = spec.layout
    u = layout.unit_pages
    src, dst, back = (BE.pool(layout, 3 * u) for _ in range(3))
    rng = np.random.default_rng(0)
    for plane in src.planes.values():
        plane.view(np.uint8)[...] = rng.integers(0, 256, plane.view(np.uint8).shape)
    for pool in (dst, back):
        for plane in pool.planes.values():
            plane.view(np.uint8)[...] = 0xFF
    every = np.arange(3 * u)
    turned = np.roll(every.reshape(3, u), 1, axis=0).reshape(-1)
    BE.move(src, every, dst, turned)
    BE.move(dst, turned, back, every)
    for plane in src.planes:
        np.testing.assert_array_equal(
            src.planes[plane].view(np.uint8), back.planes[plane].view(np.uint8)
        )
    assert src.nbytes == sum(p.nbytes for p in src.planes.values()) == 3 * layout.unit_bytes


@given(page=st.sampled_from([4, 8, 32, 64]), pick=st.permutations(range(6)))
def test_a_move_leaves_every_other_page_alone(page, pick):
    layout = spec_of("q2k", recipe=None, page_size=page).layout
    u = layout.unit_pages
    pool = BE.pool(layout, 6 * u)
    rng = np.random.default_rng(1)
    for plane in pool.planes.values():
        plane.view(np.uint8)[...] = rng.integers(0, 256, plane.view(np.uint8).shape)
    before = {n: p.copy() for n, p in pool.planes.items()}

    def pages(units):
        return (np.asarray(units)[:, None] * u + np.arange(u)).reshape(-1)

    BE.move(pool, pages(pick[:2]), pool, pages(pick[2:4]))
    for name, plane in pool.planes.items():
        per = plane.shape[0] // 6
        for unit in range(6):
            origin = pick[pick.index(unit) - 2] if unit in pick[2:4] else unit
            np.testing.assert_array_equal(
                plane[unit * per : (unit + 1) * per].view(np.uint8),
                before[name][origin * per : (origin + 1) * per].view(np.uint8),
            )


def test_a_move_refuses_what_would_tear_a_unit_or_overlap():
    layout = spec_of("q4_0", recipe=None).layout
    pool, other = BE.pool(layout, 8), BE.pool(spec_of("int8", recipe=None).layout, 8)
    for src, dst, words in (
        ([0, 1], [2], "the lists differ in length: got 2 and 1"),
        ([0, 1], [2, 2], "a page is written twice"),
        ([0, 1], [1, 2], "a page is both read and written"),
    ):
        with pytest.raises(ShapeError, match=rf"\[move\] {words}"):
            BE.move(pool, src, pool, dst)
    with pytest.raises(ShapeError, match="the pools have different layouts"):
        BE.move(pool, [0], other, [0])
