"""Public bug reports that only a device shows: offsets, lifetimes, halves, scalars, fixed sizes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvcore
from kvcore.compiler.body import read_body
from kvcore.compiler.kernel import Buf, KernelDecl, Val
from kvcore.compiler.render import render
from kvcore.compiler.target import get_target
from kvcore.numerics import Array
from kvcore.portable.backend import PortableBackend
from kvcore.portable.recipe import OPS
from kvcore.reference import Reference
from tests.portable.conftest import open_backend

OFFSETS = """\
#include "cells.h"
KC_ENTRY(offsets)
{
    if (lane == 0) {
        out[0] = code_row(page, 1, cell, 2, 4) * bytes;
        out[1] = channel_row(page, 1, cell, 2, 4) * 256;
        out[2] = (code_row(page, 1, cell, 2, 4) * 256 + 255) * 2;
    }
}
"""
DECL = KernelDecl(
    "offsets", args=(Buf("out", "i64"), Val("page", "i32"), Val("cell", "i32"), Val("bytes", "i32"))
)


@pytest.mark.parametrize("page", [0, 2**20 - 1, 2**20, 2**21, 2**31 - 1])
def test_kb08_offsets_are_64_bit(quick: PortableBackend, page: int, tmp_path: Path) -> None:
    """Beyond 2**31 bytes and elements, as Python's integers say."""
    (tmp_path / "cells.h").write_text((OPS / "cells.h").read_text())
    (tmp_path / "offsets.c").write_text("#define GROUP_CELLS 32\n" + OFFSETS)
    source = render([DECL], {}, {}, read_body(tmp_path / "offsets.c"), get_target(quick.target))
    device: Any = quick.engine.device
    out = device.alloc(24)
    device.launch(device.build(source), "offsets", (1, 1, 1), [out, page, 4 * 5 + 3, 256])
    row = (page * 2 + 1) * 4 + 3
    want = [row * 256, (page // 8 * 2 + 1) * 256, (row * 256 + 255) * 2]
    assert device.download(out).view(np.int64).tolist() == want


def far_reads_as_near(be: PortableBackend, name: str, n_pages: int, first: int) -> list[bool]:
    """Store 12 cells in pages 0..2, and in three from `first` on; say what of them reads alike:
    gathered K, gathered V, attention."""
    layout = kvcore.CacheSpec(format=name, n_kv_heads=2, head_dim=256, page_size=4).layout
    x = np.random.default_rng(0).standard_normal((12, 2, 256)).astype(np.float32)
    q = x[:1, :, :].repeat(2, axis=1)
    found = []
    for pages, table in ((3, [0, 1, 2]), (n_pages, [first, first + 1, first + 2])):
        pool = be.pool(layout, pages)
        be.append(pool, table, np.arange(12), x, x)
        k, v = be.gather(pool, table, np.arange(12))
        out = be.attention(q, pool, table, np.array([12]))
        found.append([be.to_host(a) for a in (k, v, out)])
        be.synchronize()
        del pool
        gc.collect()
    return [np.array_equal(near, far) for near, far in zip(*found, strict=True)]


@pytest.mark.memory
@pytest.mark.parametrize("name", ["f16", "int8", "q4_0"])
@pytest.mark.parametrize("device", ["opencl", "cuda"])
def test_kb08_pages_beyond_the_31st_bit_of_a_byte_offset(device: str, name: str) -> None:
    """K alone passes 2**31 bytes and 2**31 elements: gigabytes, so only where they are free."""
    n_pages = {"f16": 1_048_600, "int8": 1_048_600, "q4_0": 1_864_160}[name]
    first = {"f16": 1_048_575, "int8": 1_048_575, "q4_0": 1_864_135}[name]
    layout = kvcore.CacheSpec(format=name, n_kv_heads=2, head_dim=256, page_size=4).layout
    needed = layout.nbytes(n_pages)
    if needed > _free_bytes() * 0.6:
        pytest.skip(f"needs {needed / 2**30:.1f} GiB of free memory")
    assert far_reads_as_near(open_backend(device), name, n_pages, first) == [True] * 3


def _free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))


def test_kb08_small_stand_in_of_the_same_walk(quick: PortableBackend) -> None:
    assert far_reads_as_near(quick, "q4_0", 40, 37) == [True] * 3


