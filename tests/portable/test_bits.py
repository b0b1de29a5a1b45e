"""The same bits on every device, and what makes them differ when the dialect's rules are broken."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from kvcore.backends.sycl.opencl import OpenCl
from kvcore.backends.sycl.opencl_device import OpenClDevice

import kvcore
from kvcore.compiler.build import DiskCache
from kvcore.compiler.render import Source
from kvcore.conformance.values import ordinary
from kvcore.numerics import Array
from kvcore.portable.backend import PortableBackend
from kvcore.reference import Reference
from tests.portable.conftest import open_backend
from tests.shims.devices import IDS

FORMATS = ("f16", "int8", "q4_0", "k4v2c", "k2cv1t")
ORACLE_BITS = "opencl"


def outputs(be: PortableBackend, name: str, n: int = 400) -> list[Array]:
    """Return what 5 queries with an overlay, a centre, a soft cap and chosen cells give."""
    rng = np.random.default_rng(0)
    spec = kvcore.CacheSpec(format=name, n_kv_heads=2, head_dim=64, window=20, sinks=3, recipe=None)
    k, v = ordinary(rng, (n, 2, 64)), ordinary(rng, (n, 2, 64))
    q = ordinary(rng, (5, 6, 64)) * np.float32(0.2)
    cache = be.cache(spec, n)
    for start, stop in ((0, 1), (1, 300), (300, n)):
        cache.append(k[start:stop], v[start:stop])
    ids = np.sort(rng.choice(n - 8, 100, replace=False)).astype(np.int32)
    runs = [
        cache.attend(q, return_lse=True),
        cache.attend(q, softcap=3.0, window=170, return_lse=True),
        cache.attend(q, ids=ids, return_lse=True),
        cache.attend(q, k=k[-5:], v=v[-5:], return_lse=True),
    ]
    be.synchronize()
    planes = [be.to_host(a) for a in cache.pool.planes.values()]
    return [*(be.to_host(a) for run in runs for a in run), *planes]


@pytest.fixture(scope="module")
def oracle() -> dict[str, list[Array]]:
    be = open_backend(ORACLE_BITS)
    return {name: outputs(be, name) for name in FORMATS}


@pytest.mark.parametrize("name", [i for i in IDS if i != ORACLE_BITS])
def test_attention_has_the_same_bits_on_every_device(name: str, oracle: Any) -> None:
    be = open_backend(name)
    for fmt in FORMATS if name != "pocl" else FORMATS[:4:3]:
        for got, want in zip(outputs(be, fmt), oracle[fmt], strict=True):
            assert got.dtype == want.dtype
            assert got.tobytes() == want.tobytes(), fmt


class Bent(OpenClDevice):
    """An OpenCL device that compiles a changed source, or with other options."""

    def __init__(self, like: Any, cache: DiskCache, change: Any, *options: str) -> None:
        super().__init__(like, cache)
        self._change, self._extra = change, options

    def compile(self, source: Source) -> bytes:
        target = source.target
        bent = dataclasses.replace(target, flags=(*target.flags, *self._extra))
        text = self._change(source.text)
        return super().compile(dataclasses.replace(source, text=text, target=bent))

    @property
    def identity(self) -> str:
        return f"{super().identity}|{self._extra}"


def bend(tmp_path: Any, change: Any, *options: str) -> PortableBackend:
    like: Any = open_backend(ORACLE_BITS).engine.device
    if "Intel" not in like.name:
        pytest.skip("needs Intel's compiler, which contracts and reorders where it may")
    return OpenCl(Bent(like._device, DiskCache(tmp_path), change, *options))


def contracted(text: str) -> str:
    pragma = "#pragma OPENCL FP_CONTRACT OFF"
    assert pragma in text
    return text.replace(pragma, "#pragma OPENCL FP_CONTRACT ON")


def test_contraction_changes_bits_and_the_parity_test_sees_it(tmp_path: Any, oracle: Any) -> None:
    be = bend(tmp_path, contracted)
    same = [
        a.tobytes() == b.tobytes() for a, b in zip(outputs(be, "f16"), oracle["f16"], strict=True)
    ]
    assert not all(same)


def test_fast_math_fails_the_conformance_kit(tmp_path: Any) -> None:
    be = bend(tmp_path, lambda text: text, "-cl-fast-relaxed-math")
    report = kvcore.check(be, ops=["append"], formats=["int8"])
    assert not report.ok
    assert "differs" in str(report)


def test_kb03_codes_at_the_ties_of_a_contracted_add(be: PortableBackend) -> None:
    """x * (1/d) + 8.5 is exactly 13, 2 and 14 when rounded twice, just below when fused."""
    tops = ("0x1.93f934p+0", "0x1.a032b4p-1", "0x1.78a2a8p-1")
    ties = ("-0x1.c67856p-1", "0x1.522934p-1", "-0x1.02efd2p-1")
    rows = np.zeros((3, 1, 32), np.float32)
    for i, (m, x) in enumerate(zip(tops, ties, strict=True)):
        rows[i, 0, :2] = float.fromhex(m), float.fromhex(x)
    fmt = kvcore.format("q4_0")
    layout = kvcore.CacheSpec(format=fmt, n_kv_heads=1, head_dim=32).layout
    pools = [side.pool(layout, 1) for side in (Reference(), be)]
    for side, pool in zip((Reference(), be), pools, strict=True):
        side.append(pool, np.array([0]), np.arange(3), rows, rows)
    codes = be.to_host(pools[1].planes["k_codes"])
    assert np.array_equal(codes, pools[0].planes["k_codes"])
    assert (codes[0, 0, :3, 1] & 15).tolist() == [13, 2, 14]


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_kb18_sub_groups_of_any_width_give_the_same_answers(
    tmp_path: Any, width: int, oracle: Any
) -> None:
    """The bodies do not know how wide a sub-group is; long contexts merge several partials."""
    word = f"__attribute__((intel_reqd_sub_group_size({width}))) __kernel"
    be = bend(tmp_path, lambda text: text.replace("__kernel", word))
    for n in (1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 4097):
        check_uniform(be, n)
    for got, want in zip(outputs(be, "k4v2c"), oracle["k4v2c"], strict=True):
        assert got.tobytes() == want.tobytes()


def check_uniform(be: PortableBackend, n: int) -> None:
    """V[i] = i and q = 0: every cell weighs the same, so the output is the mean of the ids."""
    layout = kvcore.CacheSpec(format="f32", n_kv_heads=1, head_dim=32, page_size=64).layout
    pages = layout.pages_for(n)
    pool = be.pool(layout, pages)
    v = np.broadcast_to(np.arange(n, dtype=np.float32)[:, None, None], (n, 1, 32))
    be.append(pool, np.arange(pages), np.arange(n), np.zeros((n, 1, 32), np.float32), v)
    q = np.zeros((1, 2, 32), np.float32)
    out, lse = be.attention(q, pool, np.arange(pages), np.array([n]), return_lse=True)
    # n terms summed one after the other: each step rounds by at most half an ulp
    bound = (n + 2) * 2.0**-24
    np.testing.assert_allclose(be.to_host(out), (n - 1) / 2, rtol=2 * bound, atol=1e-30)
    np.testing.assert_allclose(be.to_host(lse), np.log(n), rtol=2 * bound, atol=2 * bound)


@pytest.mark.parametrize("n", [1, 33, 64, 1025, 4097])
def test_kb18_every_length_on_every_device(be: PortableBackend, n: int) -> None:
    check_uniform(be, n)
