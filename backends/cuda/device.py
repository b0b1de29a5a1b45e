"""One CUDA device: CuPy's memory and streams, NVRTC's cubins.

Work goes to the caller's current CuPy stream. A launch neither synchronises nor allocates on the
device, so it can be captured in a CUDA graph; build programs and allocate buffers before.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvcore.compiler.build import Builder, DiskCache, build_error
from kvcore.compiler.device import (
    Argument,
    Found,
    Groups,
    Tensor,
    c_strides,
    numpy_dtype,
)
from kvcore.compiler.external import External, host_array, read_external
from kvcore.compiler.kernel import ArgumentPlan
from kvcore.compiler.render import Source
from kvcore.errors import BackendUnavailable, ShapeError, message

_HOST_TO_DEVICE, _DEVICE_TO_HOST, _DEVICE_TO_DEVICE = 1, 2, 3


class CudaCompiler(Protocol):
    """What turns a source into a module image; :class:`kvcore.backends.cuda.nvrtc.Nvrtc`."""

    version: tuple[int, int]

    def compile(self, source: Source, architecture: str) -> bytes:
        """Return the image."""


class CudaBuffer:
    """Device memory by address; ``owner`` keeps it alive."""

    __slots__ = ("nbytes", "owner", "pointer")

    def __init__(self, pointer: int, nbytes: int, owner: Any) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.owner = owner

    def view(self, offset: int, nbytes: int) -> CudaBuffer:
        """Return a window; see :class:`kvcore.compiler.device.Buffer`."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            got = f"bytes {offset} to {offset + nbytes}"
            text = message("buffer", "range", got=got, expected=f"within {self.nbytes} bytes")
            raise ShapeError(text)
        return CudaBuffer(self.pointer + offset, nbytes, self.owner)


class CudaProgram:
    """A loaded module with its entries' functions."""

    __slots__ = ("entries", "module", "source")

    def __init__(
        self, source: Source, module: Any, entries: dict[str, tuple[Any, ArgumentPlan, int]]
    ) -> None:
        self.source = source
        self.module = module
        self.entries = entries


