"""The dialect's functions give the same bits on every target that executes here."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kvcore.backends.sycl.target import OPENCL

from kvcore.compiler.render import Source
from tests.compiler.declarations import run_elementwise, source_of
from tests.shims import fake_cupy, fake_metal
from tests.shims.devices import TARGETS, open_device

F32 = npt.NDArray[np.float32]
Executing = tuple[Any, str]

HARD = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 65504.0, 65519.996, 65520.0, -65520.0, 1e30, -1e30,
     np.inf, -np.inf, np.nan, 2.0**-14, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 3 * 2.0**-25,
     5 * 2.0**-25, 2.0**-26, 1e-40, -1e-40, 1.4e-45, 3.4e38, 88.7, 88.73, -86.0, -86.1, -104.0],
    np.float32,
)  # fmt: skip


def hard_floats(n: int, seed: int) -> F32:
    """Random bit patterns, half-way cases of f16, and a list of edges."""
    rng = np.random.default_rng(seed)
    anything = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    halves = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = halves[:-1] + (halves[1:] - halves[:-1]) / np.float32(2)
    return np.concatenate([HARD, anything, ties, -ties, np.nextafter(ties, np.float32(9e9))])


def bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """f32 bits, with every NaN made the same."""
    array = np.ascontiguousarray(array, np.float32)
    return np.where(np.isnan(array), np.uint32(0x7FC00000), array.view(np.uint32))


def reference_exp(x: F32) -> F32:
    """The dialect's exp, one NumPy f32 operation at a time."""
    f = np.float32
    with np.errstate(all="ignore"):
        n = np.rint(x * f(1.44269504))
        r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
        p = np.full_like(x, f(1.9875691500e-4))
        for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
            p = p * r + f(5.0000001201e-1 if c == 0.5 else c)
        y = p * (r * r) + r + f(1)
        power = (np.nan_to_num(n).astype(np.int64) + 126).clip(0, 254).astype(np.uint32) << 23
        y = y * f(2) * power.view(np.float32)
    y = np.where(x > f(88.72283), f(np.inf), y)
    y = np.where(x < f(-86), f(0), y)
    return np.where(np.isnan(x), x, y).astype(f)


def test_every_half_widens_exactly(executing: Executing) -> None:
    device, target = executing
    halves = np.arange(65536, dtype=np.uint16)
    got = run_elementwise(device, source_of("words", target), "widen", [halves], 1, np.float32)[0]
    assert np.array_equal(bits(got), bits(halves.view(np.float16).astype(np.float32)))


def test_hard_floats_narrow_to_nearest_even_and_nan_keeps_only_its_sign(
    executing: Executing,
) -> None:
    device, target = executing
    x = hard_floats(200_000, 1)
    got = run_elementwise(device, source_of("words", target), "narrow", [x], 1, np.uint16)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(np.float16).view(np.uint16)
    sign = (x.view(np.uint32) >> 16 & 0x8000).astype(np.uint16)
    wanted = np.where(np.isnan(x), sign | 0x7E00, wanted)
    assert np.array_equal(got, wanted)


def test_unary_words_match_numpy_bit_for_bit(executing: Executing) -> None:
    device, target = executing
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-90, 90, 1_000_000).astype(np.float32), hard_floats(20_000, 3)])
    exp, log, rint, sqrt, absolute, finite = run_elementwise(
        device, source_of("words", target), "unary", [x], 6, np.float32
    )
    with np.errstate(all="ignore"):
        assert np.array_equal(bits(exp), bits(reference_exp(x)))
        assert np.array_equal(bits(rint), bits(np.rint(x)))
        assert np.array_equal(bits(sqrt), bits(np.sqrt(x)))
        assert np.array_equal(absolute.view(np.uint32), x.view(np.uint32) & 0x7FFFFFFF)
        assert np.array_equal(finite, np.isfinite(x).astype(np.float32))
        inside = (x > -86) & (x < 88.7)
        true = np.exp(x[inside].astype(np.float64))
        assert np.max(np.abs(exp[inside] - true) / true) < 1.2e-7
        assert np.max(np.abs(exp[x < -86.0])) == 0.0
        positive = (x > 0) & np.isfinite(x)
        true = np.log(x[positive].astype(np.float64))
        error = np.abs(log[positive] - true)
        assert np.all(error <= 2e-7 * np.abs(true) + 6e-8)
        assert np.all(np.isnan(log[x < 0]))
        assert np.all(log[x == 0] == -np.inf)


