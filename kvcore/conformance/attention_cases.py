"""attention: outputs and log-sum-exps within the bound derived from what the query reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kvcore import operands
from kvcore.bounds import attention_bound
from kvcore.conformance.append_cases import Add, Commit, Cut, Script, Step, make_twin, play
from kvcore.conformance.case import Case
from kvcore.conformance.twin import Bench, Twin
from kvcore.numerics import Array
from kvcore.ops.attention import read_cells, visible
from kvcore.spec import Format


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One query of one script: ratio of heads, how cells are chosen, and options."""

    title: str
    steps: tuple[Step, ...] = (Add(n=70),)
    ratio: int = 4
    tokens: int = 1
    batch: int = 1
    heads_dims: tuple[int, int] = (96, 64)
    page_size: int = 32
    choose: str = "all"  # all, some, none, masked, absent, lengths, edges, late
    own: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    state: tuple[tuple[str, Any], ...] | None = None
    quick: bool = False

    @property
    def script(self) -> Script:
        """What is stored before the query."""
        return Script(
            title=self.title,
            steps=self.steps,
            batch=self.batch,
            page_size=self.page_size,
            dims=self.heads_dims,
            stateless=self.state is None,
            **dict(self.state or ()),
        )


OVERLAY = (("sinks", 3), ("window", 20))
CENTRED = (*OVERLAY, ("centre", "auto"))
DRAFTS = (Add(n=75), Add(n=9, draft=True), Commit(n=2), Cut(n=81))

EDGES = (1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 513, 1023, 1024, 1025)
"""Lengths around the tiles that a kernel may work in."""

ASKS = (
    Ask(title="ratio 4, verify window", tokens=5, quick=True),
    Ask(title="ratio 1", ratio=1, steps=(Add(n=33),), quick=True),
    Ask(title="ratio 7, batch", ratio=7, batch=3, tokens=2, steps=(Add(n=65),), page_size=4),
    Ask(title="ratio 12, chosen cells", ratio=12, tokens=2, choose="some", quick=True),
    Ask(title="Dk 576 and Dv 512", heads_dims=(576, 512), steps=(Add(n=40),)),
    Ask(
        title="lengths around every tile",
        ratio=1,
        heads_dims=(64, 64),
        steps=(Add(n=1025),),
        tokens=len(EDGES),
        choose="edges",
    ),
    Ask(title="cells after many that are masked", tokens=len(EDGES), choose="late"),
    Ask(title="head size 256, 1 cell", heads_dims=(256, 256), steps=(Add(n=1),)),
    Ask(title="length per query, zero lengths", tokens=4, batch=2, choose="lengths", quick=True),
    Ask(title="no cell chosen", choose="masked", tokens=2, quick=True),
    Ask(title="an empty list of cells", choose="none"),
    Ask(title="pages that are not resident", choose="absent", page_size=4, tokens=2),
    Ask(
        title="soft cap, scale and window",
        tokens=3,
        options=(("softcap", 5.0), ("scale", 0.3), ("window", 17)),
        quick=True,
    ),
    Ask(title="window and chosen cells", choose="some", options=(("window", 40),)),
    Ask(title="own chunk read exactly", own=True, tokens=6, steps=(Add(n=64), Add(n=6))),
    Ask(title="overlay and tail", state=OVERLAY, tokens=3, page_size=4, quick=True),
    Ask(title="overlay, tail and open drafts", state=OVERLAY, tokens=4, steps=DRAFTS),
    Ask(
        title="overlay, batch, chosen cells",
        state=OVERLAY,
        batch=2,
        steps=(Add(n=(70, 21)),),
        choose="some",
    ),
    Ask(
        title="own chunk and overlay",
        state=OVERLAY,
        own=True,
        tokens=5,
        steps=(Add(n=64), Add(n=5)),
    ),
    Ask(title="centred K", state=CENTRED, tokens=2, steps=(Add(n=80), Add(n=2)), quick=True),
    Ask(title="centre not yet fixed", state=CENTRED, tokens=2, steps=(Add(n=30),)),
)


