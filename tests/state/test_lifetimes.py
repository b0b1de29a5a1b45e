"""Arrays that are freed, reused or overwritten right after a call, and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from tests.state.world import (
    DIM,
    HEADS,
    attended,
    cells,
    contents,
    fed,
    make_spec,
    misses,
    queries,
    same,
)


def test_kb25_inputs_may_be_overwritten_right_after_append(backend: Backend) -> None:
    spec = make_spec("q4_0", window=8, sinks=2)
    want = fed(backend, spec, cells(1, 200), capacity=256)
    for _ in range(10):
        k, v = cells(1, 200)
        cache = backend.cache(spec, 256)
        cache.append(k, v)
        k[:], v[:] = 1e9, 1e9
        assert same(cache, want) == []


def test_kb25_device_inputs_may_be_dropped_right_after_append(backend: Backend) -> None:
    """The arrays die, and others of their size are made and filled at once."""
    spec = make_spec("f16")
    asarray = backend.arrays.asarray
    cache = backend.cache(spec, 512)
    for step in range(50):
        k, v = (asarray(x, "float", "test", "x") for x in cells(step, 10))
        cache.append(k, v)
        del k, v
        for _ in range(2):
            backend.write(backend.allocate((10, HEADS, DIM), "f4"), np.float32(1e9))
    want = [np.concatenate(x) for x in zip(*(cells(s, 10) for s in range(50)), strict=True)]
    for got, rows in zip(cache.read(), want, strict=True):
        np.testing.assert_array_equal(got, rows.astype(np.float16).astype(np.float32))


def test_kb25_two_streams_with_the_caller_s_events(backend: Backend) -> None:
    """Made on one stream, appended on another, dropped and overwritten on the first at once."""
    if backend.name != "cuda":
        pytest.skip(f"{backend.name}: has one in-order queue, no streams of the caller")
    import cupy

    spec = make_spec("f16")
    make, store = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cache = backend.cache(spec, 2048)
    for step in range(50):
        with make:
            k, v = (cupy.asarray(x) for x in cells(step, 40))
            ready = make.record()
        with store:
            store.wait_event(ready)
            cache.append(k, v)
            make.wait_event(store.record())
        del k, v
        with make:
            cupy.full((40, HEADS, DIM), 1e9, cupy.float32)
            cupy.full((40, HEADS, DIM), 1e9, cupy.float32)
    with store:
        read = cache.read()
    want = [np.concatenate(x) for x in zip(*(cells(s, 40) for s in range(50)), strict=True)]
    for got, rows in zip(read, want, strict=True):
        np.testing.assert_array_equal(got, rows.astype(np.float16).astype(np.float32))


def test_kb25_snapshot_evict_and_truncate_wait_for_the_append(backend: Backend) -> None:
    spec = make_spec("q2k", window=8, sinks=2)
    want = fed(backend, spec, cells(1, 300)).snapshot()
    for _ in range(5):
        cache = fed(backend, spec, cells(1, 300))
        assert cache.snapshot() == want
        cache.append(*cells(2, 40))
        cache.truncate(0)
        cache.append(*cells(1, 300))
        assert cache.snapshot() == want


def _together(jobs: list[Callable[[], None]]) -> None:
    """Run jobs at once, and raise the first error of any."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        try:
            barrier.wait()
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _life(cache: kvcore.KVCache, seed: int) -> None:
    for step in range(15):
        cache.append(*cells(seed + step, 7))
        cache.append(*cells(seed, 5), draft=True)
        cache.attend(queries(seed, 2))
        cache.truncate(7 * (step + 1))


def test_eight_threads_with_caches_of_their_own(backend: Backend) -> None:
    spec = make_spec("q2k", window=8, sinks=2)
    caches = [backend.cache(spec, 128) for _ in range(8)]
    _together([lambda c=c, i=i: _life(c, 100 * i) for i, c in enumerate(caches)])
    for i, cache in enumerate(caches):
        alone = backend.cache(spec, 128)
        _life(alone, 100 * i)
        assert same(cache, alone) == []


def test_forks_of_one_family_in_eight_threads(backend: Backend) -> None:
    """They share pages, and the pool grows under all of them."""
    spec = make_spec("q4_0", window=8, sinks=2)
    first = fed(backend, spec, cells(1, 37), capacity=256)
    forks = [first.fork() for _ in range(8)]

    def grow(cache: kvcore.KVCache, seed: int) -> None:
        for step in range(12):
            cache.append(*cells(seed + step, 9))
            cache.attend(queries(seed, 1))

    _together([lambda c=c, i=i: grow(c, 100 * i) for i, c in enumerate(forks)])
    for i, cache in enumerate(forks):
        chunks = [cells(100 * i + step, 9) for step in range(12)]
        assert same(cache, fed(backend, spec, cells(1, 37), *chunks)) == []
    assert same(first, fed(backend, spec, cells(1, 37))) == []


def test_forks_of_a_streamed_cache_share_too_few_slots(backend: Backend) -> None:
    """Readers and writers of four forks evict each other's units all the time."""
    spec = make_spec("f16")
    first = backend.stream(spec, 256, 16)
    first.append(*cells(1, 60))
    forks = [first.fork() for _ in range(4)]
    ids = [np.arange(12 * i, 12 * i + 12, dtype=np.int32) for i in range(4)]
    q = queries(1, 1)
    resident = fed(backend, spec, cells(1, 60))
    want = [attended(resident, q, ids=i) for i in ids]

    def live(cache: kvcore.KVCache, i: int) -> None:
        for step in range(10):
            cache.append(*cells(100 * i + step, 3))
            np.testing.assert_array_equal(attended(cache, q, ids=ids[i]), want[i])

    _together([lambda c=c, i=i: live(c, i) for i, c in enumerate(forks)])
    for i, cache in enumerate(forks):
        chunks = [cells(100 * i + step, 3) for step in range(10)]
        assert same(cache, fed(backend, spec, cells(1, 60), *chunks)) == []


@pytest.mark.parametrize("kind", ["resident", "streamed", "batch"])
def test_many_readers_and_one_writer(backend: Backend, kind: str) -> None:
    """A reader sees the cache before or after an append, never between."""
    spec = make_spec("f16", window=8, sinks=2)
    if kind == "batch":
        batch = backend.sequences(spec, 128)
        cache = batch[batch.add()]
    else:
        cache = backend.cache(spec, 512) if kind == "resident" else backend.stream(spec, 512, 512)
    cache.append(*cells(0, 20))
    steps = [cells(s, 20) for s in range(1, 12)]
    whole = fed(backend, spec, cells(0, 20), *steps)
    rows = [r.astype(float) for r in whole.read()]
    q = queries(1, 1)
    seen: list[np.ndarray] = []

    def write() -> None:
        for chunk in steps:
            cache.append(*chunk)

    def read() -> None:
        for _ in range(15):
            seen.append(attended(cache, q))

    _together([write, *[read] * 4])
    lengths = [20 * (s + 1) for s in range(12)]
    for out in seen:
        assert any(not misses(whole, q[0], *(r[:n] for r in rows), out[0]) for n in lengths)
    assert contents(cache) == contents(whole)
