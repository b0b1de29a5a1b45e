"""Every message about operands is raised, reads as promised, and leaves every byte as it was."""

from __future__ import annotations

import ast
import dataclasses
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import kvcore
from kvcore import operands
from kvcore.conformance.twin import STATE_ARRAYS
from kvcore.errors import FormatError, RangeError, ShapeError
from kvcore.pool import Pool, State
from kvcore.reference import Reference

D = 64
FOLDER = Path(operands.__file__).parent


@dataclass(frozen=True, kw_only=True)
class World:
    """A per-channel pool of 2 heads and 16 pages of 4 cells, with 70 cells in a state."""

    be: Reference
    pool: Pool
    table: np.ndarray
    state: State

    def append(self, positions: Any, k: Any = None, v: Any = None, **more: Any) -> None:
        n = np.shape(positions)[-1]
        k = ones(n) if k is None else k
        v = ones(n) if v is None else v
        table = more.pop("table", self.table)
        self.be.append(more.pop("pool", self.pool), table, positions, k, v, **more)

    def attend(self, heads: int = 4, lengths: Any = (10,), **more: Any) -> None:
        q = more.pop("q", np.ones((1, heads, D), np.float32))
        self.be.attention(q, self.pool, more.pop("table", self.table), lengths, **more)


def ones(n: int, heads: int = 2, dim: int = D) -> np.ndarray:
    return np.ones((n, heads, dim), np.float32)


def build(format: str = "q2k") -> World:
    spec = kvcore.CacheSpec(
        format=format, n_kv_heads=2, head_dim=D, page_size=4, sinks=2, window=8, k_center="none"
    )
    be = Reference()
    rng = np.random.default_rng(1)
    pool, state = be.pool(spec.layout, 32), be.state(spec.state_layout)
    table = np.arange(24, dtype=np.int32)
    k, v = (rng.normal(size=(70, 2, D)).astype(np.float32) for _ in range(2))
    be.append(pool, table, np.arange(70), k, v, state=state)
    return World(be=be, pool=pool, table=table, state=state)


class OnGpu:
    """What an array of a CUDA library looks like from outside."""

    __cuda_array_interface__: ClassVar = {
        "shape": (3,),
        "typestr": "<i4",
        "data": (0, True),
        "version": 3,
    }


class NoArray:
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("not for you")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def patched(table: np.ndarray, **values: int) -> np.ndarray:
    out = table.copy()
    for at, page in values.items():
        out[int(at[1:])] = page
    return out


def other_state(w: World) -> State:
    return build("q4_0").state


def unbiased_pool(w: World) -> Pool:
    layout = dataclasses.replace(w.pool.layout, k_gain="unbiased")
    return w.be.pool(layout, w.pool.n_pages)


def two_states(w: World) -> State:
    return w.be.state(w.state.layout, 2)


def drafted(w: World, **more: Any) -> None:
    """Open 3 drafts, then append; the drafts are undone by the test's own comparison."""
    w.append(np.arange(70, 73), state=w.state, draft=True)
    before(w)
    w.append(np.arange(73, 73 + more.pop("n", 1)), state=w.state, **more)


_kept: dict[str, np.ndarray] = {}


def before(w: World) -> None:
    _kept.clear()
    _kept.update({n: p.copy() for n, p in w.pool.planes.items()})
    _kept.update({f"state {n}": getattr(w.state, n).copy() for n in STATE_ARRAYS})


Call = Callable[[World], None]

