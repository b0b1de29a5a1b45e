"""The model of a cache: a plain list of float arrays, and what may be said of reading it back.

Written from the rules alone. It shares no code with the cache: rings are dictionaries from slot to
cell, groups are recorded when they close, rotations are explicit matrices in float64.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcore.bounds import U16, U32, codec_bound, gamma
from kvcore.cache_spec import CacheSpec
from kvcore.spec import Codec, Rule

F64 = npt.NDArray[np.float64]
_numbers = itertools.count()


def hadamard(dim: int) -> F64:
    """Return the orthonormal block-diagonal Sylvester matrix of a head."""
    block = dim & -dim
    h = np.ones((1, 1))
    while len(h) < block:
        h = np.block([[h, h], [h, -h]])
    return np.kron(np.eye(dim // block), h / math.sqrt(block))


@dataclass(frozen=True)
class Token:
    number: int
    k: F64  # [H, Dk], model's basis
    v: F64


@dataclass(frozen=True)
class Closed:
    """A per-channel group as it was quantized, or the rest of it after a cut."""

    members: tuple[int, ...]
    scale: F64  # RMS per [H, D] of what was encoded
    frozen: bool = False


class Model:
    """One sequence: tokens, what is final, which exact slots still hold which token."""

    def __init__(self, spec: CacheSpec) -> None:
        self.spec = spec
        self.tokens: list[Token] = []
        self.committed = 0
        self.centre_of: tuple[int, ...] | None = None
        self.slots: dict[str, dict[int, int]] = {"k": {}, "v": {}}
        self.groups: dict[str, dict[int, Closed]] = {"k": {}, "v": {}}
        self.loudest = {"k": 0.0, "v": 0.0}
        self._mean: F64 = np.zeros(0)

    def copy(self) -> Model:
        twin = Model(self.spec)
        twin.tokens, twin.committed = list(self.tokens), self.committed
        twin.centre_of, twin._mean = self.centre_of, self._mean
        twin.slots = {s: dict(x) for s, x in self.slots.items()}
        twin.groups = {s: dict(x) for s, x in self.groups.items()}
        twin.loudest = dict(self.loudest)
        return twin

    # -- geometry, from the rules' words --------------------------------------------------

    def codec(self, store: str) -> Codec:
        return self.spec.format.k if store == "k" else self.spec.format.v

    def waits(self, store: str) -> bool:
        return self.spec.grouping == "deferred" and self.codec(store).per_channel

    def ring(self, store: str) -> int:
        first = self.spec.center_cells if store == "k" else 0
        waiting = max(32 if self.waits(store) else 0, first)
        if not (self.spec.window or self.spec.sinks):
            return waiting + 16 if waiting else 0
        any_waits = self.waits("k") or self.waits("v")
        return max(self.spec.window, 32 if any_waits else 0, waiting) + 16

    def slot(self, store: str, cell: int) -> int:
        return cell if cell < self.spec.sinks else self.spec.sinks + cell % self.ring(store)

    def held(self, store: str, cell: int) -> bool:
        """True if the exact slot of a cell still holds that cell."""
        if not self.ring(store):
            return False
        return self.slots[store].get(self.slot(store, cell)) == self.tokens[cell].number

    def in_bulk(self, store: str, cell: int) -> bool:
        """True if the bulk holds the cell: its group is closed, or it needs no group."""
        if store == "k" and self.spec.center_cells and self.centre_of is None:
            return False
        if not self.waits(store):
            return True
        group = self.groups[store].get(cell // 32)
        return group is not None and self.tokens[cell].number in group.members

    # -- what happens to it ---------------------------------------------------------------

    def append(self, k: npt.NDArray[np.float32], v: npt.NDArray[np.float32], draft: bool) -> None:
        for one_k, one_v in zip(k.astype(np.float64), v.astype(np.float64), strict=True):
            cell = len(self.tokens)
            self.tokens.append(Token(next(_numbers), one_k, one_v))
            for store in ("k", "v"):
                if self.ring(store):
                    self.slots[store][self.slot(store, cell)] = self.tokens[cell].number
                group = self.groups[store].get(cell // 32)
                if group is not None:  # a frozen one: the scale stays
                    members = (*group.members, self.tokens[cell].number)
                    self.groups[store][cell // 32] = Closed(members, group.scale, True)
                value = self.stored(store, cell)
                self.loudest[store] = max(self.loudest[store], float(np.abs(value).max()))
        if not draft:
            self.commit(len(self.tokens))

    def commit(self, n: int) -> None:
        self.committed = n
        first = self.spec.center_cells
        if first and self.centre_of is None and n >= first:
            used = range(self.spec.sinks, first)
            self.centre_of = tuple(self.tokens[c].number for c in used)
            self._mean = np.mean([self.half("k", c) for c in used], axis=0)
        for store in ("k", "v"):
            ready = self.waits(store) and not (store == "k" and first and self.centre_of is None)
            for g in range(n // 32 if ready else 0):
                if g not in self.groups[store]:
                    self._close(store, g)

    def _close(self, store: str, g: int) -> None:
        members = range(32 * g, 32 * g + 32)
        counted = [c for c in members if c >= self.spec.sinks] or list(members)
        values = np.stack([self.encoded(store, c) for c in counted])
        rms = np.sqrt((values**2).mean(axis=0))
        numbers = tuple(self.tokens[c].number for c in members)
        self.groups[store][g] = Closed(numbers, rms)

    def truncate(self, n: int) -> None:
        kept, g = self.tokens[:n], n // 32
        if n == 0:
            self.centre_of = None
            self.groups = {"k": {}, "v": {}}
        elif self.centre_of is not None and n < self.spec.center_cells:
            exact = all(self.held("k", c) for c in range(n))
            if exact:  # then the centre is made anew, of the cells that come
                self.centre_of = None
                self.groups["k"] = {}
        for store in ("k", "v"):
            if not self.waits(store):
                continue
            group = self.groups[store].get(g)
            if group is not None:
                live = tuple(t.number for t in kept[32 * g :])
                if live and not all(self.held(store, c) for c in range(32 * g, n)):
                    self.groups[store][g] = Closed(live, group.scale, True)
                else:
                    del self.groups[store][g]
            for later in [x for x in self.groups[store] if x > g]:
                del self.groups[store][later]
        self.tokens = kept
        self.committed = min(self.committed, n)

    def lost(self) -> int:
        """Count cells that should be exact by window, or by an open group, and are not."""
        n, missing = len(self.tokens), set()
        for store in ("k", "v"):
            exact_bulk = self.codec(store).float_type in ("f16", "f32")
            if not self.ring(store) or exact_bulk:
                continue
            first = n - self.spec.window
            if self.waits(store):
                first = min(first, n // 32 * 32)
            for c in range(max(first, self.spec.sinks, 0), n):
                if not self.held(store, c):
                    missing.add(c)
        return len(missing)

    # -- what reading must give -----------------------------------------------------------

    def rotated(self, store: str) -> bool:
        return self.spec.format.rotate == "kv" or (store, self.spec.format.rotate) == ("v", "v")

    def stored(self, store: str, cell: int) -> F64:
        """Return a cell in the stored basis, float64."""
        x = getattr(self.tokens[cell], store)
        return x @ hadamard(x.shape[-1]) if self.rotated(store) else x

    def half(self, store: str, cell: int) -> F64:
        return np.clip(self.stored(store, cell), -65504, 65504).astype(np.float16).astype(float)

    def centre(self, store: str) -> F64:
        """Return what is subtracted before encoding: [H, D], or zeros."""
        shape = (
            self.spec.n_kv_heads,
            getattr(self.spec, "head_dim" + ("_v" if store == "v" else "")),
        )
        if store == "v" or self.spec.center_key == "none":
            return np.zeros(shape)
        if self.spec.center_key == "auto":
            return self._mean if self.centre_of is not None else np.zeros(shape)
        c = np.asarray(self.spec.k_center, np.float64)
        return c @ hadamard(shape[1]) if self.rotated("k") else c

    def encoded(self, store: str, cell: int) -> F64:
        return self.stored(store, cell) - self.centre(store)

    def reads_exact(self, store: str, cell: int) -> bool:
        if not self.ring(store):
            return False
        n = len(self.tokens)
        member = cell < self.spec.sinks or cell >= n - self.spec.window
        return (member or not self.in_bulk(store, cell)) and self.held(store, cell)

    def bound(self, store: str, cell: int) -> F64:
        """Return how far a read cell may lie from the token, elementwise, in the stored basis."""
        x = self.stored(store, cell)
        turn = gamma(12) * math.sqrt(x.shape[-1]) * np.linalg.norm(x, axis=-1, keepdims=True)
        turn = turn if self.rotated(store) else np.zeros_like(turn)
        half = U16 * np.abs(x) + 2.0**-25
        if self.reads_exact(store, cell):
            return half + 4 * turn
        c, codec = self.centre(store), self.codec(store)
        y = x - c
        slack = half + 2 * turn + 2 * U16 * np.abs(c) + gamma(300) * self.loudest[store]
        if codec.scale is None:
            return codec_bound(codec).at(np.abs(y) + slack) + slack
        gain = self.spec.k_gain if store == "k" else 1.0
        if gain == "unbiased":
            return np.full(x.shape, np.inf)
        found = codec_bound(codec, gain)
        if not codec.per_channel:
            scale = _row_scale(codec, y, slack)
            return found.at(np.abs(y) + slack, scale) + slack + 4 * U32 * np.abs(c)
        outermost = max(abs(v) for v in codec.levels) * gain * (1 + 4 * U16)
        if self.spec.grouping == "eager":
            return np.abs(y) + outermost * (1 + 4 * U16) * self.loudest[store] + slack
        group = self.groups[store][cell // 32]
        scale = group.scale + slack.max()
        if group.frozen:
            return np.abs(y) + outermost * scale + slack
        return found.at(np.abs(y) + slack, scale) + slack + 4 * U32 * np.abs(c)

    def to_stored(self, store: str, x: npt.NDArray[np.float32]) -> F64:
        """Return read rows [N, H, D] of the model's basis in the stored one."""
        wide = x.astype(np.float64)
        return wide @ hadamard(x.shape[-1]) if self.rotated(store) else wide

    def misread(self, store: str, cell: int, read: F64) -> bool:
        """True if a read row [H, D] of the stored basis is not this cell, within the bound."""
        error = np.abs(read - self.stored(store, cell))
        return not bool((error <= self.bound(store, cell)).all())


def _row_scale(codec: Codec, y: F64, slack: F64) -> F64:
    """Return the largest exact scale that rows within `slack` of `y` may have, per value."""
    assert codec.scale is not None
    g = codec.scale.group
    groups = (np.abs(y) + slack).reshape(*y.shape[:-1], -1, g)
    if codec.scale.rule is Rule.RMS:
        top = np.sqrt((groups**2).mean(axis=-1))
    else:
        top = groups.max(axis=-1) / abs(codec.scale.divisor)
    return np.repeat(top, g, axis=-1)
