"""What must hold of a cache after every step of the state machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kvcore
from kvcore.bounds import U16, gamma
from kvcore.snapshot import capture
from tests.state.model import Model
from tests.state.world import attended, by_name, misses


@dataclass
class Seat:
    """One sequence: its cache on every backend, its model, and snapshots of it."""

    caches: dict[str, kvcore.KVCache]
    model: Model
    ids: dict[str, int] = field(default_factory=dict)

    @property
    def first(self) -> kvcore.KVCache:
        return next(iter(self.caches.values()))

    @property
    def drafts(self) -> int:
        return len(self.model.tokens) - self.model.committed


class Checks:
    """Compares a seat's caches with each other and with its model.

    The machine that inherits it has ``spec``, ``rng``, ``ratio`` (query heads per KV head) and
    ``seats``.
    """

    spec: kvcore.CacheSpec
    ratio: int
    rng: np.random.Generator
    seats: list[Seat]

    def _check(self, seat: Seat) -> None:
        n = len(seat.model.tokens)
        images = {}
        for name, cache in seat.caches.items():
            assert (len(cache), cache.committed) == (n, seat.model.committed), name
            images[name] = capture(cache)
            device = cache.backend.to_host(cache.state.marks)[0]
            assert device[:7].tolist() == list(cache.marks)[:7], name
        first = by_name(next(iter(images.values())))
        for name, image in images.items():
            assert by_name(image) == first, name
        self._check_scales(seat, next(iter(images.values())))
        self._check_pages(seat)
        self._attend(seat, 1, {"window": 40}, np.arange(max(n - 40, 0), n))
        for other in {id(s): s for s in (seat, *self.seats)}.values():
            self._check_reads(other)

    def _check_pages(self, seat: Seat) -> None:
        """A unit is free or has as many owners as tables and links name it."""
        for cache in seat.caches.values():
            pages = cache._pages
            free = sorted(pages._free)
            assert free == sorted(set(free)), "a unit is free twice"
            assert (pages.users[free] == 0).all(), "a free unit has an owner"
            named = np.zeros(pages.n_units, np.int64)
            for owner in pages.owners:
                np.add.at(named, getattr(owner, "_units", np.zeros(0, np.int64)), 1)
            assert (named == pages.users).all(), "owners and tables disagree"

    def _check_reads(self, seat: Seat) -> None:
        n = len(seat.model.tokens)
        if not n:
            return
        edges = [0, 1, 4, 5, 31, 32, n - 1, n - 8, n - 9, n - 20, n - 21, n // 32 * 32]
        cells = sorted({c for c in (*edges, *self.rng.integers(0, n, 6)) if 0 <= c < n})
        for store, x in zip(("k", "v"), seat.first.read(cells), strict=True):
            rows = seat.model.to_stored(store, x)
            wrong = [c for c, r in zip(cells, rows, strict=True) if seat.model.misread(store, c, r)]
            assert not wrong, f"{store} of cells {wrong} of {n}"

    def _check_scales(self, seat: Seat, image: Any) -> None:
        """The stored scale of a group that closed whole is its RMS, times the gain for K, once."""
        layout = self.spec.layout
        for store, groups in seat.model.groups.items():
            plane = image.planes.get(f"{store}_scales")
            lines = None if plane is None else plane.shape[2]
            for g, group in groups.items():
                if group.frozen:
                    continue
                gain = self.spec.k_gain if store == "k" else 1.0
                got = plane[g // lines, :, g % lines].astype(np.float64)
                want = group.scale * gain
                slack = 6 * U16 * want + (U16 + gamma(300)) * seat.model.loudest[store] * gain
                assert (np.abs(got - want) <= slack + 2.0**-24).all(), f"{store} group {g}"
        assert layout.nbytes(0) == 0

    def _attend(self, seat: Seat, steps: int, more: dict[str, Any], chosen: np.ndarray) -> None:
        """The last query's output is the attention over the chosen rows, on every backend."""
        if not chosen.size:
            return
        shape = (steps, self.ratio * self.spec.n_kv_heads, self.spec.head_dim)
        q = self.rng.standard_normal(shape).astype(np.float32)
        rows = [x.astype(np.float64) for x in seat.first.read(chosen)]
        for name, cache in seat.caches.items():
            out = attended(cache, q, **more)
            assert not misses(cache, q[-1], *rows, out[-1]), name
