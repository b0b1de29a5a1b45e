"""append: stored bytes, exact slots, centre and marks equal the reference's after every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kvcore.conformance.case import Case
from kvcore.conformance.crafted import channels, rows
from kvcore.conformance.twin import Bench, Twin, layout_of, pages_of, shuffled_table
from kvcore.conformance.values import KINDS, ordinary
from kvcore.layout import COMMITTED, StateLayout
from kvcore.numerics import Array
from kvcore.spec import Format


@dataclass(frozen=True, kw_only=True, slots=True)
class Add:
    """Append `n` cells to every sequence, or n[b] to sequence b."""

    n: int | tuple[int, ...]
    draft: bool = False
    keep: int | None = None  # commit this many of the call's cells


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """Commit `n` more cells of every sequence."""

    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Truncate sequence `b` to `n` cells."""

    n: int
    b: int = 0


Step = Add | Commit | Cut


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A layout, what is kept exact, and the steps."""

    title: str
    steps: tuple[Step, ...]
    page_size: int = 32
    gain: Any = 1.0
    rule: str = "shrink"
    values: str = "ordinary"
    batch: int = 1
    stateless: bool = False
    sinks: int = 0
    window: int = 0
    deferred: bool = True
    centre: str = "none"
    center_cells: int = 32
    dims: tuple[int, int] = (96, 64)
    quick: bool = False

    @property
    def cells(self) -> int:
        """A bound of the cells of the longest sequence."""
        return sum(_most(s.n) for s in self.steps if isinstance(s, Add))


def _most(n: int | tuple[int, ...]) -> int:
    return n if isinstance(n, int) else max(n)


def make_twin(bench: Bench, fmt: Format, script: Script) -> tuple[Twin, Array]:
    """Return the twin and the page table of a script."""
    layout = layout_of(
        fmt, page_size=script.page_size, gain=script.gain, rule=script.rule, dims=script.dims
    )
    rng, b = bench.rng, script.batch
    calibrated = script.centre == "calibrated"
    state = None
    if not script.stateless:
        state = StateLayout(
            layout=layout,
            sinks=script.sinks,
            window=script.window,
            deferred=script.deferred,
            centred=script.centre != "none",
            center_cells=script.center_cells if script.centre == "auto" else 0,
        )
    twin = Twin(
        bench=bench,
        layout=layout,
        n_pages=pages_of(layout, b, script.cells),
        state_layout=state,
        batch=b,
        centre=ordinary(rng, (layout.n_kv_heads, layout.head_dim_k)) if calibrated else None,
    )
    return twin, shuffled_table(rng, layout, b, script.cells)


def chunk(
    bench: Bench, twin: Twin, starts: list[int], counts: list[int], values: str
) -> tuple[Array, Array, Array]:
    """Return positions, K and V of one append; shorter sequences are padded with -1.

    Odd sequences are padded on the left, and padding rows hold large values.
    """
    steps, layout = max(counts), twin.layout
    positions = np.full((len(counts), steps), -1, np.int32)
    for b, (start, n) in enumerate(zip(starts, counts, strict=True)):
        left = steps - n if b % 2 else 0
        positions[b, left : left + n] = np.arange(start, start + n)
    shape = (len(counts), steps, layout.n_kv_heads)
    k = KINDS[values](bench.rng, (*shape, layout.head_dim_k))
    v = KINDS[values](bench.rng, (*shape, layout.head_dim_v))
    k[positions < 0] = 1e4
    v[positions < 0] = 1e4
    return positions, k, v


def play(
    bench: Bench, twin: Twin, table: Array, script: Script, *, both: bool = True
) -> Iterator[str]:
    """Run the steps, on the reference only unless `both`; yield the first step's differences."""
    starts = [0] * script.batch
    append = twin.append if both else twin.append_reference
    for i, step in enumerate(script.steps):
        if isinstance(step, Cut):
            twin.truncate(step.b, step.n, both=both)
            starts[step.b] = step.n
        else:
            n = step.n if isinstance(step, Add) else 0
            counts = [n] * script.batch if isinstance(n, int) else list(n)
            positions, k, v = chunk(bench, twin, starts, counts, script.values)
            more = {} if script.stateless else _more(twin, step, counts)
            append(table, positions, k, v, **more)
            starts = [s + c for s, c in zip(starts, counts, strict=True)]
        wrong = [f"step {i} ({step}): {d}" for d in twin.differences()] if both else []
        yield from wrong
        if wrong:
            return


