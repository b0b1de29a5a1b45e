"""Callers' arrays of any library are read in place, by protocol."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvcore.compiler.external import host_array, read_external
from kvcore.errors import ShapeError


class Exporter:
    """A library that speaks DLPack and nothing else."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array, self.device = array, device
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, stream: Any = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__()


def test_dlpack_is_read_in_place_with_its_strides() -> None:
    array = np.arange(24, dtype=np.float16).reshape(2, 3, 4).transpose(1, 0, 2)[:, :, 1:]
    external = read_external(Exporter(array))
    assert (external.pointer, external.device) == (array.ctypes.data, "cpu")
    assert (external.shape, external.strides, external.dtype) == (array.shape, array.strides, "f16")
    view = host_array(external)
    array[0, 0, 0] = 99
    assert np.array_equal(view, array)


def test_a_dlpack_capsule_is_left_to_its_producer() -> None:
    array = np.arange(8, dtype=np.int32)
    for _ in range(3):
        external = read_external(Exporter(array))
        assert np.array_equal(host_array(external), array)
        del external
    array += 1  # still ours


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "i8", "f4", "f8", "?"])
def test_every_element_type_keeps_its_name(dtype: str) -> None:
    array = np.zeros(3, dtype)
    assert read_external(Exporter(array)).dtype == read_external(array).dtype
    assert np.array_equal(host_array(read_external(Exporter(array))), array)


def test_bfloat16_is_known_by_name_and_seen_as_its_bits() -> None:
    array = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    external = read_external(array)
    assert external.dtype == "bf16"
    assert np.array_equal(host_array(external), array.view(np.uint16))


def test_a_dlpack_producer_is_told_the_stream_only_if_it_is_cuda() -> None:
    host, device = Exporter(np.zeros(2, np.float32)), Exporter(np.zeros(2, np.float32), 2)
    read_external(host, 77)
    read_external(device, 77)
    assert (host.streams, device.streams) == ([None], [77])


def test_the_cuda_array_interface_carries_pointer_strides_and_stream() -> None:
    class Array:
        __cuda_array_interface__ = {  # noqa: RUF012
            "data": (4096, False),
            "shape": (2, 3),
            "strides": (16, 4),
            "typestr": "<f4",
            "version": 3,
            "stream": 5,
        }

    external = read_external(Array())
    assert (external.pointer, external.device, external.stream) == (4096, "cuda", 5)
    assert (external.shape, external.strides, external.dtype) == ((2, 3), (16, 4), "f32")


@pytest.mark.parametrize(
    ("obj", "said"),
    [
        ([1.0, 2.0], "no known array protocol: got list"),
        (np.zeros(2, np.complex64), "element type: got complex64"),
        (np.zeros(2, "datetime64[s]"), "element type: got datetime64"),
        (Exporter(np.zeros(2, np.complex64)), "element type: got DLPack type code 5"),
        (Exporter(np.frombuffer(b"abcd", np.uint8)), "DLPack export failed"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(obj: object, said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        read_external(obj)
