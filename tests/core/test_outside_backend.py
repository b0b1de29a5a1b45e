"""A backend in a package of its own, found by its entry point, passes the kit unmodified."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import kvcore
from kvcore import dispatch, interop

SOURCE = Path(__file__).parent / "outside" / "abacus.py"


@pytest.fixture
def abacus(tmp_path, monkeypatch):
    """Install the package into a folder of the path, as pip would, and open its backend."""
    shutil.copy(SOURCE, tmp_path / "abacus.py")
    info = tmp_path / "kvcore_abacus-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvcore-abacus\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvcore.backends]\nabacus = abacus:BACKEND\n")
    monkeypatch.syspath_prepend(tmp_path)
    dispatch.forget()
    yield kvcore.get_backend("abacus")
    dispatch.forget()


def test_it_is_small():
    assert len(SOURCE.read_text().splitlines()) <= 300


def test_it_is_known_with_its_distribution(abacus):
    assert "abacus" in dispatch.names()
    assert abacus.name == "abacus"
    assert dispatch.probe("abacus").device == "13 rods"
    outside = dispatch._entry_points()["abacus"]
    assert outside.dist is not None
    assert outside.dist.name == "kvcore-abacus"


def test_it_passes_the_kit_unmodified(abacus):
    report = kvcore.check(abacus, quick=True)
    assert report.ok, str(report)
    assert report.device == "13 rods"


def test_a_cache_lives_in_its_memory(abacus):
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=2, head_dim=64)
    rng = np.random.default_rng(0)
    k, v = (rng.normal(size=(170, 2, 64)).astype(np.float32) for _ in range(2))
    q = rng.normal(size=(1, 4, 64)).astype(np.float32)
    outs = []
    for be in (abacus, kvcore.get_backend("reference")):
        cache = be.cache(spec, 200)
        cache.append(k, v)
        outs.append(be.to_host(cache.attend(q)))
    assert type(cache.pool.planes["k_codes"]) is np.ndarray
    np.testing.assert_array_equal(*outs)


def test_interop_reads_and_writes_its_memory(abacus):
    spec = kvcore.CacheSpec(format="q4_0", n_kv_heads=2, head_dim=64, recipe=None)
    x = np.random.default_rng(0).normal(size=(40, 2, 64)).astype(np.float32)
    cache = abacus.cache(spec, 64)
    cache.append(x, x)
    blocks = interop.to_ggml(cache.pool, cache.table, 40, "q4_0")
    copy = abacus.pool(spec.layout, cache.pool.n_pages)
    interop.from_ggml(copy, cache.table, 40, "q4_0", blocks.k, blocks.v)
    for name, plane in copy.planes.items():
        np.testing.assert_array_equal(plane.rows, cache.pool.planes[name].rows)
