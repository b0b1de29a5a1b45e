"""Seeded faults: a backend that is the reference but for one mistake is found, at that op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvcore
from kvcore import eager, quantize
from kvcore import marks as rules
from kvcore.ops import append as append_module
from kvcore.ops import restore as restore_module
from kvcore.spec import Rounding
from tests.toy_backends import reference_of, toy

Body = Callable[..., Any]


def with_arguments(op: str, **fixed: Any) -> Body:
    """Ignore an argument: the reference with another value in its place."""
    good = reference_of(op)
    return lambda be, **arguments: good(be, **(arguments | fixed))


def changed(op: str, change: Callable[[dict[str, Any]], None]) -> Body:
    good = reference_of(op)

    def body(be: Any, **arguments: Any) -> Any:
        change(arguments)
        return good(be, **arguments)

    return body


def after(op: str, spoil: Callable[[dict[str, Any], Any], Any]) -> Body:
    """Spoil what the reference has written or returned."""
    good = reference_of(op)

    def body(be: Any, **arguments: Any) -> Any:
        return spoil(arguments, good(be, **arguments))

    return body


def patched(op: str, where: Any, name: str, value: Any) -> Body:
    """Run the reference with one of its functions replaced."""
    good = reference_of(op)

    def body(be: Any, **arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, name, value)
            return good(be, **arguments)

    return body


def _swap_nibbles(arguments: dict[str, Any], _: Any) -> None:
    layout = arguments["pool"].layout
    if layout.v.bits == 4:
        codes = arguments["pool"].planes["v_codes"]
        codes[...] = codes << 4 | codes >> 4


def _first_of_equals(arguments: dict[str, Any]) -> None:
    if arguments["state"] is None and not arguments["pool"].layout.per_channel:
        for name, axis in (("positions", -1), ("k", -3), ("v", -3)):
            arguments[name] = np.flip(np.asarray(arguments[name]), axis=axis)


def _wrap_padding(arguments: dict[str, Any]) -> None:
    positions = np.array(arguments["positions"])
    if arguments["state"] is None and not arguments["pool"].layout.per_channel:
        positions[positions == -1] = 0
    arguments["positions"] = positions


def _identity_table(arguments: dict[str, Any]) -> None:
    table = np.array(arguments["table"])
    arguments["table"] = np.sort(table, axis=-1)


def _no_sinks(row: list[int], sl: Any, store: str, cell: int, length: int) -> bool:
    return cell >= sl.sinks and REAL_READS_EXACT(row, sl, store, cell, length)


def _window_of_the_pool(row: list[int], sl: Any, store: str, cell: int, length: int) -> bool:
    return REAL_READS_EXACT(row, sl, store, cell, row[1])


def _short_ring(state: Any, store: str, cells: Any) -> Any:
    sinks, ring = state.layout.sinks, state.layout.ring(store)
    cells = np.asarray(cells, np.int64)
    return np.where(cells < sinks, cells, sinks + (cells + 1) % ring)


def _half_away(x: Any) -> Any:
    return np.trunc(x + np.copysign(np.float32(0.5), x))


def _descending(terms: Any, axis: int = 0) -> Any:
    return REAL_SUM(np.flip(terms, axis), axis)


def _pairwise(terms: Any, axis: int = 0) -> Any:
    terms = np.moveaxis(np.asarray(terms, np.float32), axis, 0)
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else terms[:0]
        even = len(terms) // 2 * 2
        terms = np.concatenate([terms[:even:2] + terms[1:even:2], odd])
    return terms[0]


def _fused(codec: Any, x: Any, scale: Any) -> Any:
    """A grid code with the product and the sum in one rounding, as a contraction would."""
    if codec.rounding is not Rounding.RECIPROCAL_TRUNC:
        return REAL_CODES(codec, x, scale)
    with np.errstate(all="ignore"):
        inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
        y = np.asarray(x, np.float64) * inverse + (codec.zero + 0.5)
    y = np.nan_to_num(np.trunc(y.astype(np.float32)), nan=0.0)
    return np.clip(y, 0, 15).astype(np.uint8)


def _reciprocal(codec: Any, x: Any, scale: Any) -> Any:
    """The code of x * (1 / s) where the rule divides."""
    if codec.rounding is not Rounding.DIVIDE_HALF_EVEN:
        return REAL_CODES(codec, x, scale)
    with np.errstate(all="ignore"):
        y = np.where(scale > 0, np.rint(x * (np.float32(1) / scale)), np.float32(0))
    return np.clip(np.nan_to_num(y, nan=0.0), -127, 127).astype(np.int32).astype(np.uint8)


def _unsaturated(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16)


def _codes_only(arguments: dict[str, Any], _: Any) -> None:
    pool = arguments["dst"]
    for name, plane in pool.planes.items():
        if name == "v_scales":
            plane[...] = np.float16(0.5)


def _higher_ties(arguments: dict[str, Any], result: Any) -> Any:
    ids, scores = result
    return np.where(ids >= 0, ids[:, :], -1)[:, ::-1].copy(), scores


def _evict_first(arguments: dict[str, Any], placed: Any) -> Any:
    arguments["residency"].ctl[1] = 0
    return placed


REAL_SUM = quantize.sequential_sum
REAL_CODES = quantize.choose_codes
REAL_READS_EXACT = rules.reads_exact
REAL_ENCODE_GROUP = quantize.encode_group


def _sinks_in_the_scale(codec: Any, x: Any, counted: Any, gain: Any = 1.0) -> Any:
    return REAL_ENCODE_GROUP(codec, x, np.ones_like(counted), gain)


def _stale_scale(codec: Any, x: Any, counted: Any, gain: Any = 1.0) -> Any:
    return REAL_ENCODE_GROUP(codec, x[::-1], counted[::-1], gain)[0][::-1], np.roll(
        REAL_ENCODE_GROUP(codec, x, counted, gain)[1], 1, axis=-1
    )


FAULTS: dict[str, tuple[str, Body]] = {
    "nibbles swapped": ("append", after("append", _swap_nibbles)),
    "the first of equal cells wins": ("append", changed("append", _first_of_equals)),
    "padding written to cell 0": ("append", changed("append", _wrap_padding)),
    "drafts taken as final": ("append", with_arguments("append", draft=False)),
    "commit ignored": ("append", with_arguments("append", commit=None)),
    "the page table ignored": ("append", changed("append", _identity_table)),
    "the ring off by one": ("append", patched("append", append_module, "exact_slot", _short_ring)),
    "rounding half away": ("append", patched("append", np, "rint", _half_away)),
    "sums in pairs": ("append", patched("append", quantize, "sequential_sum", _pairwise)),
    "sums from the end": ("append", patched("append", quantize, "sequential_sum", _descending)),
    "a fused multiply-add in q4_0": ("append", patched("append", quantize, "choose_codes", _fused)),
    "a reciprocal for a division": (
        "append", patched("append", quantize, "choose_codes", _reciprocal)
    ),
    "no saturation": ("append", patched("append", quantize, "to_f16", _unsaturated)),
    "sinks in their group's scale": (
        "append", patched("append", append_module, "encode_group", _sinks_in_the_scale)
    ),
    "the scale of the next channel": (
        "append", patched("append", append_module, "encode_group", _stale_scale)
    ),
    "gain left off the stored scale": (
        "append", patched("append", quantize, "apply_gain", lambda scale, gain: scale)
    ),
    "gain not taken off again": (
        "append", patched("append", append_module, "remove_gain", lambda stored, gain: stored)
    ),
    "shrink forgotten": (
        "append",
        patched("append", eager, "partial_scale",
                lambda x, previous, rule: quantize.to_f16(quantize.rms(x, axis=0))),
    ),
    "gather from an identity table": ("gather", changed("gather", _identity_table)),
    "gather of K for V": (
        "gather",
        after("gather", lambda a, r: (r[0], np.resize(r[0], r[1].shape))),
    ),
    "the window of attention ignored": ("attention", with_arguments("attention", window=None)),
    "the soft cap ignored": ("attention", with_arguments("attention", softcap=None)),
    "the scale ignored": ("attention", with_arguments("attention", scale=None)),
    "the overlay ignored": ("attention", with_arguments("attention", state=None)),
    "chosen cells ignored": ("attention", with_arguments("attention", ids=None)),
    "the own chunk ignored": ("attention", with_arguments("attention", k=None, v=None)),
    "sinks read from the bulk": (
        "attention", patched("attention", rules, "reads_exact", _no_sinks)
    ),
    "the window of the pool instead of the query's": (
        "attention", patched("attention", rules, "reads_exact", _window_of_the_pool)
    ),
    "heads in another order": (
        "attention",
        after("attention", lambda a, r: (r[0][..., ::-1, :], r[1]) if a["return_lse"] else r),
    ),
    "a log-sum-exp without its maximum": (
        "attention",
        after("attention", lambda a, r: (
            (r[0], np.where(np.isinf(r[1]), r[1], 0)) if a["return_lse"] else r
        )),
    ),
    "NaN where nothing is seen": (
        "attention",
        after("attention", lambda a, r: (
            (np.where(np.isinf(r[1])[..., None], np.nan, r[0]), r[1]) if a["return_lse"] else r
        )),
    ),
    "out= ignored": (
        "attention", changed("attention", lambda a: a.update(out=None))
    ),
    "the centre left out of restore": (
        "restore",
        patched("restore", restore_module, "to_f16", lambda x: quantize.to_f16(x * 0.5)),
    ),
    "restore into the next slot": (
        "restore", patched("restore", restore_module, "exact_slot", _short_ring)
    ),
    "scales left behind by a move": ("move", after("move", _codes_only)),
    "a move the other way round": (
        "move",
        changed("move", lambda a: a.update(src_pages=np.roll(np.asarray(a["src_pages"]), 8))),
    ),
    "the unit of a ring ignored": ("ring_table", with_arguments("ring_table", unit=1)),
    "the hand of the clock reset": ("resolve", after("resolve", _evict_first)),
    "ids in descending order": ("select", after("select", _higher_ties)),
    "rotation without its scale": (
        "rotate", after("rotate", lambda a, r: r * np.float32(2))
    ),
    "rotation that loses -0": ("rotate", after("rotate", lambda a, r: r + np.float32(0))),
    "rotation of a copy when out= is given": (
        "rotate", changed("rotate", lambda a: a.update(out=None))
    ),
}  # fmt: skip


@pytest.mark.parametrize(("op", "body"), FAULTS.values(), ids=list(FAULTS))
def test_a_seeded_fault_is_found(op, body):
    be, formats = toy(**{op: body})(), ["q2k", "int8", "q4_0"]
    report = kvcore.check(be, ops=[op], formats=formats, quick=True)
    if not report.failures:
        report = kvcore.check(be, ops=[op], formats=formats)
    assert report.failures
    assert {o.op for o in report.failures} == {op}


def test_no_fault_is_found_where_there_is_none():
    untouched = {op: reference_of(op) for op in ("append", "gather", "attention", "restore")}
    report = kvcore.check(toy(**untouched)(), formats=["q2k"])
    assert report.ok, str(report)
