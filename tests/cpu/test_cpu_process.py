"""How the CPU backend lives in a process: threads, a second start, no numba, no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import kvcore
from kvcore.dispatch import get_backend

ROOT = Path(kvcore.__file__).resolve().parent.parent


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **env},
        timeout=300,
    )


def test_it_imports_without_numba_and_says_that_it_is_missing() -> None:
    done = run(
        """
        import sys, importlib.util
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda n, p=None: None if n == "numba" else real(n, p)
        import kvcore
        from kvcore.dispatch import backend_class, get_backend
        a = backend_class("cpu").probe()
        assert not a.available and "numba" in a.reason, a
        try:
            get_backend("cpu")
        except kvcore.BackendUnavailable as error:
            assert "numba is not installed" in str(error)
        else:
            raise AssertionError("the backend opened")
        """
    )
    assert done.returncode == 0, done.stderr


def test_probing_and_opening_do_not_import_numba() -> None:
    done = run(
        """
        import sys, kvcore
        be = kvcore.get_backend("cpu")
        be.cache(kvcore.CacheSpec(format="q2k", n_kv_heads=1, head_dim=64), 64)
        assert be.probe().version
        assert "numba" not in sys.modules
        """
    )
    assert done.returncode == 0, done.stderr


SMALL = """
    import time
    start = time.perf_counter()
    import numpy as np, kvcore
    be, ref = kvcore.get_backend("cpu"), kvcore.get_backend("reference")
    def play(be, formats):
        out = []
        for name in formats:
            spec = kvcore.CacheSpec(format=name, n_kv_heads=1, head_dim=64, head_dim_v=32,
                                    window=2, sinks=1, center_cells=32)
            cache, rng = be.cache(spec, 96), np.random.default_rng(0)
            for n in (40, 1):
                k, v = rng.normal(size=(n, 1, 64)), rng.normal(size=(n, 1, 32))
                cache.append(k, v)
            q = rng.normal(size=(1, 1, 64))
            out.append((cache, cache.attend(q)))
        return out
