"""render is pure: text in, text out, with every refusal named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.compiler.body import Body, flatten
from kvcore.compiler.kernel import ArgumentPlan, Buf, KernelDecl, Local, Val
from kvcore.compiler.render import float_bits, render
from kvcore.compiler.target import get_target, target_names
from kvcore.errors import FormatError, ShapeError, UnsupportedError
from tests.compiler.declarations import LOOKUP, QUANTIZE, source_of

BODY = Body(label="kvcore/ops/x.c", text="KC_ENTRY(x)\n{\n}\n")
X = KernelDecl("x", (Buf("y", "f32"),))


@pytest.mark.parametrize("target", target_names())
def test_a_body_appears_verbatim_after_its_line_mark(target: str) -> None:
    text = source_of("broken", target).text
    assert text.endswith(
        '#line 1 "tests/compiler/broken.c"\n'
        "/* Line 5 does not compile, on any target. */\nKC_ENTRY(broken)\n{\n"
        "    if (lane == 0)\n        y[0] = not_declared_anywhere;\n}\n"
    )


@pytest.mark.parametrize("target", target_names())
def test_rendering_twice_gives_the_same_key_and_another_constant_another(target: str) -> None:
    chosen = get_target(target)
    one, two = (render([X], {"A": 1}, {}, BODY, chosen) for _ in range(2))
    assert one == two
    assert one.key != render([X], {"A": 2}, {}, BODY, chosen).key
    assert one.entries == ("kc_x",)


def test_metal_binds_buffers_in_order_and_values_last() -> None:
    text = source_of("group_quantizer", "metal").text
    assert "device const f32 *x [[buffer(0)]]" in text
    assert "device i8 *codes [[buffer(2)]]" in text
    assert "constant kc_quantize_values &kc_values [[buffer(3)]]" in text
    assert "threadgroup f32 shared[64];" in text


def test_an_include_is_resolved_once_and_lines_stay_true() -> None:
    header = ("kvcore/ops/h.h", '#include "g.h"\nint h;\n')
    other = ("kvcore/ops/g.h", "int g;\n")
    body = Body(
        label="kvcore/ops/x.c",
        text='#include "h.h"\n#include "g.h"\nint x;\n',
        headers={"h.h": header, "g.h": other},
    )
    assert flatten(body).splitlines() == [
        '#line 1 "kvcore/ops/x.c"',
        '#line 1 "kvcore/ops/h.h"',
        '#line 1 "kvcore/ops/g.h"',
        "int g;",
        '#line 2 "kvcore/ops/h.h"',
        "int h;",
        '#line 2 "kvcore/ops/x.c"',
        '#line 3 "kvcore/ops/x.c"',
        "int x;",
    ]


def test_constants_are_spelled_by_their_bits() -> None:
    text = render(
        [X], {"F": 0.1, "I": -3, "U": 2**32 - 1, "W": "u32"}, {}, BODY, get_target("cuda")
    ).text
    assert "#define F kc_as_f32(0x3dcccccdu)\n" in text
    assert "#define I (-3)\n" in text
    assert "#define U (4294967295u)\n" in text
    assert "#define W u32\n" in text
    assert float_bits(0.1) == 0x3DCCCCCD


def test_restrict_is_left_out_where_buffers_may_overlap() -> None:
    kernel = KernelDecl("x", (Buf("y", "f32", alias=True), Buf("z", "f32")))
    text = render([kernel], {}, {}, BODY, get_target("cuda")).text
    assert "f32 *y," in text
    assert "f32 *__restrict__ z" in text


@pytest.mark.parametrize(
    ("constants", "tables", "said"),
    [
        ({"not a name": 1}, {}, r"\[render\] name: got not a name"),
        ({"A": 2**33}, {}, r"\[render\] A: got 8589934592"),
        ({"A": "x; y"}, {}, r"\[render\] name: got x; y"),
        ({}, {"t": []}, r"\[render\] table t: got \[\]"),
        ({}, {"t": [2**32]}, r"\[render\] table t"),
        ({"lane": 1}, {}, r"\[render\] name: got lane"),
    ],
)
def test_render_refuses_what_no_compiler_could_take(
    constants: dict[str, int | str], tables: dict[str, list[int]], said: str
) -> None:
    with pytest.raises(FormatError, match=said):
        render([X], dict(constants), tables, BODY, get_target("opencl"))


def test_render_refuses_entries_that_the_body_lacks_or_that_repeat() -> None:
    target = get_target("opencl")
    with pytest.raises(FormatError, match=r"kvcore/ops/x\.c lacks an entry: got none, expected q"):
        render([replace(X, name="q")], {}, {}, BODY, target)
    with pytest.raises(FormatError, match=r"\[render\] entries"):
        render([X, X], {}, {}, BODY, target)
    with pytest.raises(FormatError, match=r"kvcore/ops/x\.c:1 includes: got no\.h"):
        flatten(replace(BODY, text='#include "no.h"\n'))
    with pytest.raises(UnsupportedError, match=r"\[target\] unknown target: got vulkan"):
        get_target("vulkan")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "Bad"}, "bad name"),
        ({"args": (Buf("lane", "f32"),)}, "bad name"),
        ({"args": (Buf("a", "f32"), Val("a", "i32"))}, "share a name"),
        ({"args": (Buf("a", "f64"),)}, "type: got f64"),
        ({"args": (Val("a", "f16"),)}, "type: got f16"),
        ({"locals": (Local("a", "half", 4),)}, "type: got half"),
        ({"lanes": 2048}, "lanes: got 2048"),
        ({"args": tuple(Buf(f"b{i}", "u8") for i in range(31))}, "buffers: got 31"),
    ],
)
def test_declarations_refuse_what_a_target_cannot_take(
    change: dict[str, object], said: str
) -> None:
    with pytest.raises(FormatError, match=said):
        replace(X, **change)  # type: ignore[arg-type]


def test_arguments_split_into_buffers_and_one_padded_struct() -> None:
    plan = ArgumentPlan(LOOKUP)
    args = ["y", 7, 0.5, 9, 2**40]
    assert plan.buffers(args) == ["y"]
    assert len(plan.values(args)) == 24  # i64, i32, f32, u32 and the padding of C
    assert len(ArgumentPlan(QUANTIZE, offsets=True).values(["", "", "", 3], (0, 8, 16))) == 32
    with pytest.raises(ShapeError, match=r"\[lookup\] arguments: got 1, expected 5"):
        plan.buffers(["y"])
    with pytest.raises(ShapeError, match=r"\[lookup\] a value does not fit"):
        plan.values(["y", 2**31, 0.5, 9, 0])