class CudaDevice:
    """See :class:`kvcore.compiler.device.Device`.

    Parameters
    ----------
    index : int
        CUDA's number of the device.
    compiler : CudaCompiler, optional
        Default: the newest NVRTC that the driver can serve.
    cache : DiskCache, optional
        Default: the user's cache folder.

    Raises
    ------
    BackendUnavailable
        No CuPy, no driver, no such device, or no NVRTC.
    """

    runtime = "cuda"
    kind = "gpu"

    def __init__(
        self,
        index: int = 0,
        *,
        compiler: CudaCompiler | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        cupy = _import_cupy()
        self._cupy = cupy
        self.index = index
        self._device = cupy.cuda.Device(index)
        self._runtime = cupy.cuda.runtime
        self._stream = cupy.cuda.get_current_stream
        try:
            name = self._runtime.getDeviceProperties(index)["name"]
            self.architecture = f"sm_{self._device.compute_capability}"
            self._driver = int(self._runtime.driverGetVersion())
        except self._runtime.CUDARuntimeError as error:
            raise BackendUnavailable(f"[cuda] device {index}: {error}") from error
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        self._compiler = compiler or _default_compiler(self._driver // 1000)
        self._build = Builder[CudaProgram](self, cache or DiskCache())

    @property
    def identity(self) -> str:
        """What a cubin depends on beside text and flags; it is the same for equal GPUs."""
        return f"nvrtc {self._compiler.version}|{self.architecture}"

    def alloc(self, nbytes: int) -> CudaBuffer:
        """Return memory of CuPy's pool."""
        try:
            with self._device:
                memory = self._cupy.cuda.alloc(max(nbytes, 1))
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(f"[alloc] {self.name} cannot give {nbytes} bytes: {error}") from error
        return CudaBuffer(int(memory.ptr), nbytes, memory)

    def upload(self, buffer: CudaBuffer, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a host array in, on the current stream; waits, so the array may be reused."""
        data = np.ascontiguousarray(array)
        to = buffer.view(offset, data.nbytes).pointer
        if data.nbytes:
            stream = self._stream()
            self._runtime.memcpyAsync(
                to, data.ctypes.data, data.nbytes, _HOST_TO_DEVICE, stream.ptr
            )
            stream.synchronize()

    def download(
        self, buffer: CudaBuffer, nbytes: int | None = None, offset: int = 0
    ) -> npt.NDArray[np.uint8]:
        """Return a host copy, after everything launched on the current stream."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        out = np.empty(n, np.uint8)
        origin = buffer.view(offset, n).pointer
        if n:
            stream = self._stream()
            self._runtime.memcpyAsync(out.ctypes.data, origin, n, _DEVICE_TO_HOST, stream.ptr)
            stream.synchronize()
        return out

    def fill(
        self, buffer: CudaBuffer, byte: int, nbytes: int | None = None, offset: int = 0
    ) -> None:
        """Set bytes, in stream order."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        at = buffer.view(offset, n).pointer
        if n:
            self._runtime.memsetAsync(at, byte, n, self._stream().ptr)

    def copy(
        self,
        target: CudaBuffer,
        source: CudaBuffer,
        nbytes: int,
        target_at: int = 0,
        source_at: int = 0,
    ) -> None:
        """Copy on the device, in stream order."""
        to, origin = target.view(target_at, nbytes).pointer, source.view(source_at, nbytes).pointer
        if nbytes:
            self._runtime.memcpyAsync(to, origin, nbytes, _DEVICE_TO_DEVICE, self._stream().ptr)

    def from_external(self, obj: object) -> Tensor:
        """Return a CUDA array of this device without a copy, a host array uploaded.

        A producer on another stream is waited for on the current one, without blocking the host.
        """
        if isinstance(obj, self._cupy.ndarray):  # the short way: no protocol, no event
            external = _from_cupy(obj)
        else:
            stream = self._stream()
            external = read_external(obj, stream.ptr or 1)
            if external.stream is not None and external.stream != (stream.ptr or 1):
                producer = self._cupy.cuda.ExternalStream(external.stream)
                stream.wait_event(producer.record())
        if external.device == "cpu":
            return self._upload_external(external)
        if external.device != "cuda" or external.index != self.index:
            got = f"{external.device}:{external.index}"
            raise ShapeError(
                message("array", "device", got=got, expected=f"host or cuda:{self.index}")
            )
        span = sum(max(n - 1, 0) * s for n, s in zip(external.shape, external.strides, strict=True))
        nbytes = 0 if 0 in external.shape else span + numpy_dtype(external.dtype).itemsize
        return Tensor(
            buffer=CudaBuffer(external.pointer, nbytes, external.owner),
            shape=external.shape,
            strides=external.strides,
            dtype=external.dtype,
        )

    def _upload_external(self, external: External) -> Tensor:
        array = np.ascontiguousarray(host_array(external)).reshape(external.shape)
        buffer = self.alloc(array.nbytes)
        self.upload(buffer, array)
        return Tensor(
            buffer=buffer,
            shape=external.shape,
            strides=c_strides(external.shape, array.itemsize),
            dtype=external.dtype,
            copied=True,
        )

    def to_external(self, tensor: Tensor) -> Any:
        """Return a ``cupy.ndarray`` over the same memory; other libraries take it by DLPack."""
        cupy, buffer = self._cupy, tensor.buffer
        if not isinstance(buffer, CudaBuffer):
            got = type(buffer).__name__
            raise ShapeError(message("array", "buffer", got=got, expected="a CudaBuffer"))
        memory = cupy.cuda.UnownedMemory(buffer.pointer, max(buffer.nbytes, 1), buffer, self.index)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray(
            tensor.shape, numpy_dtype(tensor.dtype), memptr=pointer, strides=tensor.strides
        )

    def build(self, source: Source) -> CudaProgram:
        """Compile, or load from the memo or the disk cache."""
        return self._build(source)

    def compile(self, source: Source) -> bytes:
        """Return the cubin for this device."""
        return self._compiler.compile(source, self.architecture)

    def load(self, source: Source, binary: bytes) -> CudaProgram:
        """Return the program of a cubin."""
        module = self._cupy.cuda.function.Module()
        try:
            with self._device:
                module.load(binary)
                entries = {
                    kernel.name: (
                        module.get_function(kernel.symbol),
                        ArgumentPlan(kernel, offsets=source.target.offsets),
                        kernel.lanes,
                    )
                    for kernel in source.kernels
                }
        except self._cupy.cuda.driver.CUDADriverError as error:
            log = f"the driver (CUDA {self._driver}) refused the binary: {error}"
            raise build_error(source, f"NVRTC {self._compiler.version}", log) from error
        return CudaProgram(source, module, entries)

    def launch(
        self, program: CudaProgram, entry: str, groups: Groups, args: Sequence[Argument]
    ) -> None:
        """Launch on the current stream; see :meth:`kvcore.compiler.device.Device.launch`."""
        function, plan, lanes = program.entries[entry]
        bound: list[Any] = [np.uint64(0 if x is None else x.pointer) for x in plan.buffers(args)]
        values = plan.values(args)
        if values:
            bound.append(np.frombuffer(values, np.dtype((np.void, len(values)))))
        if 0 not in groups:
            function(groups, (lanes, 1, 1), bound)

    def synchronize(self) -> None:
        """Wait for the current stream."""
        self._stream().synchronize()


def cuda_devices() -> list[Found]:
    """Return every CUDA device, or why there is none."""
    try:
        cupy = _import_cupy()
        n = int(cupy.cuda.runtime.getDeviceCount())
    except BackendUnavailable as error:
        return [Found(runtime="cuda", name="no device", reason=str(error))]
    except Exception as error:  # CuPy raises its own type, which exists only once it is imported
        return [Found(runtime="cuda", name="no device", reason=f"the driver says: {error}")]
    version = f"driver CUDA {cupy.cuda.runtime.driverGetVersion()}, CuPy {cupy.__version__}"
    found = []
    for index in range(n):
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        name = properties["name"]
        found.append(
            Found(
                runtime="cuda",
                name=name.decode() if isinstance(name, bytes) else str(name),
                kind="gpu",
                version=version,
                handle=index,
            )
        )
    return found or [Found(runtime="cuda", name="no device", reason="the driver lists none")]


def _import_cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise BackendUnavailable(
            f"[cuda] {error}; pip install 'kvcore[cuda13]' or 'kvcore[cuda12]'"
        ) from error
    module: ModuleType = cupy
    return module


def _default_compiler(driver_major: int) -> CudaCompiler:
    from kvcore.backends.cuda.nvrtc import load_nvrtc

    compiler: CudaCompiler = load_nvrtc(driver_major)
    return compiler


def _from_cupy(array: Any) -> External:
    return External(
        pointer=int(array.data.ptr),
        shape=array.shape,
        strides=array.strides,
        dtype=_cupy_dtype(array),
        device="cuda",
        index=int(array.device.id),
        owner=array,
    )


def _cupy_dtype(array: Any) -> str:
    from kvcore.compiler.device import dtype_name

    try:
        return dtype_name(array.dtype)
    except KeyError:
        text = message("array", "element type", got=array.dtype, expected="a float or integer")
        raise ShapeError(text) from None
