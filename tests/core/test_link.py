"""The link check: every kind of drift raises a LinkError that names it, expected and got."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from kvcore import ops
from kvcore.backend import Backend
from kvcore.errors import LinkError
from kvcore.ops import Arg, Op
from kvcore.reference import Reference
from kvcore.registry import gaps_of, implements, link, table_of
from tests.toy_backends import method


def backend(name: str = "toy", **methods: Any) -> type[Reference]:
    """Return a whole backend in which some methods are replaced."""
    return type("Toy", (Reference,), {"name": name, **methods})


def ring(self: Any, n_blocks: int, n_slots: int, unit: int = 1) -> Any:
    return None


def marked(function: Any, name: str = "ring_table", version: int = 1, **more: Any) -> Any:
    return implements(name, version=version, **more)(function)


def fault(cls: type) -> str:
    with pytest.raises(LinkError) as caught:
        link(cls)
    return str(caught.value)


def test_the_reference_and_a_backend_like_it_link():
    assert link(Reference) is Reference
    assert link(backend(ring_table=marked(ring)))
    assert set(table_of(Reference)) == set(ops.declared())


def test_a_missing_op_is_named_with_its_signature():
    text = fault(backend(ring_table=None))
    assert "backend 'toy'" in text
    assert "missing ring_table(n_blocks, n_slots, unit=1)" in text


def test_a_backend_that_does_not_say_whether_it_can_run_is_named():
    class Silent(Backend):
        name = "silent"

    assert "missing probe()" in fault(Silent)
    assert "missing probe()" not in fault(backend("toy", probe=Reference.probe, move=None))


def test_every_op_is_missed_when_it_is_missing():
    bare = type("Bare", (), {"name": "bare"})
    text = fault(bare)
    for op in ops.declared():
        assert f"missing {op}(" in text


def test_an_extra_op_is_named():
    def evict(self: Any, pool: Any) -> None:
        return None

    assert "extra evict(pool)" in fault(backend(evict=marked(evict, "evict")))


def test_a_renamed_argument_is_drift():
    def renamed(self: Any, blocks: int, n_slots: int, unit: int = 1) -> Any:
        return None

    text = fault(backend(ring_table=marked(renamed)))
    assert "drifted ring_table: got (blocks, n_slots, unit=1)" in text
    assert "expected (n_blocks, n_slots, unit=1)" in text


def test_the_ring_table_that_lacks_the_new_argument_is_drift():
    """The failure that made this project: one backend kept the old two-argument symbol."""

    def old(self: Any, n_blocks: int, n_slots: int) -> Any:
        return None

    text = fault(backend(ring_table=marked(old)))
    assert "got (n_blocks, n_slots), expected (n_blocks, n_slots, unit=1)" in text


def test_an_argument_added_on_one_backend_is_drift():
    def added(self: Any, n_blocks: int, n_slots: int, unit: int = 1, stream: Any = None) -> Any:
        return None

    assert "got (n_blocks, n_slots, unit=1, stream=None)" in fault(
        backend(ring_table=marked(added))
    )


def test_an_argument_added_to_the_contract_breaks_every_backend_that_lacks_it(monkeypatch):
    op = ops.declared()["ring_table"]
    grown = Op(
        name="ring_table",
        version=1,
        args=(*op.args, Arg(name="first", what="int", default=0)),
        returns=op.returns,
        reference=op.reference,
    )
    ops.register(grown)
    try:
        assert "expected (n_blocks, n_slots, unit=1, first=0)" in fault(backend())
    finally:
        ops.unregister("ring_table")
    assert link(backend())


def test_a_changed_default_is_drift():
    def changed(self: Any, n_blocks: int, n_slots: int, unit: int = 8) -> Any:
        return None

    assert "unit=8), expected (n_blocks, n_slots, unit=1)" in fault(
        backend(ring_table=marked(changed))
    )


def test_a_keyword_only_argument_is_drift():
    def keyword(self: Any, n_blocks: int, n_slots: int, *, unit: int = 1) -> Any:
        return None

    assert "got (n_blocks, n_slots, *, unit=1)" in fault(backend(ring_table=marked(keyword)))


def test_another_contract_version_is_drift():
    text = fault(backend(ring_table=marked(ring, version=2)))
    assert "drifted ring_table: got contract version 2, expected 1" in text


def test_a_new_op_is_missing_on_every_backend_until_it_is_written():
    op = Op(name="shift", version=1, args=(Arg(name="pool", what="Pool"),), returns="None",
            reference=lambda pool: None)  # fmt: skip
    ops.register(op)
    try:
        assert "missing shift(pool): got nothing" in fault(backend())

        def shift(self: Any, pool: Any) -> None:
            return None

        assert link(backend(shift=marked(shift, "shift")))
    finally:
        ops.unregister("shift")


def nothing(be: Any, **arguments: Any) -> None:
    return None


def test_a_gap_for_an_unknown_codec_is_drift():
    cls = backend(gather=method("gather", nothing, {"q9": "no"}))
    assert "a gap names 'q9', which is not a codec" in fault(cls)


def test_a_gap_by_codec_of_an_op_without_codecs_is_drift():
    cls = backend(ring_table=marked(ring, gaps={"q4_0": "no"}))
    assert "drifted ring_table: a gap names 'q4_0'" in fault(cls)


def test_a_gap_without_a_reason_is_drift():
    cls = backend(gather=method("gather", nothing, {"q4_0": ""}))
    assert "the gap for 'q4_0' gives no reason" in fault(cls)


def test_declared_gaps_with_reasons_link_and_can_be_listed():
    cls = backend(gather=method("gather", nothing, {"q4_0": "no nibbles", "*": "slow"}))
    assert link(cls)
    assert gaps_of(cls) == {("gather", "q4_0"): "no nibbles", ("gather", "*"): "slow"}


def test_every_fault_of_a_backend_is_listed_at_once():
    def wrong(self: Any, x: Any, y: Any) -> Any:
        return None

    text = fault(
        backend(ring_table=None, rotate=marked(wrong, "rotate"), more=marked(wrong, "more"))
    )
    assert text.count("\n  - ") == 3


def test_declared_signatures_are_those_of_the_references():
    for op in ops.declared().values():
        own = inspect.signature(op.reference).parameters.values()
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in own]
        assert inspect.Signature(bare) == op.signature, op.name
        assert op.doc, op.name
