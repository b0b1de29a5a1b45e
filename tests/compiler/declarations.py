"""The declarations of the bodies in this folder, and how tests render and run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcore.compiler.body import read_body
from kvcore.compiler.kernel import Buf, KernelDecl, Local, Val
from kvcore.compiler.render import Source, float_bits, render
from kvcore.compiler.target import Target, get_target

HERE = Path(__file__).parent
LEVELS = (-1.5, -0.25, 0.25, 1.5)

QUANTIZE = KernelDecl(
    "quantize",
    (
        Buf("x", "f32", const=True),
        Buf("scales", "f16"),
        Buf("codes", "i8"),
        Val("n_columns", "i32"),
    ),
    (Local("shared", "f32", 64),),
    64,
)
LOOKUP = KernelDecl(
    "lookup",
    (
        Buf("y", "f32"),
        Val("n", "i32"),
        Val("gain", "f32"),
        Val("bias", "u32"),
        Val("base", "i64"),
    ),
    (),
    32,
)
BROKEN = KernelDecl("broken", (Buf("y", "f32"),), (), 32)

_X, _N = Buf("x", "f32", const=True), Val("n", "i32")
WORDS = (
    KernelDecl("narrow", (_X, Buf("y", "f16"), _N), (), 256),
    KernelDecl("widen", (Buf("x", "f16", const=True), Buf("y", "f32"), _N), (), 256),
    KernelDecl("unary", (_X, Buf("y", "f32"), _N), (), 256),
    KernelDecl("binary", (_X, Buf("z", "f32", const=True), Buf("y", "f32"), _N), (), 256),
    KernelDecl("simd", (_X, Buf("y", "f32")), (Local("shared", "f32", 32),), 32),
)


def source_of(name: str, target: str | Target) -> Source:
    """Return the rendered source of a body of this folder."""
    chosen = get_target(target) if isinstance(target, str) else target
    body = read_body(HERE / f"{name}.c")
    if name == "group_quantizer":
        tables = {"levels": [float_bits(level) for level in LEVELS]}
        return render((QUANTIZE, LOOKUP), {"GROUP": 64}, tables, body, chosen)
    kernels: Sequence[KernelDecl] = WORDS if name == "words" else (BROKEN,)
    return render(kernels, {}, {}, body, chosen)


def run_elementwise(
    device: Any, source: Source, entry: str, inputs: Sequence[npt.NDArray[Any]], rows: int, out: Any
) -> npt.NDArray[Any]:
    """Run an entry over equally long inputs; return [rows, n] values of dtype ``out``."""
    n = inputs[0].size
    dtype = np.dtype(out)
    y = device.alloc(rows * n * dtype.itemsize)
    buffers = [device.from_external(array).buffer for array in inputs]
    program = device.build(source)
    device.launch(program, entry, ((n + 255) // 256, 1, 1), [*buffers, y, n])
    result: npt.NDArray[Any] = device.download(y).view(dtype).reshape(rows, n)
    return result
