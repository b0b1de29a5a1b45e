"""Random scenes: a format, a geometry, a state, and what happens to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from kvcore import codecs
from kvcore.conformance.twin import Bench, Twin, layout_of, pages_of, shuffled_table
from kvcore.conformance.values import KINDS
from kvcore.dispatch import get_backend
from kvcore.layout import COMMITTED, StateLayout
from kvcore.numerics import Array
from kvcore.reference import Reference
from kvcore.spec import MAX_DRAFT, Format

CAPACITY = 224


def examples(n: int) -> settings:
    """Return settings for n examples, times what the chosen profile adds."""
    return settings(max_examples=max(1, n * settings.default.max_examples // 25))


CODECS = tuple(sorted(codecs.all_codecs()))


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One drawn scene."""

    k: str
    v: str
    heads: int
    dims: tuple[int, int]
    page_size: int
    gain: Any
    rule: str
    state: tuple[int, int, bool, str] | None  # sinks, window, deferred, centre
    batch: int
    values: str
    seed: int

    def twin(self) -> tuple[Twin, Array]:
        """Return equal objects on the reference and on the CPU backend, and a page table."""
        rng = np.random.default_rng(self.seed)
        fmt = Format(k=codecs.get(self.k), v=codecs.get(self.v))
        gain = self._gain(fmt)
        layout = layout_of(
            fmt,
            heads=self.heads,
            dims=self.dims,
            page_size=self.page_size,
            gain=gain,
            rule=self.rule,
        )
        table = shuffled_table(rng, layout, self.batch, CAPACITY)
        bench = Bench(be=get_backend("cpu"), ref=Reference(), rng=rng)
        twin = Twin(
            bench=bench,
            layout=layout,
            n_pages=pages_of(layout, self.batch, CAPACITY),
            state_layout=self._state_layout(layout),
            batch=self.batch,
            centre=self._centre(rng, layout),
        )
        return twin, table

    def _gain(self, fmt: Format) -> Any:
        deferred = self.state is not None and self.state[2]
        if self.gain == "unbiased":
            return "unbiased" if fmt.k.scale is not None and deferred else 1.0
        return self.gain if fmt.k.per_channel else 1.0

    def _mode(self) -> str:
        if self.state is None or codecs.get(self.k).scale is None:
            return "none"
        centre = self.state[3]
        return "none" if centre == "auto" and not self.state[2] else centre

    def _state_layout(self, layout: Any) -> StateLayout | None:
        if self.state is None:
            return None
        sinks, window, deferred, _ = self.state
        mode = self._mode()
        return StateLayout(
            layout=layout,
            sinks=sinks,
            window=window,
            deferred=deferred,
            centred=mode != "none",
            center_cells=-(-(sinks + 24) // 32) * 32 if mode == "auto" else 0,
        )

    def _centre(self, rng: np.random.Generator, layout: Any) -> Array | None:
        if self._mode() != "calibrated":
            return None
        return rng.normal(size=(layout.n_kv_heads, layout.head_dim_k)).astype(np.float32)

    def draw(self, twin: Twin, n: int) -> tuple[Array, Array]:
        """Return K and V of n new cells of every sequence."""
        layout, make = twin.layout, KINDS[self.values if n else "ordinary"]
        shape = (self.batch, n, layout.n_kv_heads)
        rng = twin.bench.rng
        return make(rng, (*shape, layout.head_dim_k)), make(rng, (*shape, layout.head_dim_v))


def scenes(
    values: tuple[str, ...] = ("ordinary", "hard", "non-finite"),
) -> st.SearchStrategy[Scene]:
    """Any K codec with any V codec, any geometry, with and without a state."""
    states = st.tuples(
        st.sampled_from((0, 3, 8, 35)),
        st.sampled_from((0, 5, 40, 128)),
        st.sampled_from((True, True, False)),
        st.sampled_from(("none", "auto", "calibrated")),
    )
    return st.builds(
        Scene,
        k=st.sampled_from(CODECS),
        v=st.sampled_from(CODECS),
        heads=st.integers(1, 3),
        dims=st.tuples(st.sampled_from((32, 64, 96)), st.sampled_from((32, 64, 160))),
        page_size=st.sampled_from((1, 4, 16, 32, 64)),
        gain=st.sampled_from((1.0, 1.0, 1.1, "unbiased")),
        rule=st.sampled_from(("shrink", "n", "old")),
        state=st.one_of(states, states, states, st.none()),
        batch=st.integers(1, 2),
        values=st.sampled_from(values),
        seed=st.integers(0, 2**32 - 1),
    )


def append(scene: Scene, twin: Twin, table: Array, n: int, **more: Any) -> list[int]:
    """Append up to n cells to every sequence, as many as fit; return where they end."""
    rng = twin.bench.rng
    starts = twin.lengths or more.pop("starts")
    ends = []
    k, v = scene.draw(twin, n)
    positions = np.full((scene.batch, n), -1, np.int32)
    for b, start in enumerate(starts):
        fit = min(n, CAPACITY - start)
        count = fit if b == 0 else int(rng.integers(0, fit + 1))
        where = np.sort(rng.choice(n, count, replace=False))  # the rest is padding
        positions[b, where] = start + np.arange(count)
        ends.append(start + count)
    twin.append(table, positions, k, v, **more)
    return ends


def step(scene: Scene, twin: Twin, table: Array, what: tuple[str, int]) -> None:
    """Play one step on both sides: add, draft, commit or cut."""
    kind, n = what
    assert twin.states is not None
    marks = twin.states[0].marks
    opened = max(int(m) - int(c) for m, c in zip(twin.lengths, marks[:, COMMITTED], strict=True))
    if kind == "draft":
        room = MAX_DRAFT - opened
        if room > 0:
            append(scene, twin, table, 1 + n % room, draft=True)
    elif kind == "commit" or (kind == "add" and opened):
        lengths = np.asarray(twin.lengths)
        commit = lengths - (lengths - marks[:, COMMITTED]) * (n % 3) // 2
        if kind == "add":
            commit = lengths
        k, v = scene.draw(twin, 0)
        none = np.zeros((scene.batch, 0), np.int32)
        twin.append(table, none, k, v, commit=commit.astype(np.int32))
    elif kind == "cut":
        for b, length in enumerate(twin.lengths):
            twin.truncate(b, max(length - n % 50, 0))
    else:
        append(scene, twin, table, n)


STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "add", "draft", "commit", "cut")), st.integers(1, 90)),
    min_size=1,
    max_size=8,
)