def _more(twin: Twin, step: Add | Commit, counts: list[int]) -> dict[str, Any]:
    if isinstance(step, Add) and step.keep is None:
        return {"draft": step.draft}
    assert twin.states is not None
    committed = twin.states[0].marks[:, COMMITTED]
    more = step.n if isinstance(step, Commit) else step.keep
    return {"draft": True, "commit": (committed + more).astype(np.int32)}


def _run(script: Script, fmt: Format, bench: Bench) -> Iterator[str]:
    twin, table = make_twin(bench, fmt, script)
    yield from play(bench, twin, table, script)


ARRIVALS = (Add(n=1), Add(n=31), Add(n=33), Add(n=3), Add(n=28))

SPECULATIVE = (
    Add(n=5),
    Add(n=60),
    Add(n=1),
    Add(n=7, draft=True),
    Commit(n=3),
    Cut(n=69),
    Add(n=17, draft=True),
    Cut(n=70),
    Commit(n=1),
    Add(n=6, keep=4),
    Cut(n=74),
    Add(n=100),
    Cut(n=170),
    Add(n=25),
    Cut(n=70),
    Add(n=40),
)
"""Drafts, partial commits, rollbacks inside and beyond the ring, a chunk longer than the ring."""

CENTRING = (
    Add(n=20),
    Add(n=8, draft=True),
    Commit(n=5),
    Cut(n=22),
    Add(n=28),
    Cut(n=29),
    Add(n=5),
    Add(n=50),
    Cut(n=20),
    Add(n=30),
    Cut(n=0),
    Add(n=90),
)
"""The centre is fixed at 32 cells, un-fixed by a rollback, kept by a later one, and cleared."""


def _stateless(fmt: Format) -> Iterator[Script]:
    if not fmt.per_channel:
        return
    for page, rule, quick in ((4, "shrink", True), (32, "n", False), (64, "old", False)):
        yield Script(
            title=f"eager, P={page}, rule {rule}",
            steps=ARRIVALS,
            page_size=page,
            rule=rule,
            stateless=True,
            quick=quick,
        )
    for rule, values in (("shrink", "hard"), ("shrink", "non-finite"), ("n", "hard")):
        yield Script(
            title=f"eager, {values} values, rule {rule}",
            steps=ARRIVALS,
            rule=rule,
            values=values,
            stateless=True,
        )
    if fmt.k.per_channel:
        yield Script(
            title="eager, gain 1.10", steps=ARRIVALS, page_size=4, gain=1.1, stateless=True
        )


def _stateful(fmt: Format) -> Iterator[Script]:
    keep: dict[str, Any] = {"sinks": 3, "window": 8}
    yield Script(title="speculation, P=4", steps=SPECULATIVE, page_size=4, quick=True, **keep)
    yield Script(title="speculation, window 40, P=32", steps=SPECULATIVE, sinks=40, window=40)
    yield Script(title="speculation, tail only, P=64", steps=SPECULATIVE, page_size=64)
    yield Script(title="eager with an overlay", steps=SPECULATIVE, deferred=False, **keep)
    yield Script(
        title="batch of 3 with padding",
        steps=(Add(n=(40, 0, 3)), Add(n=(1, 70, 29)), Cut(n=60, b=1), Add(n=(30, 5, 0))),
        batch=3,
        page_size=4,
        quick=True,
        **keep,
    )
    yield Script(
        title="hard values", steps=(Add(n=70), Add(n=30)), values="hard", quick=True, **keep
    )
    yield Script(
        title="non-finite values", steps=(Add(n=70), Add(n=30)), values="non-finite", **keep
    )
    yield Script(
        title="head size 256 and 320", steps=(Add(n=40), Add(n=40)), dims=(256, 320), **keep
    )


def _quantized_k(fmt: Format) -> Iterator[Script]:
    if fmt.k.scale is None:
        return
    keep: dict[str, Any] = {"sinks": 3, "window": 8}
    yield Script(
        title="automatic centre, P=4",
        steps=CENTRING,
        centre="auto",
        page_size=4,
        quick=True,
        **keep,
    )
    yield Script(
        title="automatic centre of 64 cells, tail only",
        steps=CENTRING,
        centre="auto",
        center_cells=64,
    )
    yield Script(title="calibrated centre", steps=SPECULATIVE, centre="calibrated", **keep)
    yield Script(
        title="calibrated centre, eager",
        steps=SPECULATIVE,
        centre="calibrated",
        deferred=False,
        **keep,
    )
    yield Script(title="unbiased gain", steps=SPECULATIVE, gain="unbiased", **keep)
    yield Script(
        title="unbiased gain, hard values", steps=(Add(n=96),), gain="unbiased", values="hard"
    )
    if fmt.k.per_channel:
        yield Script(
            title="gain 1.10", steps=SPECULATIVE, gain=1.1, page_size=4, quick=True, **keep
        )


