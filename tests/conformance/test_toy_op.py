"""An op added at run time is declared, linked and tried by the kit, or missed by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kvcore
from kvcore import conformance, ops
from kvcore.conformance import Bench, Case
from kvcore.errors import LinkError
from kvcore.ops import Arg, Op
from kvcore.reference import Reference
from tests.toy_backends import toy


def negate(x: Any) -> Any:
    """Return -x.

    Parameters
    ----------
    x : f32[...]
    """
    return -np.asarray(x, np.float32)


NEGATE = Op(
    name="negate", version=1, args=(Arg(name="x", what="f32[...]"),), returns="f32[...]",
    reference=negate,
)  # fmt: skip


def _signs(bench: Bench) -> Iterator[str]:
    x = bench.rng.normal(size=5).astype(np.float32)
    got = bench.host(bench.be.negate(x))  # type: ignore[attr-defined]
    if not np.array_equal(got, negate(x)):
        yield f"got {got}, expected {negate(x)}"


def negate_cases(formats: Any) -> list[Case]:
    return [Case(op="negate", title="signs", run=_signs, quick=True)]


@pytest.fixture
def declared() -> Iterator[None]:
    ops.register(NEGATE)
    yield
    ops.unregister("negate")
    conformance.remove_cases("negate")


def body(be: Any, x: Any) -> Any:
    return negate(x)


def wrong(be: Any, x: Any) -> Any:
    return np.asarray(x)


def test_a_backend_without_it_does_not_link(declared):
    with pytest.raises(LinkError, match=r"missing negate\(x\)"):
        kvcore.check(Reference(), quick=True)


def test_an_op_that_no_case_tries_is_red(declared):
    report = kvcore.check(toy(negate=body)(), ops=["negate", "ring_table"], quick=True)
    assert not report.ok
    assert [o.title for o in report.failures] == ["no case tries this op"]


def test_with_cases_it_is_checked_as_any_other(declared):
    conformance.add_cases("negate", negate_cases)
    assert kvcore.check(toy(negate=body)(), ops=["negate"]).ok
    report = kvcore.check(toy(negate=wrong)(), ops=["negate"], quick=True)
    assert "expected" in report.failures[0].detail


def test_every_op_of_ours_has_cases():
    assert set(ops.declared()) == conformance.kit.COVERED
