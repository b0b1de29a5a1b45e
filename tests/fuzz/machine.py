"""The state machine: what may happen to caches, on several backends in step with a plain model.

After every step the caches of all backends hold the same bytes, and what they read lies within
the derived bound of the model's floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import kvcore
from kvcore.backend import Backend
from tests.fuzz.checks import Checks, Seat
from tests.state.model import Model
from tests.state.world import bulk

CAPACITY, RESIDENT, SEATS = 192, 128, 4
GEOMETRIES = ((1, 64, 64), (1, 64, 64), (2, 64, 64), (1, 128, 64), (2, 64, 128))
"""KV heads, head size of K, of V; the cheapest twice."""

KINDS = ("resident", "streamed", "ring", "batch")


@st.composite
def specs(draw: st.DrawFn) -> kvcore.CacheSpec:
    """Any format; window, sinks, centre, grouping and gain as its rules allow."""
    fmt = kvcore.format(draw(st.sampled_from(sorted(kvcore.formats()))))
    fields: dict[str, Any] = {"recipe": None, "page_size": draw(st.sampled_from((4, 32)))}
    fields |= draw(st.sampled_from(({}, {"window": 8, "sinks": 2}, {"window": 20}, {"sinks": 5})))
    quantized = fmt.k.scale is not None
    if quantized and draw(st.booleans()):
        fields |= {"k_center": "auto", "center_cells": 32}
    elif fmt.per_channel and draw(st.integers(0, 3)) == 0:
        fields |= {"grouping": "eager", "rule": draw(st.sampled_from(("shrink", "n")))}
    if fmt.k.per_channel and draw(st.booleans()):
        fields |= {"k_gain": 1.1}
    heads, dk, dv = draw(st.sampled_from(GEOMETRIES))
    return kvcore.CacheSpec(format=fmt, n_kv_heads=heads, head_dim=dk, head_dim_v=dv, **fields)


class CacheMachine(Checks, RuleBasedStateMachine):
    """Drives caches. ``backends`` names who runs in lockstep; the first is read and compared."""

    backends: tuple[str, ...] = ("reference",)
    kind: str = KINDS[0]
    counts: dict[str, int]

    def teardown(self) -> None:
        """Free what was made, so that a long run does not keep pools of every example."""
        self.seats, self.saved, self.batches = [], [], {}

    def _count(self, what: str) -> None:
        self.counts[what] += 1

    @initialize(
        spec=specs(),
        seed=st.integers(0, 2**32 - 1),
        prompt=st.integers(0, 130),
        ratio=st.sampled_from((2, 1, 5)),
    )
    def start(self, spec: kvcore.CacheSpec, seed: int, prompt: int, ratio: int) -> None:
        self._count("sequences")
        self.spec, self.ratio = spec, ratio
        self.rng = np.random.default_rng(seed)
        self.base = self.rng.standard_normal((1, spec.n_kv_heads, spec.head_dim)) * 2
        self.engines: dict[str, Backend] = {n: kvcore.get_backend(n) for n in self.backends}
        self.batches = {}
        if self.kind == "batch":
            pages = spec.layout.pages_for(CAPACITY) * (SEATS + 2)
            self.batches = {n: be.sequences(spec, pages) for n, be in self.engines.items()}
        self.seats = [self._seat()]
        self.saved: list[tuple[dict[str, bytes], Model]] = []
        self.scatter_pools = {n: be.pool(spec.layout, 16) for n, be in self.engines.items()}
        self.scattered: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        if prompt:
            self._append(self.seats[0], prompt)

    def _seat(self) -> Seat:
        seat = Seat(caches={}, model=Model(self.spec))
        for name, be in self.engines.items():
            if self.kind == "batch":
                seat.ids[name] = self.batches[name].add()
                seat.caches[name] = self.batches[name][seat.ids[name]]
            elif self.kind == "resident":
                seat.caches[name] = be.cache(self.spec, CAPACITY)
            else:
                ring = self.kind == "ring"
                seat.caches[name] = be.stream(self.spec, CAPACITY, RESIDENT, ring=ring)
        return seat

    def _cells(self, n: int, size: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        k, v = (
            self.rng.standard_normal((n, self.spec.n_kv_heads, dim)) * size
            for dim in (self.spec.head_dim, self.spec.head_dim_v)
        )
        return (k + self.base).astype(np.float32), v.astype(np.float32)

    def _pick(self, number: int) -> Seat:
        self._count("steps")
        return self.seats[number % len(self.seats)]

    def _each(self, seat: Seat, act: Callable[[kvcore.KVCache], Any]) -> Any:
        """Do one thing on every backend; all must answer alike."""
        answers = {name: act(cache) for name, cache in seat.caches.items()}
        first = next(iter(answers.values()))
        assert all(a == first for a in answers.values()), answers
        return first

    # -- what happens ---------------------------------------------------------------------

    def _append(self, seat: Seat, n: int, size: float = 1.0, draft: bool = False) -> None:
        n = min(n, CAPACITY - len(seat.model.tokens))
        if draft:
            n = min(n, 17 - seat.drafts)
        if not n or (seat.drafts and not draft):
            return
        chunk = self._cells(n, size)
        self._each(seat, lambda c: c.append(*chunk, draft=draft))
        seat.model.append(*chunk, draft=draft)
        self._check(seat)

    @rule(i=st.integers(0, 3), n=st.integers(1, 60), size=st.sampled_from((1.0, 1.0, 30.0)))
    def append(self, i: int, n: int, size: float) -> None:
        self._append(self._pick(i), n, size)

    @rule(i=st.integers(0, 3), n=st.integers(1, 6))
    def decode(self, i: int, n: int) -> None:
        """Single steps."""
        seat = self._pick(i)
        for _ in range(n):
            self._append(seat, 1)

    @rule(i=st.integers(0, 3), n=st.integers(1, 17))
    def verify(self, i: int, n: int) -> None:
        self._append(self._pick(i), n, draft=True)

    @rule(i=st.integers(0, 3), n=st.integers(1, 17), taken=st.integers(0, 17))
    def speculate(self, i: int, n: int, taken: int) -> None:
        """A window of which some are taken and the rest dropped."""
        seat = self._pick(i)
        self._append(seat, n, draft=True)
        self.commit(i, taken)
        self.truncate(i, seat.drafts)

    @rule(i=st.integers(0, 3), taken=st.integers(0, 17))
    def commit(self, i: int, taken: int) -> None:
        seat = self._pick(i)
        n = seat.model.committed + min(taken, seat.drafts)
        self._each(seat, lambda c: c.commit(n))
        seat.model.commit(n)
        self._check(seat)

    @rule(i=st.integers(0, 3), back=st.one_of(st.integers(0, 20), st.integers(0, CAPACITY)))
    def truncate(self, i: int, back: int) -> None:
        seat = self._pick(i)
        n = max(len(seat.model.tokens) - back, 0)
        lost = self._each(seat, lambda c: c.truncate(n))
        if n < len(seat.model.tokens):
            seat.model.truncate(n)
            assert lost == seat.model.lost()
        else:
            assert lost == 0
        self._check(seat)

    @precondition(lambda self: len(self.seats) < SEATS)
    @rule(i=st.integers(0, 3))
    def fork(self, i: int) -> None:
        seat = self._pick(i)
        if seat.drafts:
            return
        twin = Seat(caches={}, model=seat.model.copy())
        for name, cache in seat.caches.items():
            if self.kind == "batch":
                twin.ids[name] = self.batches[name].fork(seat.ids[name])
                twin.caches[name] = self.batches[name][twin.ids[name]]
            else:
                twin.caches[name] = cache.fork()
        self.seats.append(twin)
        self._check(twin)

    @precondition(lambda self: len(self.seats) > 1)
    @rule(i=st.integers(0, 3))
    def free(self, i: int) -> None:
        seat = self.seats.pop(i % len(self.seats))
        for cache in seat.caches.values():
            cache.free()
        for other in self.seats:
            self._check(other)

    @rule(i=st.integers(0, 3), keep=st.integers(0, 60), drop=st.integers(1, 60))
    def shift(self, i: int, keep: int, drop: int) -> None:
        seat = self._pick(i)
        n = len(seat.model.tokens)
        if seat.drafts or keep + drop > n or not seat.first.can_shift:
            return
        angles = np.full(8, 0.3)
        k, v = (x[keep + drop :] for x in seat.first.read())
        self._each(seat, lambda c: c.shift(keep, drop, angles))
        seat.model.truncate(keep)
        seat.model.append(_turn(k, angles), v, draft=False)
        self._check(seat)

    @rule(i=st.integers(0, 3))
    def snapshot(self, i: int) -> None:
        seat = self._pick(i)
        if seat.drafts:
            return
        old = self.saved[-1][0] if self.saved else dict.fromkeys(seat.caches, b"")
        since = {n: c.snapshot_since(old[n]).data for n, c in seat.caches.items()}
        data = {name: cache.snapshot() for name, cache in seat.caches.items()}
        assert since == data
        assert len(set(data.values())) == 1
        self.saved = [*self.saved[-2:], (data, seat.model.copy())]

    @precondition(lambda self: self.saved)
    @rule(i=st.integers(0, 3), which=st.integers(0, 2), other=st.booleans())
    def load(self, i: int, which: int, other: bool) -> None:
        """Load a snapshot, maybe one that another backend saved."""
        seat = self._pick(i)
        data, model = self.saved[which % len(self.saved)]
        names = list(data)
        for at, (name, cache) in enumerate(seat.caches.items()):
            cache.load(data[names[(at + other) % len(names)]] if other else data[name])
        seat.model = model.copy()
        self._check(seat)

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 2))
    def load_new(self, which: int) -> None:
        data, model = self.saved[which % len(self.saved)]
        seat = Seat(caches={}, model=model.copy())
        for name, be in self.engines.items():
            seat.caches[name] = be.load(data[name])
        chunk = self._cells(5)
        if len(model.tokens) + 5 <= CAPACITY:
            self._each(seat, lambda c: c.append(*chunk))
            seat.model.append(*chunk, draft=False)
        self._check(seat)

    @precondition(lambda self: self.kind != "batch")
    @rule(i=st.integers(0, 3))
    def defragment(self, i: int) -> None:
        seat = self._pick(i)
        for cache in seat.caches.values():
            cache.defragment()
        for other in self.seats:
            self._check(other)

    @precondition(lambda self: self.kind == "batch")
    @rule(counts=st.lists(st.integers(0, 20), min_size=SEATS, max_size=SEATS))
    def append_batch(self, counts: list[int]) -> None:
        """Prefill, decode and nothing at all in one call."""
        ready = [s for s in self.seats if not s.drafts]
        counts = [
            min(n, CAPACITY - len(s.model.tokens)) for s, n in zip(ready, counts, strict=False)
        ]
        if not ready:
            return
        k, v = self._cells(sum(counts))
        for name, batch in self.batches.items():
            batch.append([s.ids[name] for s in ready], k, v, counts)
        at = 0
        for seat, n in zip(ready, counts, strict=True):
            seat.model.append(k[at : at + n], v[at : at + n], draft=False)
            at += n
        for seat in ready:
            self._check(seat)

    # -- what is seen ---------------------------------------------------------------------

    @rule(i=st.integers(0, 3), steps=st.integers(1, 3), pick=st.integers(0, 2))
    def attend(self, i: int, steps: int, pick: int) -> None:
        """Over all cells, a window, or chosen units: as the rows that are read say."""
        seat = self._pick(i)
        n = len(seat.model.tokens)
        if n < steps:
            return
        unit = self.spec.layout.unit_cells
        low, more = 0, {}
        if pick == 1 or self.kind == "ring":
            width = RESIDENT - unit - steps + 1
            low, more = max(n - width, 0), {"window": width}
        chosen = np.arange(low, n)
        if pick == 2 and self.kind != "ring":
            units = self.rng.permutation(-(-n // unit))[: max(1, RESIDENT // unit // 2)]
            chosen = np.sort((units[:, None] * unit + np.arange(unit)).reshape(-1))
            chosen = chosen[chosen <= n - steps]
            more = {"ids": chosen.astype(np.int32)}
        self._attend(seat, steps, more, chosen)

    @precondition(lambda self: self.kind in ("resident", "batch"))
    @rule(i=st.integers(0, 3))
    def gather(self, i: int) -> None:
        """The bulk's cells, through the op, are the same float16 on every backend."""
        seat = self._pick(i)
        closed = 32 * (seat.model.committed // 32)
        if not closed or not all(seat.model.in_bulk(s, 0) for s in ("k", "v")):
            return
        ends = [
            next((c for c in range(closed) if not seat.model.in_bulk(s, c)), closed)
            for s in ("k", "v")
        ]
        found = [bulk(cache, 0, min(ends)) for cache in seat.caches.values()] if min(ends) else []
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])

    @rule(at=st.lists(st.integers(-1, 9), min_size=2, max_size=24))
    def scatter(self, at: list[int]) -> None:
        """Rows of a plain pool: -1 is padding, and of two equal places the last wins."""
        if self.spec.format.per_channel:
            return
        rows = self._cells(len(at), 9.0)
        table = np.arange(16, dtype=np.int32)
        for row, cell in enumerate(at):
            if cell >= 0:
                self.scattered[cell] = rows[0][row], rows[1][row]
        cells = np.array(sorted(self.scattered), np.int32)
        want = None
        for name, be in self.engines.items():
            pool = self.scatter_pools[name]
            be.append(pool, table, np.array(at, np.int32), *rows)
            got = [be.to_host(x) for x in be.gather(pool, table, cells)]
            want = got if want is None else want
            for one, two in zip(got, want, strict=True):
                np.testing.assert_array_equal(one.view(np.uint16), two.view(np.uint16))
        alone = kvcore.get_backend("reference").pool(self.spec.layout, 16)
        if cells.size:
            kept = [np.stack([self.scattered[int(c)][s] for c in cells]) for s in (0, 1)]
            kvcore.get_backend("reference").append(alone, table, cells, *kept)
            plain = kvcore.get_backend("reference").gather(alone, table, cells)
            for one, two in zip(want, plain, strict=True):
                np.testing.assert_array_equal(one.view(np.uint16), two.view(np.uint16))


def _turn(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    pairs = len(angles)
    low, high = x[..., :pairs].astype(np.float64), x[..., pairs : 2 * pairs].astype(np.float64)
    out = x.copy()
    out[..., :pairs] = low * np.cos(angles) - high * np.sin(angles)
    out[..., pairs : 2 * pairs] = high * np.cos(angles) + low * np.sin(angles)
    return out


def machine(*backends: str, kind: str) -> type[CacheMachine]:
    """Return the machine for one kind of cache on some backends in lockstep."""
    counts = {"sequences": 0, "steps": 0}
    fields = {"backends": backends, "kind": kind, "counts": counts}
    return type(f"Machine_{kind}_{'_'.join(backends)}", (CacheMachine,), fields)