def _scattered(page: int, fmt: Format, bench: Bench) -> Iterator[str]:
    """Row codecs take positions in any order; -1 is skipped; of two equal ones the last wins."""
    layout = layout_of(fmt, page_size=page)
    twin = Twin(bench=bench, layout=layout, n_pages=pages_of(layout, 2, 130))
    table = shuffled_table(bench.rng, layout, 2, 130)
    positions = np.stack([bench.rng.permutation(129)[:70] for _ in range(2)]).astype(np.int32)
    positions[0, ::7] = -1
    positions[1, 3:40:4] = 77
    shape = (2, 70, layout.n_kv_heads)
    for values in ("ordinary", "hard", "non-finite"):
        k = KINDS[values](bench.rng, (*shape, layout.head_dim_k))
        v = KINDS[values](bench.rng, (*shape, layout.head_dim_v))
        twin.append(table, positions, k, v)
        yield from twin.differences()


def _spellings(fmt: Format, bench: Bench) -> Iterator[str]:
    """Strided, reversed, Fortran-ordered, half and double inputs, device-held ones, no cells."""
    layout = layout_of(fmt)
    twin = Twin(bench=bench, layout=layout, n_pages=pages_of(layout, 1, 160))
    table = shuffled_table(bench.rng, layout, 1, 160)
    h, dk, dv = layout.n_kv_heads, layout.head_dim_k, layout.head_dim_v
    fused = ordinary(bench.rng, (64, h, dk + dv))
    half = ordinary(bench.rng, (32, h, dk + dv)).astype(np.float16)
    spelt = (
        (0, fused[::2, :, :dk], fused[::2, :, dk:]),
        (32, fused[31::-1, :, :dk], np.asfortranarray(fused[:32, :, dk:])),
        (64, half[..., :dk], half[..., dk:].astype(np.float64)),
        (96, fused[:0, :, :dk], fused[:0, :, dk:]),
    )
    for start, k, v in spelt:
        positions = np.arange(start, start + len(k), dtype=np.int32)
        twin.append(table, positions, k, v)
        yield from twin.differences()
    scratch = bench.be.scratch()
    for start, n in ((96, 32), (128, 5), (133, 27)):
        k, v = fused[:n, :, :dk], fused[:n, :, dk:]
        positions = np.arange(start, start + n, dtype=np.int32)
        twin.append_reference(table, positions, k, v)
        held = (bench.ints(table), bench.ints(positions), bench.floats(k), bench.floats(v))
        bench.be.append(twin.pools[1], *held, scratch=scratch)
        bench.be.synchronize()
        yield from twin.differences()


def _decisions(fmt: Format, deferred: bool, bench: Bench) -> Iterator[str]:
    """Values at the decision points of both codecs, where one wrong rounding gives another byte."""
    layout = layout_of(fmt)
    state = StateLayout(layout=layout) if deferred else None
    twin = Twin(bench=bench, layout=layout, n_pages=pages_of(layout, 1, 256), state_layout=state)
    table = shuffled_table(bench.rng, layout, 1, 256)
    kind = np.float16 if deferred else np.float32
    chunks = []
    for store in ("k", "v"):
        codec, h, d = layout.codec(store), layout.n_kv_heads, layout.head_dim(store)
        if codec.per_channel:
            groups = channels(bench.rng, 8 * h * d, kind).reshape(32, 8, h, d)
            chunks.append(groups.transpose(1, 0, 2, 3).reshape(256, h, d))
        else:
            chunks.append(rows(codec, bench.rng, 256 * h, d).reshape(256, h, d))
    twin.append(table, np.arange(256, dtype=np.int32), *chunks)
    yield from twin.differences()


def append_cases(fmt: Format) -> Iterator[Case]:
    """Yield the cases of append for one format."""
    if not fmt.per_channel:
        for page in (4, 32, 64):
            run = partial(_scattered, page, fmt)
            title = f"scattered cells, padding and repeats, P={page}"
            yield Case(op="append", title=title, run=run, format=fmt, quick=page == 4)
    for deferred in (False, True):
        run = partial(_decisions, fmt, deferred)
        title = f"decision points, {'deferred' if deferred else 'stateless'}"
        yield Case(op="append", title=title, run=run, format=fmt, quick=True)
    yield Case(
        op="append", title="spellings of the operands", run=partial(_spellings, fmt), format=fmt
    )
    for script in (*_stateless(fmt), *_stateful(fmt), *_quantized_k(fmt)):
        run = partial(_run, script, fmt)
        yield Case(op="append", title=script.title, run=run, format=fmt, quick=script.quick)
