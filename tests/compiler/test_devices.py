"""What every device promises: memory, windows, launches, and errors that name the body's line."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from kvcore.backends.cuda.device import cuda_devices
from kvcore.backends.metal.device import MetalDevice, metal_devices

from kvcore.compiler.device import Tensor, explain
from kvcore.errors import BackendUnavailable, BuildError, ShapeError
from tests.compiler.declarations import LEVELS, source_of
from tests.shims import fake_cupy
from tests.shims.devices import open_device

Executing = tuple[Any, str]


def groups(n: int, seed: int) -> Any:
    """Groups of 64 over nine decades, with zeros, ties and values whose scale is subnormal."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 64)) * 10.0 ** rng.uniform(-6, 3, (n, 1))
    x[0] = 0
    x[1, :] = np.arange(64) - 31.5
    x[1, 0] = 127.0
    x[2] *= 1e-7 / np.abs(x[2]).max()
    return x.astype(np.float32)


def test_int8_groups_are_quantized_as_numpy_does(executing: Executing) -> None:
    device, target = executing
    x = groups(4096, 1)
    program = device.build(source_of("group_quantizer", target))
    scales, codes = device.alloc(4096 * 2 + 6), device.alloc(x.size)
    window = scales.view(6, 4096 * 2)
    device.launch(
        program, "quantize", (256, 16, 1), [device.from_external(x).buffer, window, codes, 256]
    )
    stored = (np.abs(x).max(1) / np.float32(127)).astype(np.float16)
    scale = stored.astype(np.float32)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.where(scale > 0, np.clip(np.rint(x / scale), -127, 127), 0).astype(np.int8)
    assert np.array_equal(device.download(scales, offset=6).view(np.uint16), stored.view(np.uint16))
    assert np.array_equal(device.download(codes).view(np.int8), wanted.ravel())


def test_values_of_every_type_and_tables_reach_the_kernel(executing: Executing) -> None:
    device, target = executing
    y = device.alloc(100 * 4 + 64)
    device.fill(y, 0xEE)
    program = device.build(source_of("group_quantizer", target))
    device.launch(program, "lookup", (4, 1, 1), [y, 100, 2.0, 3, 2**40 + 5])
    got = device.download(y)
    wanted = np.array(LEVELS, np.float32)[np.arange(100) % 4] * 2 + 8
    assert np.array_equal(got[:400].view(np.float32), wanted)
    assert np.all(got[400:] == 0xEE)


def test_launches_run_in_order_and_empty_grids_do_nothing(executing: Executing) -> None:
    device, target = executing
    y = device.alloc(128)
    program = device.build(source_of("group_quantizer", target))
    for bias in range(400):
        device.launch(program, "lookup", (1, 1, 1), [y, 32, 0.0, bias, 2**40])
    device.launch(program, "lookup", (0, 1, 1), [y, 32, 0.0, 9999, 2**40])
    assert np.all(device.download(y).view(np.float32) == 399.0)
    with pytest.raises(ShapeError, match=r"\[lookup\] arguments: got 2, expected 5"):
        device.launch(program, "lookup", (1, 1, 1), [y, 1])


def test_bytes_travel_through_windows_and_copies(executing: Executing) -> None:
    device, _ = executing
    data = np.random.default_rng(2).integers(0, 256, 1000, dtype=np.uint8)
    a, b = device.alloc(1000), device.alloc(1000)
    device.upload(a, data)
    device.fill(b, 7)
    device.copy(b, a, 300, target_at=11, source_at=500)
    wanted = np.full(1000, 7, np.uint8)
    wanted[11:311] = data[500:800]
    assert np.array_equal(device.download(b), wanted)
    window = b.view(11, 300).view(100, 50)
    assert np.array_equal(device.download(window), data[600:650])
    device.upload(window, np.arange(10, dtype=np.int16), offset=20)
    assert np.array_equal(device.download(b, 20, 131).view(np.int16), np.arange(10))
    device.fill(window, 1, 3, 47)
    assert np.array_equal(device.download(b, 5, 157), [1, 1, 1, 1, 1][:0] + list(
        np.r_[device.download(b, 1, 157), 1, 1, 1, data[650]]))  # fmt: skip
    assert device.download(device.alloc(0)).size == 0
    with pytest.raises(ShapeError, match=r"\[buffer\] range: got bytes 40 to 60"):
        window.view(40, 20)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i4", "u1"])
