"""gather, restore and move: what is read back or copied equals the reference's, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from kvcore.conformance.append_cases import Add, Script, make_twin, play
from kvcore.conformance.case import Case
from kvcore.conformance.twin import (
    Bench,
    Twin,
    layout_of,
    pages_of,
    shuffled_table,
    value_differences,
)
from kvcore.spec import Format


def random_scales(bench: Bench, twin: Twin) -> None:
    """Give every code and every kind of scale a place: codes are noise already."""
    for name, plane in twin.pools[0].planes.items():
        if name.endswith("scales"):
            signs = bench.rng.integers(0, 2, plane.shape, np.uint16) << np.uint16(15)
            finite = bench.rng.integers(0, 0x7C00, plane.shape, np.uint16)
            plane[...] = (finite | signs).view(np.float16)
    twin.sync()


def _gather(page: int, dims: tuple[int, int], fmt: Format, bench: Bench) -> Iterator[str]:
    layout = layout_of(fmt, page_size=page, dims=dims)
    twin = Twin(bench=bench, layout=layout, n_pages=pages_of(layout, 3, 130))
    table = shuffled_table(bench.rng, layout, 3, 130)
    random_scales(bench, twin)
    mine, theirs = twin.pools
    ids = bench.rng.integers(0, 130, (3, 90), np.int32)
    asks = ((table, ids), (table[0], ids[0]), (table[1], ids[1, :0]), (table[2], ids[2, ::-1]))
    for t, i in asks:
        expected = bench.ref.gather(mine, t, i)
        got = bench.be.gather(theirs, t, i)
        for store, g, e in zip("kv", got, expected, strict=True):
            yield from value_differences(f"{store} of {i.shape} ids", bench.host(g), e)
    k, _ = bench.be.gather(theirs, bench.ints(table), bench.ints(ids))
    yield from value_differences(
        "k, ids held by the device", bench.host(k), bench.ref.gather(mine, table, ids)[0]
    )
    yield from twin.differences()


RESTORES = (
    Script(title="an overlay", steps=(Add(n=150),), sinks=5, window=20, batch=2, quick=True),
    Script(
        title="sinks beyond the window, P=4",
        steps=(Add(n=(70, 9)), Add(n=(13, 1))),
        sinks=12,
        window=40,
        page_size=4,
        batch=2,
    ),
    Script(
        title="a centred K",
        steps=(Add(n=100), Add(n=9)),
        sinks=3,
        window=30,
        centre="auto",
        quick=True,
    ),
)


def _restore(script: Script, fmt: Format, bench: Bench) -> Iterator[str]:
    twin, table = make_twin(bench, fmt, script)
    list(play(bench, twin, table, script, both=False))
    assert twin.states is not None
    mine, theirs = twin.states
    for name in ("k", "v"):
        exact = getattr(mine, name)
        live = bench.rng.random(exact.shape) < 0.5
        exact[live] = np.float16(7)
    twin.sync()
    n = np.asarray(twin.lengths, np.int32)
    bench.ref.restore(mine, twin.pools[0], table, n)
    bench.be.restore(theirs, twin.pools[1], table, n)
    bench.be.synchronize()
    yield from twin.differences()


def _move(page: int, fmt: Format, bench: Bench) -> Iterator[str]:
    layout = layout_of(fmt, page_size=page)
    u = layout.unit_pages
    one, two = (Twin(bench=bench, layout=layout, n_pages=n * u) for n in (9, 5))
    order = bench.rng.permutation(9)
    src, dst = order[:4], bench.rng.permutation(5)[:4]

    def pages(
        units: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return (units[:, None] * u + np.arange(u)).reshape(-1).astype(np.int32)

    for side, be in enumerate((bench.ref, bench.be)):
        be.move(one.pools[side], pages(src), two.pools[side], pages(dst))
        be.move(one.pools[side], pages(order[:3]), one.pools[side], pages(order[5:8]))
        be.move(one.pools[side], pages(src[:0]), two.pools[side], pages(dst[:0]))
        be.synchronize()
    yield from two.differences()
    yield from one.differences()


def read_cases(fmt: Format) -> Iterator[Case]:
    """Yield the cases of gather, restore and move for one format."""
    for page, dims in ((4, (96, 64)), (32, (256, 256)), (64, (320, 96))):
        title = f"every code and scale, shuffled pages, P={page}, D={dims}"
        run = partial(_gather, page, dims, fmt)
        yield Case(op="gather", title=title, run=run, format=fmt, quick=page == 4)
    for script in RESTORES:
        if script.centre == "none" or fmt.k.scale is not None:
            run = partial(_restore, script, fmt)
            yield Case(op="restore", title=script.title, run=run, format=fmt, quick=script.quick)
    for page in (4, 64):
        run = partial(_move, page, fmt)
        title = f"between pools and within one, P={page}"
        yield Case(op="move", title=title, run=run, format=fmt, quick=page == 4)
