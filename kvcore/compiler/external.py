"""Read a caller's array, of whatever library, without a copy and without importing that library.

NumPy arrays, DLPack (``__dlpack__``), ``__cuda_array_interface__``,
``__sycl_usm_array_interface__`` and ``__array_interface__`` are understood. A DLPack capsule is
only looked into and kept alive, never consumed, so its producer frees it as usual.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcore.compiler.device import c_strides, dtype_name, itemsize, numpy_dtype
from kvcore.errors import ShapeError, message

_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 4: "opencl", 8: "metal", 13: "cuda", 14: "oneapi"}
_DLPACK_TYPES = {(0, "i"), (1, "u"), (2, "f"), (4, "bf"), (6, "bool")}


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """Where a caller's array lies.

    Parameters
    ----------
    pointer : int
        Address of the first element, in the space of ``device``.
    shape, strides : tuple of int
        Strides in bytes.
    dtype : str
    device : str
        ``cpu``, ``cuda``, ``opencl``, ``metal`` or ``oneapi``.
    index : int
        Number of the device of that kind.
    stream : int or None
        A CUDA stream that the values are produced on, if the producer says so.
    owner : object
        Keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    index: int = 0
    stream: int | None = None
    owner: Any = None


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def read_external(obj: Any, stream: int | None = None) -> External:
    """Return where an array lies.

    Parameters
    ----------
    obj : object
        An array of any library.
    stream : int, optional
        The CUDA stream that will use it: a DLPack producer makes that stream wait for the values.

    Raises
    ------
    ShapeError
        No known protocol, or an element type that kvcore has no name for.
    """
    if isinstance(obj, (np.ndarray, np.generic)):
        return _from_numpy(np.asarray(obj))
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _from_dlpack(obj, stream)
    if hasattr(obj, "__cuda_array_interface__"):
        return _from_interface(obj.__cuda_array_interface__, "cuda", obj)
    if hasattr(obj, "__sycl_usm_array_interface__"):
        return _from_interface(obj.__sycl_usm_array_interface__, "oneapi", obj)
    if hasattr(obj, "__array_interface__"):
        return _from_numpy(np.asarray(obj))
    raise ShapeError(
        message(
            "array",
            "no known array protocol",
            got=type(obj).__name__,
            expected="NumPy, DLPack, __cuda_array_interface__ or __sycl_usm_array_interface__",
        )
    )


def host_array(external: External) -> npt.NDArray[Any]:
    """Return a NumPy view of memory on the host; ``bf16`` is seen as its 16 bits."""
    if isinstance(external.owner, np.ndarray):
        array: npt.NDArray[Any] = external.owner
        return array.view(np.uint16) if external.dtype == "bf16" else array
    dtype = numpy_dtype(external.dtype)
    if 0 in external.shape:
        return np.empty(external.shape, dtype)
    span = sum((n - 1) * s for n, s in zip(external.shape, external.strides, strict=True))
    memory: Any = (ctypes.c_uint8 * (span + dtype.itemsize)).from_address(external.pointer)
    view: npt.NDArray[Any] = np.ndarray(external.shape, dtype, memory, 0, external.strides)
    return view


def _from_numpy(array: npt.NDArray[Any]) -> External:
    return External(
        pointer=array.ctypes.data,
        shape=array.shape,
        strides=array.strides,
        dtype=_named(array.dtype),
        device="cpu",
        owner=array,
    )


def _named(dtype: Any) -> str:
    try:
        return dtype_name(dtype)
    except KeyError:
        text = message("array", "element type", got=dtype, expected="a float, integer or bool type")
        raise ShapeError(text) from None


def _from_interface(interface: dict[str, Any], device: str, owner: object) -> External:
    dtype = _named(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    scale = itemsize(dtype) if device == "oneapi" else 1  # that protocol counts elements
    step = c_strides(shape, itemsize(dtype)) if strides is None else [s * scale for s in strides]
    return External(
        pointer=int(interface["data"][0]) + int(interface.get("offset", 0)) * itemsize(dtype),
        shape=shape,
        strides=tuple(step),
        dtype=dtype,
        device=device,
        stream=interface.get("stream"),
        owner=owner,
    )


def _from_dlpack(obj: Any, stream: int | None) -> External:
    kind = _DEVICES.get(int(obj.__dlpack_device__()[0]), "unknown")
    try:
        capsule = obj.__dlpack__(stream=stream) if kind == "cuda" else obj.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as error:
        text = message(
            "array", f"DLPack export failed ({error})", got=type(obj).__name__, expected="a tensor"
        )
        raise ShapeError(text) from error
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(get(capsule, b"dltensor"))
    dtype = _dlpack_dtype(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    size = itemsize(dtype)
    strides = (
        tuple(s * size for s in tensor.strides[: tensor.ndim])
        if tensor.strides
        else c_strides(shape, size)
    )
    return External(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        strides=strides,
        dtype=dtype,
        device=_DEVICES.get(tensor.device_type, "unknown"),
        index=tensor.device_id,
        owner=(capsule, obj),
    )


def _dlpack_dtype(tensor: _DLTensor) -> str:
    kind = dict(_DLPACK_TYPES).get(tensor.code, "?")
    name = kind if kind == "bool" else f"{kind}{tensor.bits}"
    try:
        itemsize(name)
    except KeyError:
        name = "?"
    if name == "?" or tensor.lanes != 1:
        got = f"DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise ShapeError(message("array", "element type", got=got, expected="a float or integer"))
    return name