CASES: dict[str, tuple[Call, type[Exception], str]] = {
    "ints for values": (
        lambda w: w.append([0], k=np.ones((1, 2, D), np.int64)),
        ShapeError, r"\[append\] k has the wrong dtype: got int64, expected floats",
    ),
    "floats for positions": (
        lambda w: w.append(np.array([0.0])),
        ShapeError, r"\[append\] positions has the wrong dtype: got float64, expected integers",
    ),
    "a position beyond 32 bits": (
        lambda w: w.append(np.array([2**40])),
        RangeError, r"\[append\] positions is out of range: got 1099511627776, expected 32-bit",
    ),
    "an array of a GPU": (
        lambda w: w.append([0], table=OnGpu()),
        ShapeError, r"\[append\] table is on the wrong device: got OnGpu, expected host; copy it",
    ),
    "no array at all": (
        lambda w: w.append([0], k=NoArray()),
        ShapeError, r"\[append\] k is not a host array: got NoArray, .*\(not for you\)",
    ),
    "an out of another shape": (
        lambda w: w.attend(out=np.zeros((1, 4, 3), np.float32)),
        ShapeError, r"\[attention\] out is not usable: got ndarray float32\(1, 4, 3\), expected",
    ),
    "K of another width": (
        lambda w: w.append([0], k=ones(1, dim=32)),
        ShapeError, r"\[append\] k has the wrong shape: got \(1, 1, 2, 32\), .*with H=2, D=64",
    ),
    "K and V of different lengths": (
        lambda w: w.append([0, 1], v=ones(1)),
        ShapeError, r"\[append\] v has the wrong shape: got \(1, 1\), expected \(1, 2\)",
    ),
    "more cells than positions": (
        lambda w: w.append([0], k=ones(2), v=ones(2)),
        ShapeError, r"\[append\] positions has the wrong shape",
    ),
    "kb_09 a cell past the capacity": (
        lambda w: w.append([96]),
        RangeError, r"\[append\] a position is out of range: got 96, expected -1 <= cell < 96",
    ),
    "kb_09 the largest 32-bit cell": (
        lambda w: w.append([2**31 - 1]),
        RangeError, r"\[append\] a position is out of range: got 2147483647",
    ),
    "a position under -1": (
        lambda w: w.append([-2]),
        RangeError, r"\[append\] a position is out of range: got -2",
    ),
    "kb_09 a cell without a page": (
        lambda w: w.append([5], table=patched(w.table, b1=-1)),
        RangeError, r"\[append\] a cell has no page: got cell 5, page -1, expected a resident",
    ),
    "a gap in a run": (
        lambda w: w.append([0, 2]),
        ShapeError, r"\[append\] positions of one sequence are not a run: got \[0, 2\]",
    ),
    "kb_12 the same cell twice in a run": (
        lambda w: w.append([7, 7]),
        ShapeError, r"\[append\] positions of one sequence are not a run: got \[7, 7\]",
    ),
    "a run that leaves cells out": (
        lambda w: w.append([71], state=w.state),
        RangeError, r"the run does not continue the sequence: got 71, expected cell 70; truncate",
    ),
    "a commit beyond the cells": (
        lambda w: w.append(np.zeros(0, int), state=w.state, commit=[71]),
        RangeError, r"\[commit\] cannot commit to that length: got 71, expected 70 <= n <= 70",
    ),
    "an append over open drafts": (
        drafted,
        ShapeError, r"\[append\] 3 drafts are open: got an append without draft=True; commit or",
    ),
    "too many drafts": (
        lambda w: drafted(w, n=15, draft=True),
        RangeError, r"\[append\] too many drafts: got 18, expected <= 17",
    ),
    "an unbiased gain without whole groups": (
        lambda w: w.append([0], pool=unbiased_pool(w)),
        FormatError, r"\[append\] k_gain='unbiased' needs whole groups: got eager grouping",
    ),
    "a draft without a state": (
        lambda w: w.append([0], draft=True),
        ShapeError, r"\[append\] draft and commit need a state that keeps them: got no state",
    ),
    "a state of another layout": (
        lambda w: w.append([0], state=other_state(w)),
        ShapeError, r"\[append\] the state was made for another layout than the pool's",
    ),
    "a state of another batch": (
        lambda w: w.append([70], state=two_states(w)),
        ShapeError, r"\[append\] the state has another batch: got 2, expected 1",
    ),
    "kb_15 heads that do not divide": (
        lambda w: w.attend(heads=3),
        ShapeError, r"query heads do not share the KV heads evenly: got Q=3, H=2, expected Q a",
    ),
    "kb_15 fewer query heads than KV heads": (
        lambda w: w.attend(heads=1),
        ShapeError, r"query heads do not share the KV heads evenly: got Q=1, H=2",
    ),
    "a key without its value": (
        lambda w: w.attend(k=ones(1)),
        ShapeError, r"\[attention\] k and v come together: got one of them, expected both or none",
    ),
    "own cells that are not the queries'": (
        lambda w: w.attend(k=ones(2), v=ones(2)),
        ShapeError, r"\[attention\] k has the wrong shape: got \(1, 2, 2, 64\)",
    ),
    "a length beyond the table": (
        lambda w: w.attend(lengths=[97]),
        RangeError, r"\[attention\] a length is out of range: got 97, expected 0 to 96",
    ),
    "a negative length": (
        lambda w: w.attend(lengths=[[-1]]),
        RangeError, r"\[attention\] a length is out of range: got -1",
    ),
    "kb_09 an id beyond the length": (
        lambda w: w.attend(ids=[3, 10]),
        RangeError, r"an id is out of range: got 10, expected -1 <= id < 10 for query 0 of seq",
    ),
    "an id under -1": (
        lambda w: w.attend(ids=[-2]),
        RangeError, r"\[attention\] an id is out of range: got -2, expected -1 <= id < 10",
    ),
    "a scale that is no number": (
        lambda w: w.attend(scale="big"),
        ShapeError, r"\[attention\] scale is not a number: got big, expected float",
    ),
    "a scale that is not finite": (
        lambda w: w.attend(scale=np.inf),
        ShapeError, r"\[attention\] scale is not usable: got inf, expected a finite number",
    ),
    "a negative soft cap": (
        lambda w: w.attend(softcap=-1.0),
        ShapeError, r"\[attention\] softcap is not usable: got -1.0",
    ),
    "kb_20 a window of nothing": (
        lambda w: w.attend(window=0),
        ShapeError, r"\[attention\] window is not usable: got 0, expected an integer >= 1 or None",
    ),
    "kb_20 a fractional window": (
        lambda w: w.attend(window=2.5),
        ShapeError, r"\[attention\] window is not usable: got 2.5",
    ),
    "an id of gather beyond the table": (
        lambda w: w.be.gather(w.pool, w.table, [96]),
        RangeError, r"\[gather\] an id is out of range: got 96, expected 0 <= id < 96",
    ),
    "kb_13 a -1 in gather": (
        lambda w: w.be.gather(w.pool, w.table, [0, -1]),
        RangeError, r"\[gather\] an id is out of range: got -1",
    ),
    "gather of a cell that is not resident": (
        lambda w: w.be.gather(w.pool, patched(w.table, b2=-1), [9]),
        RangeError, r"\[gather\] a cell is not resident: got cell 9, page -1, .*resolve and move",
    ),
    "a page beyond the pool": (
        lambda w: w.be.gather(w.pool, patched(w.table, b2=32), [0]),
        RangeError, r"\[gather\] a page is out of range: got 32, expected -1 <= page < 32",
    ),
    "a page under -1": (
        lambda w: w.append([0], table=patched(w.table, b2=-2)),
        RangeError, r"\[append\] a page is out of range: got -2",
    ),
    "a table that splits a unit": (
        lambda w: w.append([0], table=patched(w.table, b1=9)),
        ShapeError, r"splits a unit of a per-channel codec: .*table\[b\] % 8 == b % 8.*; permute",
    ),
    "a table out of step": (
        lambda w: w.append([0], table=patched(w.table, b1=3, b3=1)),
        ShapeError, r"the table splits a unit of a per-channel codec",
    ),
    "a move to a page beyond the pool": (
        lambda w: w.be.move(w.pool, np.arange(8), w.pool, np.arange(8) + 32),
        RangeError, r"\[move\] dst_pages is out of range: got 39, expected 0 <= page < 32",
    ),
    "a move of a page beyond the pool": (
        lambda w: w.be.move(w.pool, np.arange(8) + 32, w.pool, np.arange(8)),
        RangeError, r"\[move\] src_pages is out of range: got 39, expected 0 <= page < 32",
    ),
    "a move of half a unit": (
        lambda w: w.be.move(w.pool, np.arange(4), w.pool, np.arange(4)),
        ShapeError, r"\[move\] src_pages are not whole units: got \[0, 1, 2, 3\], expected runs",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), CASES.values(), ids=list(CASES))
