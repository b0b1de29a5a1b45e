"""Arrays of a device, and how callers' arrays become such."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kvcore.compiler.device import Device, Tensor, c_strides, dtype_name
from kvcore.errors import ShapeError, message
from kvcore.numerics import Array
from kvcore.operands import HOST

_FLOAT_KINDS = {"f32": 0, "f16": 1, "bf16": 2}
_INT_KINDS = {"i32": 0, "i64": 1}

Launch = Callable[[str, int, list[Any]], None]


class DeviceArray:
    """A packed array in a device's memory; NumPy takes it by copying.

    Parameters
    ----------
    device : Device
    buffer : Buffer
    shape : tuple of int
    dtype : NumPy dtype
    """

    __slots__ = ("buffer", "device", "dtype", "shape")

    def __init__(self, device: Device, buffer: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self.device, self.buffer = device, buffer
        self.shape, self.dtype = tuple(int(n) for n in shape), np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.size * int(self.dtype.itemsize)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return the same memory under another shape of the same size."""
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if -1 in wanted:
            known = -math.prod(wanted)
            rest = self.size // known if known else 0
            wanted = tuple(rest if n == -1 else n for n in wanted)
        if math.prod(wanted) != self.size:
            raise ShapeError(message("reshape", "size", got=wanted, expected=self.shape))
        return DeviceArray(self.device, self.buffer, wanted, self.dtype)

    def to_numpy(self) -> Array:
        """Return a host copy, after everything launched before."""
        raw = self.device.download(self.buffer, self.nbytes)
        return np.asarray(raw.view(self.dtype).reshape(self.shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        a = self.to_numpy()
        return a if dtype is None else a.astype(dtype)

    def tensor(self) -> Tensor:
        """Return the device's own description of it."""
        return Tensor(
            buffer=self.buffer,
            shape=self.shape,
            strides=c_strides(self.shape, self.dtype.itemsize),
            dtype=dtype_name(self.dtype),
        )


def on_host(x: Any) -> bool:
    """Return True if the values of `x` can be read here without asking a device."""
    if isinstance(x, np.ndarray | np.generic | list | tuple | int | float):
        return True
    if isinstance(x, DeviceArray):
        return False
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[0]) in (1, 3)
    return hasattr(x, "__array_interface__")


class PortableArrays:
    """Takes in operands: floats go to the device as f32, host integers stay to be checked.

    Parameters
    ----------
    device : Device
    cast : callable
        Launches an entry of the cast body: (entry, values, arguments).
    """

    def __init__(self, device: Device, cast: Launch) -> None:
        self._device, self._cast = device, cast

    def asarray(self, x: Any, kind: str, op: str, name: str) -> Any:
        """Return a packed f32 DeviceArray, or i32: NumPy if on the host, else a DeviceArray.

        Raises
        ------
        ShapeError
            Wrong dtype, wrong device, more than four axes.
        """
        if on_host(x):
            a = HOST.asarray(x, kind, op, name)
            return a if kind == "int" else self.upload(a)
        if isinstance(x, DeviceArray) and x.device is self._device:
            if x.dtype == (np.float32 if kind == "float" else np.int32):
                return x
            tensor = x.tensor()
        else:
            tensor = self._device.from_external(x)
        kinds = _FLOAT_KINDS if kind == "float" else _INT_KINDS
        if tensor.dtype not in kinds:
            raise ShapeError(
                message(op, f"{name} has the wrong dtype", got=tensor.dtype, expected=list(kinds))
            )
        wanted = np.float32 if kind == "float" else np.int32
        if kinds[tensor.dtype] == 0 and tensor.contiguous:
            return DeviceArray(self._device, tensor.buffer, tensor.shape, wanted)
        return self._packed(tensor, kinds[tensor.dtype], wanted, op, name)

    def _packed(self, tensor: Tensor, kind: int, wanted: Any, op: str, name: str) -> DeviceArray:
        shape = tensor.shape
        if len(shape) > 4:
            raise ShapeError(message(op, f"{name} has too many axes", got=shape, expected="<= 4"))
        out = self.empty(shape, wanted)
        sizes = (1,) * (4 - len(shape)) + tuple(shape)
        steps = (0,) * (4 - len(shape)) + tuple(tensor.strides)
        entry = "to_f32" if wanted is np.float32 else "to_i32"
        self._cast(entry, out.size, [tensor.buffer, out.buffer, out.size, *sizes[1:], kind, *steps])
        return out

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return a fresh array, content undefined."""
        n = math.prod(shape) * np.dtype(dtype).itemsize
        return DeviceArray(self._device, self._device.alloc(n), tuple(shape), dtype)

    def upload(self, a: Array) -> DeviceArray:
        """Return a device copy of a host array."""
        out = self.empty(a.shape, a.dtype)
        self._device.upload(out.buffer, a)
        return out

    def on_device(self, a: Any) -> DeviceArray:
        """Return `a` on the device: uploaded if it is NumPy."""
        return a if isinstance(a, DeviceArray) else self.upload(np.ascontiguousarray(a))