def test_log_has_the_same_bits_on_every_target() -> None:
    x = np.concatenate(
        [
            np.random.default_rng(4).uniform(0, 50, 100_000).astype(np.float32),
            hard_floats(20_000, 5),
        ]
    )
    seen = {}
    for name, target in TARGETS.items():
        device = open_device(name)
        if not isinstance(device, str):
            got = run_elementwise(device, source_of("words", target), "unary", [x], 6, np.float32)
            seen[name] = bits(got[1])
    if len(seen) < 2:
        pytest.skip("fewer than two targets execute here")
    first = next(iter(seen.values()))
    assert {name: bool(np.array_equal(got, first)) for name, got in seen.items()} == dict.fromkeys(
        seen, True
    )


def test_binary_words_match_numpy_bit_for_bit(executing: Executing) -> None:
    device, target = executing
    x, z = hard_floats(100_000, 6), np.roll(hard_floats(100_000, 7), 3)
    div, fma, apart, largest, least = run_elementwise(
        device, source_of("words", target), "binary", [x, z], 5, np.float32
    )
    with np.errstate(all="ignore"):
        assert np.array_equal(bits(div), bits(x / z))
        assert np.array_equal(bits(apart), bits(x * z + x))
        assert np.array_equal(bits(largest), bits(np.where(x > z, x, z)))
        assert np.array_equal(bits(least), bits(np.where(x < z, x, z)))
        tame = np.flatnonzero((np.abs(x) < 1e15) & (np.abs(z) < 1e15) & (np.abs(x) > 1e-15)
                              & (np.abs(z) > 1e-15))[:2000]  # fmt: skip
    for i in tame:
        exact = Fraction(float(x[i])) * Fraction(float(z[i])) + Fraction(float(x[i]))
        gap = abs(Fraction(float(fma[i])) - exact)
        for other in (np.nextafter(fma[i], np.float32(np.inf)), np.nextafter(fma[i], -np.inf)):
            assert gap <= abs(Fraction(float(other)) - exact)


def test_a_simd_butterfly_equals_the_one_through_shared_memory(executing: Executing) -> None:
    device, target = executing
    x = np.random.default_rng(8).standard_normal(32 * 50).astype(np.float32)
    y = device.alloc(x.nbytes)
    program = device.build(source_of("words", target))
    device.launch(program, "simd", (50, 1, 1), [device.from_external(x).buffer, y])
    wanted = x.reshape(50, 32)
    for step in (16, 8, 4, 2, 1):
        wanted = wanted + wanted[:, np.arange(32) ^ step]
    assert np.array_equal(device.download(y).view(np.float32), wanted.ravel())


def test_integer_division_and_root_for_devices_without_exact_ones() -> None:
    device = open_device("opencl")
    if isinstance(device, str):
        pytest.skip(device)
    soft = replace(OPENCL, flags=(*OPENCL.flags, "-DKC_SOFT_DIV"))
    x, z = hard_floats(300_000, 9), np.roll(hard_floats(300_000, 10), 7)
    source = source_of("words", soft)
    with np.errstate(all="ignore"):
        got = run_elementwise(device, source, "binary", [x, z], 5, np.float32)[0]
        assert np.array_equal(bits(got), bits(x / z))
        got = run_elementwise(device, source, "unary", [x], 6, np.float32)[3]
        assert np.array_equal(bits(got), bits(np.sqrt(x)))


def fast_opencl() -> tuple[Any, Source]:
    fast = replace(OPENCL, flags=("-cl-std=CL1.2", "-cl-fast-relaxed-math"))
    source = source_of("words", fast)
    text = source.text.replace("#pragma OPENCL FP_CONTRACT OFF", "")
    return open_device("opencl"), replace(source, text=text, key="fast-words")


def fast_cuda() -> tuple[Any, Source]:
    from kvcore.backends.cuda.device import CudaDevice

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "cupy", fake_cupy)
        device = CudaDevice(compiler=fake_cupy.TextCompiler(fast=True))
    source = source_of("words", "cuda")
    return device, replace(source, text=source.text + "/* fast */\n", key="fast-words")


def fast_metal() -> tuple[Any, Source]:
    from kvcore.backends.metal.device import MetalDevice

    class Careless(fake_metal.MTLCompileOptions):
        def setMathMode_(self, mode: int) -> None:
            self.safe = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "Metal", fake_metal)
        patch.setattr(fake_metal, "MTLCompileOptions", Careless)
        device = MetalDevice()
        source = source_of("words", "metal")
        device.build(source)  # built while the options are careless, then served from the memo
    return device, source


@pytest.mark.parametrize("careless", [fast_opencl, fast_cuda, fast_metal])
def test_negative_control_fast_math_changes_bits(careless: Any) -> None:
    if isinstance(open_device("opencl"), str):
        pytest.skip("Intel's OpenCL runtime is not installed")
    device, source = careless()
    rng = np.random.default_rng(11)
    x, z = (rng.standard_normal(100_000).astype(np.float32) for _ in range(2))
    apart = run_elementwise(device, source, "binary", [x, z], 5, np.float32)[2]
    assert not np.array_equal(bits(apart), bits(x * z + x))
