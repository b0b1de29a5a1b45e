"""The stand-ins bite: they refuse what Metal and CUDA refuse."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from tests.shims import fake_cupy, fake_metal
from tests.shims.clike import split, strip_comments
from tests.shims.intel import intel_runtime

pytestmark = pytest.mark.skipif(intel_runtime() is None, reason="no Intel OpenCL runtime")

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
ECHO = HEAD + (
    "[[max_total_threads_per_threadgroup(64)]]\n"
    "kernel void echo(device float *y [[buffer(0)]], constant int &n [[buffer(1)]],\n"
    "                 threadgroup float *s [[threadgroup(0)]],\n"
    "                 uint t [[thread_position_in_threadgroup]],\n"
    "                 uint lane [[thread_index_in_simdgroup]])\n"
    "{\n"
    "    s[t] = float(n) + float(t);\n"
    "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "    y[t] = s[63 - t] + simd_sum(lane == 0 ? 1.0f : 0.0f);\n"
    "}\n"
)


def compile_msl(text: str) -> tuple[Any, Any]:
    options = fake_metal.MTLCompileOptions.new()
    options.setMathMode_(fake_metal.MTLMathModeSafe)
    device = fake_metal.MTLCreateSystemDefaultDevice()
    assert device is not None
    return device.newLibraryWithSource_options_error_(text, options, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("device pointer to threadgroup memory",
         "kernel void k(device float *a [[buffer(0)]]) "
         "{ threadgroup float s[4]; device float *p = s; a[0] = p[0]; }"),
        ("a buffer outside device and constant", "kernel void k(float *a [[buffer(0)]]) { }"),
        ("a parameter without an attribute", "kernel void k(device float *a) { a[0] = 1.0f; }"),
        ("an unknown attribute", "kernel void k(uint i [[thread_id]]) { }"),
        ("a write to const", "kernel void k(device const float *a [[buffer(0)]]) { a[0] = 1.0f; }"),
        ("a write to constant", "kernel void k(constant float *a [[buffer(0)]]) { a[0] = 1.0f; }"),
        ("double", "kernel void k(device float *a [[buffer(0)]]) { double d = 1; a[0] = d; }"),
        ("an undeclared name", "kernel void k(device float *a [[buffer(0)]]) { a[0] = zz; }"),
        ("new", "kernel void k(device float *a [[buffer(0)]]) { new int; }"),
        ("group memory in a helper", "inline void f() { threadgroup float s[4]; s[0] = 1.0f; }\n"
         "kernel void k(device float *a [[buffer(0)]]) { f(); }"),
    ],
)  # fmt: skip
def test_msl_that_metal_would_refuse_is_refused(name: str, text: str) -> None:
    library, error = compile_msl(HEAD + text)
    assert library is None, name
    assert error.localizedDescription()


class Metal:
    """One dispatch of ECHO, step by step."""

    def __init__(self) -> None:
        self.device = fake_metal.MTLCreateSystemDefaultDevice()
        assert self.device is not None
        library, error = compile_msl(ECHO)
        assert library is not None, error
        function = library.newFunctionWithName_("echo")
        self.pipeline = self.device.newComputePipelineStateWithFunction_error_(function, None)[0]
        self.commands = self.device.newCommandQueue().commandBuffer()
        self.encoder = self.commands.computeCommandEncoder()
        self.encoder.setComputePipelineState_(self.pipeline)
        self.y = self.device.newBufferWithLength_options_(256, 0)

    def bind(self) -> None:
        self.encoder.setBuffer_offset_atIndex_(self.y, 0, 0)
        self.encoder.setBytes_length_atIndex_(struct.pack("i", 5), 4, 1)
        self.encoder.setThreadgroupMemoryLength_atIndex_(256, 0)

    def dispatch(self, groups: tuple[int, int, int], threads: tuple[int, int, int]) -> None:
        self.encoder.dispatchThreadgroups_threadsPerThreadgroup_(groups, threads)


def test_a_dispatch_runs_with_threadgroup_memory_and_simd_sums() -> None:
    metal = Metal()
    metal.bind()
    metal.dispatch((1, 1, 1), (64, 1, 1))
    metal.encoder.endEncoding()
    metal.commands.commit()
    metal.commands.waitUntilCompleted()
    got = np.frombuffer(metal.y.contents().as_buffer(256), np.float32)
    assert np.array_equal(got, 5 + 63 - np.arange(64) + 1)


def test_metals_limits_are_enforced() -> None:
    metal = Metal()
    with pytest.raises(ValueError, match="nothing is bound at buffer index 0"):
        metal.dispatch((1, 1, 1), (64, 1, 1))
    metal.bind()
    with pytest.raises(ValueError, match="65 threads"):
        metal.dispatch((1, 1, 1), (65, 1, 1))
    with pytest.raises(ValueError, match="empty grid"):
        metal.dispatch((1, 0, 1), (64, 1, 1))
    with pytest.raises(ValueError, match="no multiple of 16"):
        metal.encoder.setThreadgroupMemoryLength_atIndex_(100, 0)
    with pytest.raises(ValueError, match="setBytes of 5000"):
        metal.encoder.setBytes_length_atIndex_(bytes(5000), 5000, 1)
    with pytest.raises(ValueError, match="is not below 31"):
        metal.encoder.setBuffer_offset_atIndex_(metal.y, 0, 31)
    metal.encoder.setThreadgroupMemoryLength_atIndex_(32768 + 16, 0)
    with pytest.raises(ValueError, match="bytes of threadgroup memory"):
        metal.dispatch((1, 1, 1), (64, 1, 1))
    with pytest.raises(ValueError, match="commit before endEncoding"):
        metal.commands.commit()


def test_cuda_limits_are_enforced() -> None:
    text = 'extern "C" __global__ void __launch_bounds__(64) k(float *y) { y[threadIdx.x] = 1.f; }'
    module = fake_cupy.Module()
    module.load(f"exact\n{text}".encode())
    kernel = module.get_function("k")
    memory = fake_cupy.cuda.alloc(256)
    pointer = np.uint64(memory.ptr)
    kernel((1, 1, 1), (64, 1, 1), [pointer])
    for grid, block in (
        ((1, 1, 1), (65, 1, 1)),
        ((1, 65536, 1), (1, 1, 1)),
        ((0, 1, 1), (1, 1, 1)),
    ):
        with pytest.raises(fake_cupy.CUDADriverError, match="INVALID_VALUE"):
            kernel(grid, block, [pointer])
    with pytest.raises(fake_cupy.CUDADriverError, match="ILLEGAL_ADDRESS"):
        kernel((1, 1, 1), (64, 1, 1), [np.uint64(64)])
    with pytest.raises(fake_cupy.CUDADriverError, match="NOT_FOUND"):
        module.get_function("other")


def test_fresh_memory_is_full_of_garbage() -> None:
    assert np.all(fake_metal.Buffer(64).data == 0xA5)


def test_lexing_keeps_lines_and_nesting() -> None:
    assert strip_comments("a /* x\ny */ b // c\nd") == "a \n b  \nd"
    assert split("f(a, b) x, T<u, v> y") == ["f(a, b) x", "T<u, v> y"]
