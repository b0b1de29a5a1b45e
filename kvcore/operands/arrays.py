"""How operands come in as arrays: the host's way, and the contract a device's way keeps."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kvcore.errors import RangeError, ShapeError, message
from kvcore.numerics import to_f32


class Arrays(Protocol):
    """How a backend takes in arrays; ``kind`` is "float" or "int"."""

    def asarray(self, x: Any, kind: str, op: str, name: str) -> Any:
        """Return `x` as the backend's contiguous f32 or i32 array, or raise ShapeError."""


class HostArrays:
    """Arrays of the CPU: anything NumPy, DLPack or the array interfaces give."""

    def asarray(self, x: Any, kind: str, op: str, name: str) -> Any:
        """Return a C-contiguous float32 or int32 NumPy array."""
        a = _as_numpy(x, op, name)
        if kind == "float":
            if a.dtype.kind != "f" and a.dtype.name != "bfloat16":
                raise ShapeError(
                    message(op, f"{name} has the wrong dtype", got=a.dtype, expected="floats")
                )
            return to_f32(a)
        if a.size == 0:
            return np.zeros(a.shape, np.int32)
        if a.dtype.kind not in "iu":
            raise ShapeError(
                message(op, f"{name} has the wrong dtype", got=a.dtype, expected="integers")
            )
        if a.max() > np.iinfo(np.int32).max or a.min() < np.iinfo(np.int32).min:
            bad = int(a.max()) if a.max() > np.iinfo(np.int32).max else int(a.min())
            raise RangeError(
                message(op, f"{name} is out of range", got=bad, expected="32-bit values")
            )
        return np.ascontiguousarray(a, np.int32)


HOST = HostArrays()


def _as_numpy(x: Any, op: str, name: str) -> np.ndarray[Any, Any]:
    if hasattr(x, "__cuda_array_interface__") or hasattr(x, "__sycl_usm_array_interface__"):
        raise ShapeError(
            message(
                op,
                f"{name} is on the wrong device",
                got=type(x).__name__,
                expected="host",
                fix="copy it to the host or use that device's backend",
            )
        )
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):  # a torch tensor that requires grad refuses DLPack
        x = x.detach()
        if str(x.dtype) == "torch.bfloat16":  # NumPy's DLPack has no bfloat16
            x = x.float()
    try:
        if hasattr(x, "__dlpack__"):
            return np.from_dlpack(x)
        return np.asarray(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ShapeError(
            message(op, f"{name} is not a host array", got=type(x).__name__, expected="an array")
            + f" ({error})"
        ) from error


def put(out: Any, values: Any, op: str) -> Any:
    """Return `values`, or `out` (a NumPy array) overwritten with them.

    Raises
    ------
    ShapeError
        If `out` is not a packed float32 NumPy array of the right shape.
    """
    if out is None:
        return np.asarray(values, np.float32)
    if not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.shape != values.shape:
        got = f"{type(out).__name__} {getattr(out, 'dtype', '')}{getattr(out, 'shape', '')}"
        raise ShapeError(
            message(op, "out is not usable", got=got, expected=f"float32{values.shape} NumPy")
        )
    out[...] = values
    return out


def is_host(a: Any) -> bool:
    """Return True if the values of `a` may be read here."""
    return isinstance(a, np.ndarray)


def shape_of(a: Any, op: str, name: str, expected: str, want: tuple[Any, ...]) -> None:
    """Raise ShapeError unless the shape of `a` equals `want` (None matches anything)."""
    got = tuple(a.shape)
    if len(got) != len(want) or any(
        w is not None and g != w for g, w in zip(got, want, strict=True)
    ):
        raise ShapeError(message(op, f"{name} has the wrong shape", got=got, expected=expected))


def rank4(a: Any, op: str, name: str, expected: str, heads: int, dim: int) -> Any:
    """Return `a` as [B, T, heads, dim]; rank 3 means B = 1."""
    if len(a.shape) == 3:
        a = a.reshape(1, *a.shape)
    shape_of(a, op, name, f"{expected} with H={heads}, D={dim}", (None, None, heads, dim))
    return a