"""


@pytest.mark.filterwarnings("ignore")
def test_the_kernels_run_as_plain_python() -> None:
    pytest.importorskip("numba")
    done = run(
        SMALL
        + """
    formats = ("q2k", "q4_0", "k8v4", "k2cv1t", "f16", "bf16", "f32", "q8_0")
    for (a, x), (b, y) in zip(play(be, formats), play(ref, formats), strict=True):
        for name, plane in a.pool.planes.items():
            assert np.array_equal(plane.view("u1"), b.pool.planes[name].view("u1")), name
        for name in ("k", "v", "centre", "marks"):
            one, two = getattr(a.state, name), getattr(b.state, name)
            assert np.array_equal(one.view("u1"), two.view("u1")), name
        assert ((x - y) ** 2).sum() <= 1e-6 * (y ** 2).sum()
    """,
        NUMBA_DISABLE_JIT="1",
        KVCORE_CPU_THREADS="1",
    )
    assert done.returncode == 0, done.stderr


def test_a_second_process_compiles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numba")
    code = (
        SMALL
        + """
    play(be, ("q2k",))
    """
    )
    first = run(code)
    assert first.returncode == 0, first.stderr
    watched = SMALL.replace(
        "import numpy as np, kvcore",
        """import numpy as np, kvcore
    import numba.core.event as event
    compiled = []
    class Listener(event.Listener):
        def on_start(self, e): compiled.append(e.data["dispatcher"].py_func.__name__)
        def on_end(self, e): pass
    event.register("numba:compile", Listener())""",
    )
    second = run(
        watched
        + """
    play(be, ("q2k",))
    print(f"{time.perf_counter() - start:.2f}")
    assert compiled == [], compiled
    """
    )
    assert second.returncode == 0, second.stderr
    assert "compiling" not in second.stderr
    with capsys.disabled():
        print(f"\n[cpu] a second process attends after {second.stdout.strip()} s")


def test_a_cold_start_says_that_it_compiles(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    code = """
        import numpy as np
        import kvcore.backends.cpu.jit as jit
        jit.PATIENCE = 0.0
        import kvcore
        kvcore.get_backend("cpu").rotate(np.ones((1, 32), np.float32))
        kvcore.get_backend("cpu").rotate(np.ones((1, 32), np.float32))
    """
    done = run(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("compiling the CPU kernels") == 1
    assert list(tmp_path.rglob("*.nbi"))


def test_eight_python_threads_get_what_one_gets() -> None:
    pytest.importorskip("numba")
    be = get_backend("cpu")
    shared = be.cache(kvcore.CacheSpec(format="q2k", n_kv_heads=2, head_dim=64), 600)
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, 500, 2, 64)).astype(np.float32)
    shared.append(k, v)
    q = rng.normal(size=(8, 1, 6, 64)).astype(np.float32)
    many = rng.normal(size=(40, 6, 64)).astype(np.float32)
    alone = [shared.attend(one) for one in q]
    whole = shared.attend(many)

    def work(i: int) -> bool:
        own = be.cache(kvcore.CacheSpec(format="k8v4", n_kv_heads=2, head_dim=64), 600)
        own.append(k, v)
        same = True
        for _ in range(10):
            same &= np.array_equal(shared.attend(q[i]), alone[i])
            same &= np.array_equal(shared.attend(many), whole)
        return bool(same) and np.array_equal(own.attend(q[i]), own.attend(q[i]))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_planes_at_any_address_hold_the_same_bytes() -> None:
    pytest.importorskip("numba")
    be = get_backend("cpu")
    spec = kvcore.CacheSpec(format="k32v8", n_kv_heads=1, head_dim=64, recipe=None)
    n_pages = spec.layout.pages_for(96)
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, 70, 1, 64)).astype(np.float32)
    q = rng.normal(size=(1, 2, 64)).astype(np.float32)
    table, found = np.arange(n_pages), []
    for shift in (0, 1, 4):
        planes = {}
        for plane in spec.layout.planes(n_pages):
            raw = np.zeros(plane.nbytes + 8, np.uint8)
            planes[plane.name] = (
                raw[shift : shift + plane.nbytes].view(plane.dtype).reshape(plane.shape)
            )
        pool = be.pool(spec.layout, n_pages, planes)
        be.append(pool, table, np.arange(70), k, v)
        out = be.attention(q, pool, table, [70])
        found.append((out, [planes[name].view(np.uint8).copy() for name in planes]))
    for out, bytes_ in found[1:]:
        assert np.array_equal(out, found[0][0])
        assert all(np.array_equal(a, b) for a, b in zip(bytes_, found[0][1], strict=True))


def test_a_pool_on_read_only_memory_can_be_attended() -> None:
    pytest.importorskip("numba")
    be = get_backend("cpu")
    spec = kvcore.CacheSpec(format="q4_0", n_kv_heads=1, head_dim=32, recipe=None)
    cache = be.cache(spec, 32)
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, 20, 1, 32)).astype(np.float32)
    cache.append(k, v)
    q = rng.normal(size=(1, 1, 32)).astype(np.float32)
    planes = {name: a.copy() for name, a in cache.pool.planes.items()}
    for a in planes.values():
        a.setflags(write=False)
    pool = be.pool(spec.layout, cache.pool.n_pages, planes)
    want = be.attention(q, cache.pool, cache.table, [20])
    assert np.array_equal(be.attention(q, pool, cache.table, [20]), want)
    with pytest.raises(kvcore.ShapeError, match="read-only"):
        be.append(pool, cache.table, [20], k[:1], v[:1])


def test_reloaded_planes_are_noticed() -> None:
    pytest.importorskip("numba")
    be = get_backend("cpu")
    spec = kvcore.CacheSpec(format="f32", n_kv_heads=1, head_dim=32, recipe=None)
    pool = be.pool(spec.layout, 1)
    table, cells = np.zeros(1, np.int32), np.arange(4)
    x = np.ones((4, 1, 32), np.float32)
    be.append(pool, table, cells, x, x)
    pool.planes["v_codes"] = np.zeros_like(pool.planes["v_codes"])  # type: ignore[index]
    assert not be.gather(pool, table, cells)[1].any()
    assert be.gather(pool, table, cells)[0].all()


def test_decode_steps_at_1k_cells_store_the_reference_bytes_and_say_how_long_they_took() -> None:
    pytest.importorskip("numba")
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=3, head_dim=64)
    cache = get_backend("cpu").cache(spec, 1100)
    oracle = get_backend("reference").cache(spec, 1100)
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, 1000, 3, 64)).astype(np.float32)
    q = rng.normal(size=(1, 9, 64)).astype(np.float32)
    cache.append(k, v)
    start = time.perf_counter()
    for i in range(20):
        cache.append(k[i : i + 1], v[i : i + 1])
        cache.attend(q)
    print(f"[cpu] append and attend at 1k cells: {(time.perf_counter() - start) / 20 * 1e3:.3f} ms")
    oracle.append(np.concatenate([k, k[:20]]), np.concatenate([v, v[:20]]))
    for name, plane in oracle.pool.planes.items():
        np.testing.assert_array_equal(cache.pool.planes[name].view(np.uint8), plane.view(np.uint8))


def test_every_kernel_has_one_signature_whatever_it_is_given() -> None:
    pytest.importorskip("numba")
    from kvcore.backends.cpu.jit import compiled_kernels

    be, rng = get_backend("cpu"), np.random.default_rng(0)
    for name in kvcore.formats():
        spec = kvcore.CacheSpec(format=name, n_kv_heads=1, head_dim=64, page_size=16)
        cache = be.cache(spec, 200)
        for n, dtype in ((1, np.float64), (130, np.float16), (2, np.float32)):
            k, v = rng.normal(size=(2, n, 1, 64)).astype(dtype)
            k.setflags(write=False)
            cache.append(k, v)
        wide = rng.normal(size=(2, 4, 128)).astype(np.float32)
        cache.attend(wide[:, :, ::2], ids=np.arange(60).reshape(2, 30)[:, ::2])
        cache.attend(np.asfortranarray(rng.normal(size=(30, 2, 64))), window=40, softcap=3)
        be.gather(cache.pool, cache.table, np.arange(9)[::2])
    several = {n: c.signatures for n, c in compiled_kernels.items() if len(c.signatures) > 1}
    assert several == {}
