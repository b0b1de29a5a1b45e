"""A format and an op added at run time, as the documentation says, on every device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvcore.backends.cuda import Cuda
from kvcore.backends.metal import Metal
from kvcore.backends.sycl import Sycl
from kvcore.backends.sycl.opencl import OpenCl

import kvcore
from kvcore import ops
from kvcore.compiler.kernel import Buf, KernelDecl, Local, Val
from kvcore.errors import LinkError
from kvcore.formats import register, unregister
from kvcore.ops import Arg, Op
from kvcore.portable.backend import PortableBackend
from kvcore.portable.recipe import Recipe
from kvcore.reference import Reference
from kvcore.registry import implements, link
from kvcore.spec import Axis, Codec, Format, Packing, Rounding, Rule, Scale
from kvcore.spec import Recipe as Kept

FINE = Codec(
    name="q4_16",
    bits=4,
    levels=tuple(float(i) for i in range(-7, 8)),
    zero=7,
    scale=Scale(axis=Axis.DIM, group=16, rule=Rule.ABSMAX, divisor=7.0),
    rounding=Rounding.DIVIDE_HALF_EVEN,
    packing=Packing.HALVES,
    source="the example of docs/adding-a-format.md",
)
LOPSIDED = Codec(
    name="q2_lopsided",
    bits=2,
    levels=(-2.0, -0.5, 0.25, 1.0),
    scale=Scale(axis=Axis.CELL, group=32, rule=Rule.RMS),
    rounding=Rounding.NEAREST_LEVEL,
    packing=Packing.SEQUENTIAL,
    source="a test's: levels without symmetry, one scale per channel",
)


@pytest.fixture
def toy_format() -> Any:
    fmt = Format(name="toy", k=LOPSIDED, v=FINE, rotate="kv", recipe=Kept(window=4, sinks=1))
    register(fmt)
    yield fmt
    unregister("toy")


def test_a_toy_format_passes_the_kit_on_every_device(be: PortableBackend, toy_format: Any) -> None:
    built_fast = "text" in be.device
    ops_ = None if built_fast else ["append", "gather"]
    report = kvcore.check(be, ops=ops_, formats=["toy"], quick=True)
    assert report.ok, str(report)
    assert {o.op for o in report.outcomes if o.format == "toy"} >= {"append", "gather"}


def reference(x: Any, y: Any) -> Any:
    """Return each row's largest product of neighbours; a toy."""
    return np.max(np.asarray(x, np.float32) * np.asarray(y, np.float32), axis=-1)


TOY = Op(
    name="peak",
    version=1,
    args=(Arg(name="x", what="f32[N, D]"), Arg(name="y", what="f32[N, D]")),
    returns="f32[N]",
    reference=reference,
)
KERNEL = KernelDecl(
    "peak",
    args=(
        Buf("x", "f32", const=True),
        Buf("y", "f32", const=True),
        Buf("out", "f32"),
        Val("dim", "i32"),
    ),
    locals=(Local("tops", "f32", 64),),
)
BODY = """\
/* peak: one group of lanes a row. */
KC_ENTRY(peak)
{
    f32 top = kc_as_f32(0xff800000u);
    for (i32 d = lane; d < dim; d += 64)
        top = kc_max(x[(i64)gx * dim + d] * y[(i64)gx * dim + d], top);
    tops[lane] = top;
    for (i32 step = 32; step > 0; step /= 2) {
        KC_BARRIER();
        if (lane < step)
            tops[lane] = kc_max(tops[lane + step], tops[lane]);
    }
    if (lane == 0)
        out[gx] = tops[0];
}
"""


@pytest.fixture
def toy_op() -> Any:
    ops.register(TOY)
    yield TOY
    ops.unregister("peak")


def with_peak(base: type, path: Path) -> type:
    """Return a backend class that also has the toy op, from a body on disk."""

    class Toy(base):  # type: ignore[misc]
        name = f"toy-{base.name}"

        @implements("peak", version=1)
        def peak(self, x: Any, y: Any) -> Any:
            a, b = (self.arrays.asarray(i, "float", "peak", n) for i, n in ((x, "x"), (y, "y")))
            out = self.arrays.empty(a.shape[:1], np.float32)
            recipe = Recipe(kernels=(KERNEL,), constants={}, tables={}, path=path)
            program = self.engine.device.build(recipe.render(self.target))
            n, dim = a.shape
            self.engine.launch(program, "peak", (n, 1, 1), [a.buffer, b.buffer, out.buffer, dim])
            return out

    return Toy


def test_a_toy_op_runs_on_every_device(be: PortableBackend, toy_op: Op, tmp_path: Path) -> None:
    path = tmp_path / "peak.c"
    path.write_text(BODY)
    base: Any = type(be)
    toy: Any = link(with_peak(base, path))(be.engine.device)
    x, y = np.random.default_rng(0).standard_normal((2, 37, 100)).astype(np.float32)
    assert np.array_equal(toy.to_host(toy.peak(x, y)), reference(x, y))


@pytest.mark.parametrize("base", [Cuda, Metal, Sycl, OpenCl, Reference])
def test_a_backend_without_the_declared_op_does_not_link(toy_op: Op, base: Any) -> None:
    lacking = type("Lacking", (base,), {"name": "lacking"})
    if base is Reference:
        with pytest.raises(LinkError, match="missing peak"):
            link(lacking)
        return
    with pytest.raises(LinkError, match=r"missing peak\(x, y\): got nothing"):
        link(lacking)
