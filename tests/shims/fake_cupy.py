"""A stand-in for CuPy: the calls kvcore's device makes, over memory of this process.

A "cubin" is the CUDA text itself (see :class:`TextCompiler`); loading it runs the CUDA shim. The
module counts allocations and synchronisations, and refuses addresses that nothing allocated.
Install it with ``sys.modules["cupy"] = fake_cupy``.
"""

from __future__ import annotations

import bisect
import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvcore.compiler.build import build_error
from kvcore.compiler.render import Source
from tests.shims.cuda import translate
from tests.shims.intel import EXACT, FAST, Runtime, garbage, intel_runtime

__version__ = "0 (stand-in)"
counts = {"alloc": 0, "synchronize": 0, "launch": 0}
_EXACT = EXACT
_FAST = (FAST, "-DSHIM_CONTRACT")
_MAX_THREADS = 1024
_MAX_SHARED = 48 * 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)


class OutOfMemoryError(MemoryError):
    pass


class CUDADriverError(RuntimeError):
    pass


def _intel() -> Runtime:
    runtime = intel_runtime()
    if runtime is None:
        raise CUDADriverError("the OpenCL runtime under the stand-in is not installed")
    return runtime


class _Memory:
    """Allocations by address, so that every pointer of a launch can be bounds-checked."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._sizes: dict[int, int] = {}

    def add(self, base: int, nbytes: int) -> None:
        bisect.insort(self._bases, base)
        self._sizes[base] = nbytes

    def remove(self, base: int) -> None:
        self._bases.remove(base)
        del self._sizes[base]

    def rest(self, pointer: int) -> int:
        """Return the bytes from a pointer to the end of its allocation."""
        place = bisect.bisect_right(self._bases, pointer) - 1
        if place >= 0:
            base = self._bases[place]
            if pointer < base + self._sizes[base]:
                return base + self._sizes[base] - pointer
        raise CUDADriverError(f"CUDA_ERROR_ILLEGAL_ADDRESS: {pointer:#x}")


_memory = _Memory()


class _Allocation:
    def __init__(self, nbytes: int) -> None:
        counts["alloc"] += 1
        self._data = garbage(nbytes)
        self.ptr = int(self._data.ctypes.data)
        _memory.add(self.ptr, nbytes)

    def __del__(self) -> None:
        _memory.remove(self.ptr)


class Event:
    pass


class Stream:
    def __init__(self, ptr: int = 0) -> None:
        self.ptr = ptr

    def synchronize(self) -> None:
        counts["synchronize"] += 1
        _intel().queue.finish()

    def record(self) -> Event:
        return Event()

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)


class Device:
    def __init__(self, index: int) -> None:
        self.id = index
        self.compute_capability = "90"

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Function:
    def __init__(self, program: Any, name: str, bound: int) -> None:
        runtime = _intel()
        cl = runtime.cl
        self._kernel = cl.Kernel(program, name)
        self._bound = bound
        info = cl.kernel_work_group_info.LOCAL_MEM_SIZE
        self._shared = self._kernel.get_work_group_info(info, runtime.device)

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any]) -> None:
        counts["launch"] += 1
        n = block[0] * block[1] * block[2]
        if n > min(self._bound, _MAX_THREADS) or self._shared > _MAX_SHARED:
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: {n} threads, {self._shared} B shared")
        if any(not 0 < g <= most for g, most in zip(grid, _MAX_GRID, strict=True)):
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: grid {grid}")
        runtime = _intel()
        for index, arg in enumerate(args):
            self._kernel.set_arg(index, self._argument(runtime, arg))
        sizes = [g * b for g, b in zip(grid, block, strict=True)]
        runtime.cl.enqueue_nd_range_kernel(runtime.queue, self._kernel, sizes, block)
        runtime.queue.finish()

    @staticmethod
    def _argument(runtime: Runtime, arg: Any) -> Any:
        if isinstance(arg, np.ndarray):
            return arg.tobytes()
        pointer = int(arg)
        return None if pointer == 0 else runtime.cl.SVM(_view(pointer, _memory.rest(pointer)))


class Module:
    def load(self, image: bytes) -> None:
        fast, _, text = image.decode().partition("\n")
        translated, self._bounds = translate(text)
        self._program = _intel().build(translated, *(_FAST if fast == "fast" else _EXACT))

    def get_function(self, name: str) -> Function:
        if name not in self._bounds:
            raise CUDADriverError(f"CUDA_ERROR_NOT_FOUND: {name}")
        return Function(self._program, name, self._bounds[name])


class TextCompiler:
    """Takes NVRTC's place: checks the text with the shim and returns it as the image."""

    version = (0, 0)

    def __init__(self, *, fast: bool = False) -> None:
        self._mode = "fast" if fast else "exact"

    def compile(self, source: Source, _architecture: str) -> bytes:
        runtime = _intel()
        try:
            runtime.build(translate(source.text)[0], *_EXACT)
        except runtime.cl.RuntimeError as error:
            raise build_error(source, "the CUDA shim", str(error)) from error
        return f"{self._mode}\n{source.text}".encode()


class ndarray:
    def __init__(self, shape: Any, dtype: Any, memptr: Any, strides: Any = None) -> None:
        self.data, self.shape, self.dtype = memptr, tuple(shape), np.dtype(dtype)
        self._strides = strides
        self.strides = strides or np.empty(shape, dtype).strides
        self.device = Device(0)

    def get(self) -> np.ndarray[Any, Any]:
        """Return a host copy."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        raw = _view(self.data.ptr, _memory.rest(self.data.ptr))
        return np.ndarray(self.shape, self.dtype, raw, 0, self.strides).copy()


class UnownedMemory:
    def __init__(self, ptr: int, nbytes: int, owner: Any, _device: int) -> None:
        self.ptr, self.nbytes, self.owner = ptr, nbytes, owner


class MemoryPointer:
    def __init__(self, memory: UnownedMemory, offset: int) -> None:
        self.memory, self.ptr = memory, memory.ptr + offset


def _view(pointer: int, nbytes: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))


def _memcpy(to: int, origin: int, nbytes: int, kind: int, _stream: int) -> None:
    if kind in (1, 3) and _memory.rest(to) < nbytes:
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE: copy beyond the target")
    if kind in (2, 3) and _memory.rest(origin) < nbytes:
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE: copy beyond the source")
    _intel().queue.finish()
    ctypes.memmove(to, origin, nbytes)


def _memset(at: int, byte: int, nbytes: int, _stream: int) -> None:
    if _memory.rest(at) < nbytes:
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE: fill beyond the target")
    _intel().queue.finish()
    ctypes.memset(at, byte, nbytes)


_current = Stream()
cuda = SimpleNamespace(
    Device=Device,
    ExternalStream=Stream,
    MemoryPointer=MemoryPointer,
    UnownedMemory=UnownedMemory,
    alloc=_Allocation,
    get_current_stream=lambda: _current,
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    driver=SimpleNamespace(CUDADriverError=CUDADriverError),
    function=SimpleNamespace(Module=Module),
    runtime=SimpleNamespace(
        CUDARuntimeError=CUDADriverError,
        driverGetVersion=lambda: 13000,
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda _: {"name": b"CUDA text on Intel's CPU runtime"},
        memcpyAsync=_memcpy,
        memsetAsync=_memset,
    ),
)
