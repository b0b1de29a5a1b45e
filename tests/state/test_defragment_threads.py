"""Defragmentation while other threads fork, read and write: nobody reads another's cells."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import kvcore
from tests.state.world import attended, cells, cut, fed, make_spec, queries, same

CHUNK = cells(1, 400)


class _Slow:
    """Stands before a lock: says that somebody waits for it, and lets them wait."""

    def __init__(self, lock: object, asked: threading.Event, go: threading.Event) -> None:
        self._lock, self._asked, self._go, self._waits = lock, asked, go, True

    def over(self, lock: object, waits: bool = True) -> _Slow:
        self._lock, self._waits = lock, waits
        return self

    def reading(self) -> object:
        return self._lock.reading()

    def writing(self) -> object:
        if self._waits:
            self._asked.set()
            assert self._go.wait(20)
        return self._lock.writing()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_fork_made_while_locks_are_waited_for_is_renamed_too(streamed: bool) -> None:
    """The first lock is slow; a cache whose lock comes later forks in the meantime."""
    be = kvcore.get_backend("reference")
    spec = make_spec("q4_0")
    base = be.stream(spec, 512, 128) if streamed else be.cache(spec, 512)
    base.append(*cut(CHUNK, 0, 64))
    hole = base.fork()
    hole.append(*cut(CHUNK, 64, 200))
    family = [base.fork() for _ in range(3)]
    for cache in family:
        cache.append(*cut(CHUNK, 200, 300))
    hole.free()
    asked, go = threading.Event(), threading.Event()
    # Locks are taken by their number: the slow one must come before the forking cache's.
    slow, *_, late = sorted((_Slow(None, asked, go) for _ in range(2)), key=id)
    family[0]._lock = slow.over(family[0]._lock)
    forking = family[1]
    forking._lock = late.over(forking._lock, waits=False)
    found: list[int] = []
    mover = threading.Thread(target=lambda: found.append(base.defragment()))
    mover.start()
    assert asked.wait(20)
    fork = forking.fork()
    go.set()
    mover.join(20)
    assert not mover.is_alive()
    assert found
    assert found[0] > 0
    other = base.fork()
    other.append(*cut(CHUNK, 0, 300))  # takes units that a forgotten fork would still name
    want = fed(be, spec, cut(CHUNK, 0, 64), cut(CHUNK, 200, 300))
    for cache in (*family, fork):
        assert same(cache, want) == []


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_forks_readers_and_defragmentation_at_once(name: str) -> None:
    be = kvcore.get_backend(name)
    spec = make_spec("q4_0")
    base = fed(be, spec, cut(CHUNK, 0, 100))
    q = queries(1, 1)
    want, stop = attended(base, q), time.monotonic() + 1.5
    wrong: list[BaseException] = []

    def guarded(step: object) -> None:
        try:
            while time.monotonic() < stop and not wrong:
                step()
        except BaseException as error:
            wrong.append(error)

    def fork() -> None:
        twin = base.fork()
        twin.append(*cut(CHUNK, 100, 170))
        twin.truncate(100)
        np.testing.assert_array_equal(attended(twin, q), want)
        np.testing.assert_array_equal(attended(base, q), want)

    def move() -> None:
        base.defragment(shrink=True)

    threads = [threading.Thread(target=guarded, args=(s,)) for s in (fork, fork, move, move)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert not any(t.is_alive() for t in threads)
    assert not wrong, wrong[0]