def test_a_bad_operand_is_refused_in_words_before_anything_is_written(call, error, words):
    w = build()
    before(w)
    with pytest.raises((FormatError, ShapeError)) as caught:
        call(w)
    assert type(caught.value) is error
    assert re.search(words, str(caught.value)), str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, IndexError) == isinstance(caught.value, RangeError)
    for name, plane in w.pool.planes.items():
        np.testing.assert_array_equal(plane.view(np.uint8), _kept[name].view(np.uint8))
    for name in STATE_ARRAYS:
        np.testing.assert_array_equal(getattr(w.state, name), _kept[f"state {name}"])


def raises_in(path: Path) -> set[tuple[str, int]]:
    tree = ast.parse(path.read_text())
    return {(path.name, n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Raise)}


def test_every_raise_of_the_operand_checks_is_reached_by_a_case():
    written = set().union(*(raises_in(p) for p in FOLDER.glob("*.py")))
    spans = {
        (p.name, n.lineno): n.end_lineno
        for p in FOLDER.glob("*.py")
        for n in ast.walk(ast.parse(p.read_text()))
        if isinstance(n, ast.Raise)
    }
    reached = set()
    for call, _, _ in CASES.values():
        try:
            call(build())
        except (FormatError, ShapeError) as error:
            for frame in traceback.extract_tb(error.__traceback__):
                name = Path(frame.filename).name
                reached |= {
                    (n, first)
                    for (n, first), last in spans.items()
                    if n == name and first <= (frame.lineno or 0) <= (last or first)
                }
    assert written - reached == set()


def test_a_scalar_spelt_in_any_way_gives_the_same_result():
    """KB-26: Python float, int, NumPy scalars and 0-d arrays."""
    w = build()
    q = np.random.default_rng(2).normal(size=(1, 4, D)).astype(np.float32)
    outs = [
        w.be.attention(q, w.pool, w.table, [30], scale=s)
        for s in (2, 2.0, np.float32(2), np.float64(2), np.array(2.0), np.array([2.0]))
    ]
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])


def test_lengths_may_be_a_plain_number_a_list_or_an_array():
    w = build()
    q = np.ones((1, 4, D), np.float32)
    outs = [
        w.be.attention(q, w.pool, w.table, n)
        for n in (30, [30], np.array([30]), np.array([30], np.uint8), np.array([[30]]))
    ]
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0])
