"""Bad operands: the error of the reference, and not one byte written.

What only values held by a device tell (a state's length) is refused at the next synchronisation:
until then the call is skipped and the state's flag is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from kvcore import operands
from kvcore.backend import Backend
from kvcore.conformance.case import Case
from kvcore.conformance.twin import Bench, Twin, layout_of, pages_of, shuffled_table
from kvcore.conformance.values import ordinary
from kvcore.errors import KvcoreError, RangeError, UnsupportedError
from kvcore.layout import FLAG, StateLayout
from kvcore.numerics import Array
from kvcore.pool import Pool, State
from kvcore.spec import Format

Call = Callable[[Backend, Pool, State, Array], Any]


def _chunk(pool: Pool, n: int) -> tuple[Array, Array]:
    layout = pool.layout
    dims = (layout.head_dim_k, layout.head_dim_v)
    k, v = (np.ones((n, layout.n_kv_heads, d), np.float32) for d in dims)
    return k, v


def _append(positions: Any, extra: int = 0, stateful: bool = False, **more: Any) -> Call:
    """Return a call of append at the given positions; `extra` more values than positions."""

    def call(be: Backend, pool: Pool, state: State, table: Array) -> None:
        k, v = _chunk(pool, len(positions) + extra)
        kept = state if stateful else None
        be.append(pool, table, np.asarray(positions), k, v, state=kept, **more)

    return call


def _absent(be: Backend, pool: Pool, state: State, table: Array) -> None:
    table = table.copy()
    table[0, 1] = -1
    be.append(pool, table, np.arange(70), *_chunk(pool, 70))


def _page_beyond(be: Backend, pool: Pool, state: State, table: Array) -> None:
    table = table.copy()
    table[0, 0] = pool.n_pages
    be.append(pool, table, np.arange(3), *_chunk(pool, 3))


def _wrong_heads(be: Backend, pool: Pool, state: State, table: Array) -> None:
    k, v = _chunk(pool, 3)
    be.append(pool, table, np.arange(3), k[:, :1], v)


def _attention(heads: int, length: int, **more: Any) -> Call:
    def call(be: Backend, pool: Pool, state: State, table: Array) -> None:
        q = np.ones((1, heads, pool.layout.head_dim_k), np.float32)
        be.attention(q, pool, table, np.asarray([length], np.int32), **more)

    return call


def _gather(ids: list[int]) -> Call:
    def call(be: Backend, pool: Pool, state: State, table: Array) -> None:
        be.gather(pool, table, np.asarray(ids))

    return call


def _move(src: list[int], dst: list[int]) -> Call:
    def call(be: Backend, pool: Pool, state: State, table: Array) -> None:
        u = pool.layout.unit_pages
        lists = [[p * u + i for p in pages for i in range(u)] for pages in (src, dst)]
        be.move(pool, np.asarray(lists[0]), pool, np.asarray(lists[1]))

    return call


def _restore(n: int) -> Call:
    def call(be: Backend, pool: Pool, state: State, table: Array) -> None:
        be.restore(state, pool, table, n)

    return call


CALLS: dict[str, dict[str, Call]] = {
    "append": {
        "a cell beyond the table": _append([10**6]),
        "a position under -1": _append([-2]),
        "more values than positions": _append([0, 1], extra=1),
        "a cell without a page": _absent,
        "a page beyond the pool": _page_beyond,
        "the wrong number of heads": _wrong_heads,
        "a gap in a stateful run": _append([0, 2], stateful=True),
        "a stateful run that starts late": _append([5, 6], stateful=True),
        "too many drafts": _append(list(range(18)), stateful=True, draft=True),
        "fractional positions": _append([0.5]),
    },
    "gather": {
        "an id beyond the table": _gather([10**6]),
        "a negative id": _gather([0, -1]),
    },
    "attention": {
        "heads that do not divide": _attention(3, 4),
        "fewer query heads than KV heads": _attention(1, 4),
        "a length beyond the table": _attention(4, 10**6),
        "an id beyond the length": _attention(4, 4, ids=np.asarray([4])),
        "an id under -1": _attention(4, 4, ids=np.asarray([-2])),
        "a window of nothing": _attention(4, 4, window=0),
        "a scale that is not finite": _attention(4, 4, scale=float("nan")),
        "a key without its value": _attention(4, 4, k=np.ones((1, 2, 64), np.float32)),
    },
    "restore": {"more cells than there are": _restore(999), "a negative length": _restore(-1)},
    "move": {
        "a page beyond the pool": _move([0], [10**5]),
        "one page written twice": _move([0, 1], [2, 2]),
        "a page read and written": _move([0, 1], [1, 2]),
        "lists of unequal length": _move([0, 1], [2]),
    },
}


def _run(calls: dict[str, Call], fmt: Format, bench: Bench) -> Iterator[str]:
    layout = layout_of(fmt, page_size=4)
    twin = Twin(
        bench=bench,
        layout=layout,
        n_pages=pages_of(layout, 1, 100),
        state_layout=StateLayout(layout=layout, sinks=2, window=8),
    )
    table = shuffled_table(bench.rng, layout, 1, 100)
    assert twin.states is not None
    for what, call in calls.items():
        wanted, got = (
            _error(partial(call, be, twin.pools[side], twin.states[side], table))
            for side, be in enumerate((bench.ref, bench.be))
        )
        if wanted is None:
            yield f"{what}: the reference accepts it: the case is wrong"
        if got is None and not operands.is_host(twin.states[1].marks):
            got = _error(bench.be.synchronize)
            _clear_flag(bench, twin.states[1])
        if type(got) is not type(wanted):
            yield f"{what}: got {got!r}, expected {wanted!r}"
        yield from (f"{what}: {d}" for d in twin.differences())


def _error(call: Callable[[], None]) -> KvcoreError | None:
    try:
        call()
    except UnsupportedError:
        raise
    except KvcoreError as error:
        return error
    return None


def _clear_flag(bench: Bench, state: State) -> None:
    marks = bench.host(state.marks).copy()
    marks[:, FLAG] = 0
    bench.be.write(state.marks, marks)


def _held_append(fmt: Format, bench: Bench) -> Iterator[str]:
    """Bad positions held by a device are skipped as padding is, and raise when synchronised."""
    layout = layout_of(fmt)
    twin = Twin(bench=bench, layout=layout, n_pages=pages_of(layout, 1, 70))
    table = shuffled_table(bench.rng, layout, 1, 70)
    k, v = (ordinary(bench.rng, a.shape) for a in _chunk(twin.pools[0], 12))
    good = np.asarray([*range(10), -1, -1], np.int32)
    bad = good.copy()
    bad[10:] = (10**6, -7)
    held = bench.ints(bad)
    if operands.is_host(held):
        if _error(lambda: bench.be.append(twin.pools[1], table, held, k, v)) is None:
            yield "positions out of range: got no error, expected RangeError"
    else:
        bench.be.append(twin.pools[1], table, held, k, v)
        if not isinstance(_error(bench.be.synchronize), RangeError):
            yield "positions out of range: got no error at synchronize, expected RangeError"
        twin.append_reference(table, good, k, v)
    yield from twin.differences()


def refusal_cases(fmt: Format) -> Iterator[Case]:
    """Yield the refusals of every op for one format."""
    for op, calls in CALLS.items():
        run = partial(_run, calls, fmt)
        title = "bad operands are refused"
        yield Case(op=op, title=title, run=run, format=fmt, quick=True, refusal=True)
    run = partial(_held_append, fmt)
    title = "bad operands held by the device"
    yield Case(op="append", title=title, run=run, format=fmt, refusal=True)
