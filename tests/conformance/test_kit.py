"""The kit itself: what is red, what is not, and what its report says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import kvcore
from kvcore import codecs, ops
from kvcore.conformance import Status
from kvcore.conformance.kit import all_cases
from kvcore.errors import BackendUnavailable, FormatError, LinkError, UnsupportedError
from kvcore.reference import Reference
from tests.toy_backends import reference_of, toy


def refusing(op: str, codec: str) -> Any:
    """Return a body that refuses pools with a codec and does as the reference does otherwise."""
    good = reference_of(op)

    def body(be: Any, **arguments: Any) -> Any:
        layout = arguments["pool"].layout
        if codec in (layout.k.name, layout.v.name):
            raise UnsupportedError(f"[{op}] {codec} is not done here")
        return good(be, **arguments)

    return body


def test_the_reference_passes_in_full():
    report = kvcore.check(Reference(), formats=["q2k", "int8"])
    assert report.ok, str(report)
    assert report.failures == report.gaps == ()


def test_quick_touches_every_op_and_every_codec():
    cases = [c for c in all_cases(kvcore.formats(), pairs=False) if c.quick]
    assert {c.op for c in cases} == set(ops.declared())
    for op in ops.declared().values():
        used = {codec for c in cases if c.op == op.name for codec in c.codecs}
        assert used == (set(codecs.all_codecs()) if op.per_codec else set())


def test_cases_have_unique_names():
    names = [(c.op, c.format and c.format.name, c.title) for c in all_cases(kvcore.formats(), True)]
    assert len(names) == len(set(names))


def test_every_codec_is_tried_in_both_stores():
    cases = list(all_cases(kvcore.formats(), pairs=True))
    for place in (0, 1):
        tried = {c.codecs[place] for c in cases if c.op == "append"}
        assert tried >= set(codecs.all_codecs()) - ({"q4_64", "q1t"} if place == 0 else set())


def test_an_undeclared_gap_is_red():
    report = kvcore.check(toy(gather=refusing("gather", "q2c"))(), ops=["gather"], quick=True)
    assert not report.ok
    assert {c for o in report.failures for c in o.codecs} >= {"q2c"}
    assert all("q2c" in o.codecs and "undeclared gap" in o.detail for o in report.failures)


def test_a_declared_gap_that_refuses_is_not_red_and_is_reported():
    gaps = {"gather": {"q2c": "no per-channel scales"}}
    be = toy(gaps=gaps, gather=refusing("gather", "q2c"))()
    report = kvcore.check(be, ops=["gather"], quick=True)
    assert report.ok, str(report)
    assert report.gaps
    assert all(o.detail == "no per-channel scales" for o in report.gaps)
    assert report.counts()["gather", "q2c"]["declared gap"] > 0
    assert report.counts()["gather", "int8"]["pass"] > 0


def test_a_declared_gap_that_works_is_red():
    be = toy(gaps={"gather": {"q2c": "was hard"}}, gather=reference_of("gather"))()
    report = kvcore.check(be, ops=["gather"], quick=True)
    assert not report.ok
    assert {o.status for o in report.failures} == {Status.GAP_WORKS}
    assert all("q2c" in o.codecs for o in report.failures)


def test_a_declared_gap_that_answers_wrongly_instead_of_refusing_is_red():
    def zeros(be: Any, **arguments: Any) -> Any:
        return tuple(np.zeros_like(a) for a in reference_of("gather")(be, **arguments))

    be = toy(gaps={"gather": {"*": "not yet"}}, gather=zeros)()
    report = kvcore.check(be, ops=["gather"], formats=["q4_0"], quick=True)
    assert not report.ok
    assert {o.status for o in report.failures} == {Status.GAP_SILENT}


def test_an_op_that_raises_anything_else_is_red_with_the_error():
    def broken(be: Any, **arguments: Any) -> Any:
        raise MemoryError("out of beads")

    report = kvcore.check(toy(gather=broken)(), ops=["gather"], formats=["q4_0"], quick=True)
    assert {o.status for o in report.failures} == {Status.ERROR}
    assert "MemoryError: out of beads" in str(report)


def test_a_failure_says_how_to_see_it_again_and_does_so():
    def off(be: Any, **arguments: Any) -> Any:
        k, v = reference_of("gather")(be, **arguments)
        return np.flip(k, axis=-1), v

    be = toy(gather=off)()
    report = kvcore.check(be, ops=["gather"], formats=["q4_0"], seed=7, quick=True)
    failure = report.failures[0]
    assert failure.reproduce == ("kvcore.check(backend, ops=['gather'], formats=['q4_0'], seed=7)")
    again = eval(failure.reproduce, {"kvcore": kvcore, "backend": be})
    assert failure in again.failures
    assert "differs at [" in failure.detail
    assert "expected" in failure.detail
    other = kvcore.check(be, ops=["gather"], formats=["q4_0"], seed=8, quick=True)
    assert other.failures[0].detail != failure.detail


def test_a_case_draws_the_same_values_alone_and_among_others():
    def off(be: Any, **arguments: Any) -> Any:
        k, v = reference_of("gather")(be, **arguments)
        return -k, v

    be = toy(gather=off)()
    alone = kvcore.check(be, ops=["gather"], formats=["int8"], quick=True)
    among = kvcore.check(be, formats=["q4_0", "int8"], quick=True)
    assert alone.failures == tuple(o for o in among.failures if o.format == "int8")


def test_the_report_is_plain_data_too():
    report = kvcore.check("reference", ops=["ring_table", "move"], formats=["f16"], quick=True)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["ok"] is True
    assert plain["backend"] == "reference"
    assert plain["cases"] == len(report.outcomes)
    assert {"op": "ring_table", "codec": "-", "pass": 1} in plain["counts"]
    assert "move         f16" in str(report)


def test_progress_is_told_before_each_case_and_at_the_end():
    told: list[tuple[int, int, str]] = []
    report = kvcore.check(
        Reference(), ops=["gather"], formats=["f16", "q2k"], quick=True,
        progress=lambda *what: told.append(what),
    )  # fmt: skip
    n = len(report.outcomes)
    assert [t[:2] for t in told] == [(i, n) for i in range(n + 1)]
    assert told[0][2] == "gather f16"
    assert told[-1][2] == "done"


def test_nothing_run_is_not_ok():
    assert not kvcore.check(Reference(), ops=["gather"], formats=[], quick=True).ok


def test_unknown_names_are_refused():
    with pytest.raises(FormatError, match=r"\[check\] unknown op: got \['gathr'\]"):
        kvcore.check(Reference(), ops=["gathr"])
    with pytest.raises(BackendUnavailable, match="unknown backend: got 'abbacus'"):
        kvcore.check("abbacus")
    with pytest.raises(FormatError, match="unknown format: got 'q9'"):
        kvcore.check(Reference(), formats=["q9"])


def test_a_backend_that_does_not_link_is_not_run():
    cls = toy()
    cls.select = None
    with pytest.raises(LinkError, match="missing select"):
        kvcore.check(cls())