def test_host_arrays_come_in_whatever_their_strides(executing: Executing, dtype: str) -> None:
    device, _ = executing
    array = np.arange(24).reshape(2, 3, 4).astype(dtype).transpose(2, 0, 1)[::-1]
    tensor = device.from_external(array)
    assert tensor.copied
    assert tensor.contiguous
    assert tensor.shape == (4, 2, 3)
    out = device.to_external(tensor)
    out = out.get() if hasattr(out, "get") else out
    assert out.dtype == array.dtype
    assert np.array_equal(out, array)


def test_an_object_that_is_no_array_is_refused(executing: Executing) -> None:
    device, _ = executing
    with pytest.raises(ShapeError, match=r"\[array\] no known array protocol: got dict"):
        device.from_external({})


def test_a_failing_body_names_its_file_and_line_with_the_compilers_log(
    executing: Executing,
) -> None:
    device, target = executing
    with pytest.raises(BuildError, match=r"tests/compiler/broken\.c:5:") as caught:
        device.build(source_of("broken", target))
    assert "not_declared_anywhere" in caught.value.log
    assert "KC_ENTRY(broken)" in caught.value.source
    assert str(caught.value).startswith("[build] tests/compiler/broken.c (kc_broken) does not")


def test_a_cuda_launch_neither_allocates_nor_synchronises() -> None:
    device = open_device("cuda-text")
    if isinstance(device, str):
        pytest.skip(device)
    program = device.build(source_of("group_quantizer", "cuda"))
    y = device.alloc(128)
    before = dict(fake_cupy.counts)
    for _ in range(3):
        device.launch(program, "lookup", (1, 1, 1), [y, 32, 0.0, 1, 2**40])
    assert fake_cupy.counts == {**before, "launch": before["launch"] + 3}


def test_cuda_memory_goes_out_and_comes_back_without_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device("cuda-text")
    if isinstance(device, str):
        pytest.skip(device)
    buffer = device.alloc(24)
    device.upload(buffer, np.arange(6, dtype=np.float32))
    tensor = Tensor(buffer=buffer, shape=(2, 3), strides=(12, 4), dtype="f32")
    array = device.to_external(tensor)
    back = device.from_external(array)
    assert not back.copied
    assert back.buffer.pointer == buffer.pointer
    assert (back.shape, back.strides, back.dtype) == ((2, 3), (12, 4), "f32")


def test_usm_memory_comes_in_without_a_copy() -> None:
    device = open_device("dpctl")
    if isinstance(device, str):
        pytest.skip(device)
    buffer = device.alloc(48)
    device.upload(buffer, np.arange(12, dtype=np.float32))

    class Foreign:
        __sycl_usm_array_interface__ = {  # noqa: RUF012 - the protocol's own shape
            "data": (buffer.memory._pointer, False),
            "shape": (2, 3),
            "strides": (6, 1),
            "typestr": "<f4",
            "version": 1,
            "syclobj": device.queue,
            "offset": 1,
        }

    tensor = device.from_external(Foreign())
    assert not tensor.copied
    assert tensor.strides == (24, 4)
    assert np.array_equal(device.to_external(tensor), [[1, 2, 3], [7, 8, 9]])


def test_absent_drivers_are_values_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy", "Metal", "dpctl", "pyopencl"):
        monkeypatch.setitem(sys.modules, name, None)
    from kvcore.backends.sycl.discovery import dpctl_devices, opencl_devices

    for found in (cuda_devices(), metal_devices(), dpctl_devices(), opencl_devices()):
        assert [item.usable for item in found] == [False]
        assert "None in sys.modules" in explain(found)
    with pytest.raises(BackendUnavailable, match=r"\[metal\]"):
        MetalDevice()


def test_real_devices_are_listed_gpus_first_with_reasons_for_refusals() -> None:
    from kvcore.backends.sycl.discovery import dpctl_devices, opencl_devices

    for found in (dpctl_devices(), opencl_devices()):
        order = [(not item.usable, item.kind != "gpu") for item in found]
        assert order == sorted(order)
        assert all(item.reason for item in found if not item.usable)
        assert len(explain(found).splitlines()) >= len(found)