def test_kb25_inputs_may_be_changed_or_dropped_at_once(quick: PortableBackend) -> None:
    """What append was given counts, whatever happens to the arrays while kernels may still run."""
    layout = kvcore.CacheSpec(format="int8", n_kv_heads=4, head_dim=64).layout
    rng = np.random.default_rng(0)
    pool = quick.pool(layout, 64)
    mirror = Reference().pool(layout, 64)
    table = np.arange(64, dtype=np.int32)
    for i in range(30):
        x = rng.standard_normal((64, 4, 64)).astype(np.float32)
        cells = np.arange(64, dtype=np.int32) + 64 * (i % 30)
        Reference().append(mirror, table, cells, x, x)
        given = x.copy()
        on_device = quick.arrays.asarray(x, "float", "test", "x")
        quick.append(pool, table, cells, on_device, given)
        given[...] = 1e9
        cells[...] = 0
        del on_device
        quick.write(quick.allocate((64, 4, 64), "f4"), np.full((64, 4, 64), 1e9, np.float32))
    for name, plane in mirror.planes.items():
        assert np.array_equal(quick.to_host(pool.planes[name]), plane)


def test_kb26_no_body_asks_for_an_optional_extension() -> None:
    """The OpenCL text has no half type and no extension, so a device without cl_khr_fp16 runs it.

    PoCL, which has no cl_khr_fp16, passes the conformance kit in this folder.
    """
    from kvcore.compiler.emit import emit
    from kvcore.ops import declared

    for op in declared():
        text = emit(op, "f16", "opencl")
        assert "cl_khr" not in text
        assert "EXTENSION" not in text
    pocl: Any = open_backend("pocl").engine.device
    assert "cl_khr_fp16" not in pocl._device.extensions.split()


def test_kb26_every_spelling_of_a_scalar_is_the_same(quick: PortableBackend) -> None:
    layout = kvcore.CacheSpec(format="int8", n_kv_heads=2, head_dim=64).layout
    pool, table = quick.pool(layout, 1), np.array([0])
    x = np.random.default_rng(1).standard_normal((5, 2, 64)).astype(np.float32)
    quick.append(pool, table, np.arange(5), x, x)

    def ask(scale: Any, softcap: Any) -> Array:
        out = quick.attention(x[:1], pool, table, 5, scale=scale, softcap=softcap)
        return np.asarray(quick.to_host(out))

    want = ask(1.0, 2.0)
    assert not np.array_equal(want, ask(0.5, 2.0))
    for one, two in (
        (1, 2),
        (np.float32(1), np.float32(2)),
        (np.float64(1), np.float64(2)),
        (np.int64(1), np.float16(2)),
        (np.array(1.0), np.array([2.0])),
    ):
        assert np.array_equal(ask(one, two), want)


@pytest.mark.parametrize(("n", "dim"), [(513, 320), (2051, 64), (65, 576)])
def test_s6_no_size_is_cut_to_a_fixed_array(quick: PortableBackend, n: int, dim: int) -> None:
    """Uniform weights over cells that count up: a lost cell or dimension moves the mean."""
    layout = kvcore.CacheSpec(format="f32", n_kv_heads=1, head_dim=dim, page_size=64).layout
    pages = layout.pages_for(n)
    pool, table = quick.pool(layout, pages), np.arange(pages)
    v = np.arange(n, dtype=np.float32)[:, None, None] + np.arange(dim, dtype=np.float32)
    quick.append(pool, table, np.arange(n), np.zeros((n, 1, dim), np.float32), v)
    q = np.ones((1, 3, dim), np.float32)
    out = quick.to_host(quick.attention(q, pool, table, np.array([n])))
    bound = (n + 2) * 2.0**-24 * (n + dim)
    want = (n - 1) / 2 + np.arange(dim)
    np.testing.assert_allclose(out[0], np.broadcast_to(want, (3, dim)), atol=bound)


@pytest.mark.parametrize("view", ["fused", "columns first", "reversed"])
def test_s1_host_views_equal_their_copy(quick: PortableBackend, view: str) -> None:
    fused = np.random.default_rng(2).standard_normal((7, 2, 192)).astype(np.float32)
    k = {
        "fused": fused[..., :64],
        "columns first": np.asfortranarray(fused[..., :64]),
        "reversed": fused[::-1, ::-1, :64],
    }[view]
    layout = kvcore.CacheSpec(format="q4_0", n_kv_heads=2, head_dim=64).layout
    pools = [quick.pool(layout, 1) for _ in range(2)]
    for pool, x in zip(pools, (k, k.copy()), strict=True):
        quick.append(pool, [0], np.arange(7), x, x)
    for name in pools[0].planes:
        assert np.array_equal(*(quick.to_host(p.planes[name]) for p in pools))
    outs = [quick.attention(x[:2], pools[0], [0], np.array([7])) for x in (k, k.copy())]
    assert np.array_equal(*(quick.to_host(o) for o in outs))
