"""What every op's launches share: programs, buffers, small uploads and working memory."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvcore.compiler.device import Device, Program
from kvcore.errors import ShapeError, message
from kvcore.numerics import Array
from kvcore.pool import Pool, State
from kvcore.portable import programs
from kvcore.portable.arrays import DeviceArray, PortableArrays
from kvcore.portable.programs import LANES
from kvcore.portable.recipe import Recipe

PLANES = ("k_codes", "k_scales", "v_codes", "v_scales")
_KEPT_BYTES = 1 << 16
_KEPT_ARRAYS = 64


def chunks_of(n: int, lanes: int = LANES) -> int:
    """Return the groups of lanes that n items take."""
    return -(-n // lanes)


class Engine:
    """A device with its built programs; launches run in the device's order.

    Parameters
    ----------
    device : Device
    target : str
        Which dialect its compiler takes.

    Attributes
    ----------
    arrays : PortableArrays
    errors : DeviceArray
        i32[1], set by kernels that skip a bad row.
    """

    def __init__(self, device: Device, target: str) -> None:
        self.device, self.target = device, target
        self._programs: dict[Any, Program] = {}
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, DeviceArray] = OrderedDict()
        self.arrays = PortableArrays(device, self._cast)
        self.errors = self.arrays.empty((1,), np.int32)
        device.fill(self.errors.buffer, 0, 4)

    def launch(
        self,
        program: Program,
        entry: str,
        groups: tuple[int, int, int],
        args: Sequence[Any],
    ) -> None:
        """Launch an entry; see :meth:`kvcore.compiler.device.Device.launch`."""
        self.device.launch(program, entry, groups, args)

    def program(self, recipe: Callable[..., Recipe], *key: Any) -> Program:
        """Return the program of ``recipe(*key)``, built on first use."""
        name = (recipe, *key)
        program = self._programs.get(name)
        if program is None:
            with self._lock:
                program = self._programs.get(name)
                if program is None:
                    program = self.device.build(recipe(*key).render(self.target))
                    self._programs[name] = program
        return program

    def _cast(self, entry: str, n: int, args: list[Any]) -> None:
        program = self.program(programs.cast_recipe)
        self.launch(program, entry, (chunks_of(n), 1, 1), args)

    # -- arrays ---------------------------------------------------------------------------

    def adopt(self, array: Any) -> DeviceArray:
        """Return a caller's device array, which must be packed, as one of ours."""
        if isinstance(array, DeviceArray):
            return array
        tensor = self.device.from_external(array)
        if tensor.copied or not tensor.contiguous:
            raise ShapeError(
                message(
                    "array",
                    "an array that is written",
                    got="one on the host" if tensor.copied else f"strides {tensor.strides}",
                    expected=f"a C-contiguous array on {self.device.name}",
                )
            )
        return DeviceArray(self.device, tensor.buffer, tensor.shape, array.dtype)

    def buffer(self, array: Any) -> Any:
        """Return the buffer of a plane or state array, whoever made it; None for None."""
        return None if array is None else self.adopt(array).buffer

    def planes(self, pool: Pool) -> list[Any]:
        """Return the buffers of a pool's four planes, None where a codec has no scales."""
        return [self.buffer(pool.planes.get(name)) for name in PLANES]

    def state(self, state: State | None) -> list[Any]:
        """Return the buffers of marks, k, v and centre."""
        if state is None:
            return [None] * 4
        return [self.buffer(a) for a in (state.marks, state.k, state.v, state.centre)]

    def ints(self, values: Any) -> DeviceArray:
        """Return i32 values on the device, only to be read.

        The layers of a model pass the same positions, lengths and tables one after the other, so
        small arrays are kept by content.
        """
        if isinstance(values, DeviceArray):
            return values
        data = np.ascontiguousarray(values, np.int32)
        if data.nbytes > _KEPT_BYTES:
            return self.arrays.upload(data)
        key = (data.shape, data.tobytes())
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = self.arrays.upload(data)
                if len(self._kept) > _KEPT_ARRAYS:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(key)
        return found

    def out(self, out: Any, shape: tuple[int, ...], op: str) -> DeviceArray:
        """Return the array to write: a fresh one, or the caller's if it fits."""
        if out is None:
            return self.arrays.empty(shape, np.float32)
        kind = getattr(out, "dtype", None)
        if isinstance(out, np.ndarray) or kind is None or np.dtype(kind) != np.float32:
            got = f"{type(out).__name__} {kind}"
            raise ShapeError(message(op, "out is not usable", got=got, expected="f32 on device"))
        target = self.adopt(out)
        if target.shape != tuple(shape):
            raise ShapeError(message(op, "out is not usable", got=target.shape, expected=shape))
        return target

    def work(self, scratch: Any, name: str, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Return memory for one call: the scratch's if there is one."""
        if scratch is None:
            return self.arrays.empty(shape, dtype)
        kept = scratch.take(name, math.prod(shape), dtype)
        return DeviceArray(self.device, kept.buffer, shape, dtype)

    def host(self, array: Any) -> Array:
        """Return a NumPy copy of an array of this device, or the NumPy array itself."""
        if isinstance(array, np.ndarray):
            return array
        if isinstance(array, DeviceArray):
            return array.to_numpy()
        tensor = self.device.from_external(array)
        if not tensor.contiguous:
            return np.asarray(array.get() if hasattr(array, "get") else array)
        return DeviceArray(self.device, tensor.buffer, tensor.shape, array.dtype).to_numpy()


def rings_of(state: State | None) -> list[int]:
    """Return sinks, k_ring, v_ring, n_k_slots, n_v_slots."""
    if state is None:
        return [0] * 5
    sl = state.layout
    return [sl.sinks, sl.ring("k"), sl.ring("v"), sl.slots("k"), sl.slots("v")]