def _operands(
    ask: Ask, bench: Bench, twin: Twin, table: Array
) -> tuple[Array, Array, dict[str, Any]]:
    """Return the table, the lengths and the options of a query."""
    rng, b, t = bench.rng, ask.batch, ask.tokens
    counts = twin.lengths or [sum(s.n for s in ask.steps if isinstance(s, Add))] * b  # type: ignore[misc]
    lengths = np.asarray(counts, np.int32)
    per_query = np.maximum(lengths[:, None] - (t - 1) + np.arange(t), 0).astype(np.int32)
    more: dict[str, Any] = dict(ask.options)
    if ask.choose == "lengths":
        lengths = rng.integers(0, lengths[:, None] + 1, (b, t), np.int32)
        lengths[0, 0] = lengths[-1, -1] = 0
    elif ask.choose == "some":
        n = int(per_query.max())
        ids = rng.integers(-1, np.maximum(per_query, 1)[..., None], (b, t, n), np.int32)
        ids[:, :, : n // 3] = -1
        ids[:, :, n // 3 + 1] = ids[:, :, n // 3 + 2] = 0
        more["ids"] = ids
    elif ask.choose == "edges":
        lengths = np.tile(np.asarray(EDGES, np.int32), (b, 1))
    elif ask.choose == "late":
        ids = np.full((b, t, max(EDGES) + 4), -1, np.int32)
        for i, masked in enumerate(EDGES):
            ids[:, i, masked : masked + 4] = (0, 9, 2, 5)
        more["ids"] = ids
    elif ask.choose in ("masked", "none"):
        more["ids"] = np.full((b, t, 40 if ask.choose == "masked" else 0), -1, np.int32)
    elif ask.choose == "absent":
        table = table.copy()
        table[:, 3:8] = -1
        table[:, 12] = -1
        u = twin.layout.unit_pages
        if u > 1:
            table[:, :u] = -1
    if ask.own:
        shape = (b, t, twin.layout.n_kv_heads)
        more["k"] = rng.normal(size=(*shape, twin.layout.head_dim_k)).astype(np.float32)
        more["v"] = rng.normal(size=(*shape, twin.layout.head_dim_v)).astype(np.float32)
    return table, lengths, more


def _run(ask: Ask, fmt: Format, bench: Bench) -> Iterator[str]:
    twin, table = make_twin(bench, fmt, ask.script)
    list(play(bench, twin, table, ask.script, both=False))
    twin.sync()
    table, lengths, more = _operands(ask, bench, twin, table)
    layout = twin.layout
    q = bench.rng.normal(
        size=(ask.batch, ask.tokens, ask.ratio * layout.n_kv_heads, layout.head_dim_k)
    )
    q = q.astype(np.float32)
    states = twin.states or (None, None)
    mine = bench.ref.attention(
        q, twin.pools[0], table, lengths, state=states[0], return_lse=True, **more
    )
    theirs = bench.be.attention(
        q, twin.pools[1], table, lengths, state=states[1], return_lse=True, **more
    )
    held = (bench.ints(table), bench.ints(lengths))
    again = bench.be.allocate(mine[0].shape, "f4")
    scratch = bench.be.scratch()
    for _ in range(2):
        bench.be.attention(
            bench.floats(q),
            twin.pools[1],
            *held,
            state=states[1],
            out=again,
            scratch=scratch,
            **more,
        )
    bench.be.synchronize()
    out, lse = (bench.host(a) for a in theirs)
    for name, got, want in (("out", out, mine[0]), ("lse", lse, mine[1])):
        if got.shape != want.shape or got.dtype != want.dtype:
            yield f"{name}: got {got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
            return
    if not np.array_equal(bench.host(again), out, equal_nan=True):
        yield "out differs with device-held operands, out= and scratch="
    yield from attention_differences(twin, q, table, lengths, more, (out, lse), mine)
    yield from twin.differences()


def attention_differences(
    twin: Twin,
    q: Array,
    table: Array,
    lengths: Array,
    more: dict[str, Any],
    got: tuple[Array, Array],
    expected: tuple[Array, Array],
) -> Iterator[str]:
    """Yield a line for every query whose output or log-sum-exp lies beyond the bound."""
    pool, state = twin.pools[0], twin.states[0] if twin.states else None
    asked = {name: more.get(name) for name in ("ids", "scale", "softcap", "window", "k", "v")}
    ids = asked.pop("ids")
    call = operands.attention(operands.HOST, q, pool, table, lengths, ids, state, **asked)
    for b in range(q.shape[0]):
        centred = state is not None and state.layout.centred
        centre = state.centre[b] if centred and state is not None else None
        for t in range(q.shape[1]):
            k, v = read_cells(call, pool, state, b, t, visible(call, pool, b, t))
            bound = attention_bound(q[b, t], k, v, call.scale, call.softcap, centre)
            for name, g, e, limit in (
                ("out", got[0][b, t], expected[0][b, t], bound.out),
                ("lse", got[1][b, t], expected[1][b, t], bound.lse),
            ):
                yield from _beyond(f"{name} of sequence {b}, query {t}", g, e, limit)


def _beyond(name: str, got: Array, expected: Array, limit: Array) -> Iterator[str]:
    with np.errstate(invalid="ignore"):
        off = np.abs(got.astype(np.float64) - expected)
    wrong = ~((off <= limit) | (got == expected))
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong))
        yield (
            f"{name} at {list(at)}: got {got[at]!r}, expected {expected[at]!r} "
            f"within {limit[at]:.3g} ({int(wrong.sum())} of {wrong.size} beyond)"
        )


def attention_cases(fmt: Format) -> Iterator[Case]:
    """Yield the cases of attention for one format."""
    for ask in ASKS:
        if ask.state is CENTRED and fmt.k.scale is None:
            continue
        run = partial(_run, ask, fmt)
        yield Case(op="attention", title=ask.title, run=run, format=fmt, quick=ask.quick)
