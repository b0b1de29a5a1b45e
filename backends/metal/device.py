"""One Apple GPU through PyObjC's Metal: shared-storage buffers, safe math, cached pipelines.

Memory is shared by CPU and GPU, so uploads and downloads are plain copies once the GPU is idle, and
``to_external`` copies nothing. Launches are committed at once and run in order.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcore.compiler.build import Memo, build_error
from kvcore.compiler.device import (
    Argument,
    Found,
    Groups,
    Tensor,
    c_strides,
    numpy_dtype,
)
from kvcore.compiler.external import host_array, read_external
from kvcore.compiler.kernel import ArgumentPlan, KernelDecl
from kvcore.compiler.render import Source
from kvcore.errors import BackendUnavailable, BuildError, ShapeError, message

_SIMD_WIDTH = 32
_MAX_IN_FLIGHT = 32  # Metal queues hold 64 command buffers; beyond, commandBuffer() blocks
_COMPLETED = 4  # MTLCommandBufferStatusCompleted; 5 is an error


class MetalBuffer:
    """A shared MTLBuffer and a byte offset into it."""

    __slots__ = ("mtl", "nbytes", "offset")

    def __init__(self, mtl: Any, nbytes: int, offset: int = 0) -> None:
        self.mtl = mtl
        self.nbytes = nbytes
        self.offset = offset

    def view(self, offset: int, nbytes: int) -> MetalBuffer:
        """Return a window; see :class:`kvcore.compiler.device.Buffer`."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            got = f"bytes {offset} to {offset + nbytes}"
            text = message("buffer", "range", got=got, expected=f"within {self.nbytes} bytes")
            raise ShapeError(text)
        return MetalBuffer(self.mtl, nbytes, self.offset + offset)

    def host(self) -> npt.NDArray[np.uint8]:
        """Return the bytes as the CPU sees them, without a copy."""
        memory = self.mtl.contents().as_buffer(self.mtl.length())
        array: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        return array[self.offset : self.offset + self.nbytes]


class MetalProgram:
    """A built library with its entries' pipelines."""

    __slots__ = ("entries", "source")

    def __init__(self, source: Source, entries: dict[str, tuple[Any, ArgumentPlan, int]]) -> None:
        self.source = source
        self.entries = entries


class MetalDevice:
    """See :class:`kvcore.compiler.device.Device`.

    Parameters
    ----------
    device : MTLDevice, optional
        Default: the system's default device.

    Raises
    ------
    BackendUnavailable
        No PyObjC Metal, or no device.
    """

    runtime = "metal"
    kind = "gpu"

    def __init__(self, device: Any = None) -> None:
        self._metal = _import_metal()
        self._device = device or self._metal.MTLCreateSystemDefaultDevice()
        if self._device is None:
            raise BackendUnavailable("[metal] the system has no Metal device")
        self.name = str(self._device.name())
        self.queue = self._device.newCommandQueue()
        self._pending: deque[Any] = deque()
        self._null = self.alloc(64)
        self._build = Memo(self._compile)

    def alloc(self, nbytes: int) -> MetalBuffer:
        """Return fresh shared memory."""
        mode = self._metal.MTLResourceStorageModeShared
        mtl = self._device.newBufferWithLength_options_(max(nbytes, 16), mode)
        if mtl is None:
            raise MemoryError(f"[alloc] {self.name} cannot give {nbytes} bytes")
        return MetalBuffer(mtl, nbytes)

    def upload(self, buffer: MetalBuffer, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a host array in, after everything launched before."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        window = buffer.view(offset, data.nbytes)
        self.synchronize()
        window.host()[:] = data

    def download(
        self, buffer: MetalBuffer, nbytes: int | None = None, offset: int = 0
    ) -> npt.NDArray[np.uint8]:
        """Return a host copy, after everything launched before."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        window = buffer.view(offset, n)
        self.synchronize()
        out: npt.NDArray[np.uint8] = window.host().copy()
        return out

    def fill(
        self, buffer: MetalBuffer, byte: int, nbytes: int | None = None, offset: int = 0
    ) -> None:
        """Set bytes, after everything launched before."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        window = buffer.view(offset, n)
        self.synchronize()
        window.host()[:] = byte

    def copy(
        self,
        target: MetalBuffer,
        source: MetalBuffer,
        nbytes: int,
        target_at: int = 0,
        source_at: int = 0,
    ) -> None:
        """Copy bytes, after everything launched before."""
        to, origin = target.view(target_at, nbytes), source.view(source_at, nbytes)
        self.synchronize()
        to.host()[:] = origin.host()

    def from_external(self, obj: object) -> Tensor:
        """Return a shared MTLBuffer's tensor without a copy, a host array uploaded."""
        external = read_external(obj)
        if external.device != "cpu":
            # A DLPack Metal tensor names its MTLBuffer by address, which PyObjC cannot adopt.
            raise ShapeError(
                message("array", "device", got=external.device, expected="an array on the host")
            )
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

    def to_external(self, tensor: Tensor) -> npt.NDArray[Any]:
        """Return a NumPy array over the same memory, once the GPU has written it."""
        dtype = numpy_dtype(tensor.dtype)
        if 0 in tensor.shape:
            return np.empty(tensor.shape, dtype)
        buffer = tensor.buffer
        if not isinstance(buffer, MetalBuffer):
            got = type(buffer).__name__
            raise ShapeError(message("array", "buffer", got=got, expected="a MetalBuffer"))
        self.synchronize()
        array: npt.NDArray[Any] = np.ndarray(tensor.shape, dtype, buffer.host(), 0, tensor.strides)
        return array

    def build(self, source: Source) -> MetalProgram:
        """Compile; Metal keeps its own binary cache on disk, this one is the process's."""
        return self._build(source)

    def _compile(self, source: Source) -> MetalProgram:
        options = self._metal.MTLCompileOptions.new()
        if hasattr(options, "setMathMode_"):  # macOS 15 and later
            options.setMathMode_(self._metal.MTLMathModeSafe)
        else:
            options.setFastMathEnabled_(False)
        library, error = self._device.newLibraryWithSource_options_error_(
            source.text, options, None
        )
        if library is None:
            log = str(error.localizedDescription())
            raise build_error(source, f"Metal on {self.name}", log)
        entries = {
            kernel.name: (
                self._pipeline(source, library, kernel),
                ArgumentPlan(kernel, offsets=source.target.offsets),
                kernel.lanes,
            )
            for kernel in source.kernels
        }
        return MetalProgram(source, entries)

    def _pipeline(self, source: Source, library: Any, kernel: KernelDecl) -> Any:
        """Return the pipeline of an entry, refused where the device cannot run its lanes."""
        function = library.newFunctionWithName_(kernel.symbol)
        if function is None:
            raise self._refused(source, f"{kernel.symbol} is not in the library")
        pipeline, error = self._device.newComputePipelineStateWithFunction_error_(function, None)
        if pipeline is None:
            raise self._refused(source, str(error.localizedDescription()))
        if pipeline.maxTotalThreadsPerThreadgroup() < kernel.lanes:
            most = pipeline.maxTotalThreadsPerThreadgroup()
            raise self._refused(source, f"{kernel.symbol} runs {most} of its {kernel.lanes} lanes")
        if pipeline.threadExecutionWidth() != _SIMD_WIDTH:
            width = pipeline.threadExecutionWidth()
            raise self._refused(source, f"SIMD groups are {width} wide, expected {_SIMD_WIDTH}")
        return pipeline

    def _refused(self, source: Source, why: str) -> BuildError:
        return build_error(source, f"Metal on {self.name}", why)

    def launch(
        self, program: MetalProgram, entry: str, groups: Groups, args: Sequence[Argument]
    ) -> None:
        """Commit without waiting; see :meth:`kvcore.compiler.device.Device.launch`."""
        pipeline, plan, lanes = program.entries[entry]
        buffers = plan.buffers(args)
        values = plan.values(args)
        if 0 in groups:
            return
        commands = self.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        index = 0
        for index, given in enumerate(buffers, start=1):
            bound = self._null if given is None else given
            encoder.setBuffer_offset_atIndex_(bound.mtl, bound.offset, index - 1)
        if values:
            encoder.setBytes_length_atIndex_(values, len(values), index)
        size = self._metal.MTLSizeMake
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(size(*groups), size(lanes, 1, 1))
        encoder.endEncoding()
        commands.commit()
        self._pending.append(commands)
        if len(self._pending) > _MAX_IN_FLIGHT:
            self._finish(self._pending.popleft())

    def synchronize(self) -> None:
        """Wait for every command buffer; raise what the first failed one reports."""
        while self._pending:
            self._finish(self._pending.popleft())

    def _finish(self, commands: Any) -> None:
        commands.waitUntilCompleted()
        if commands.status() != _COMPLETED:
            reason = commands.error()
            text = str(reason.localizedDescription()) if reason else "no description"
            raise RuntimeError(f"[launch] {self.name} failed a command buffer: {text}")


def metal_devices() -> list[Found]:
    """Return every Metal device, or why there is none."""
    try:
        metal = _import_metal()
    except BackendUnavailable as error:
        return [Found(runtime="metal", name="no device", reason=str(error))]
    device = metal.MTLCreateSystemDefaultDevice()
    if device is None:
        return [Found(runtime="metal", name="no device", reason="the system lists none")]
    return [Found(runtime="metal", name=str(device.name()), kind="gpu", handle=device)]


def _import_metal() -> ModuleType:
    try:
        import Metal
    except ImportError as error:
        hint = (
            "pip install 'kvcore[metal]'"
            if sys.platform == "darwin"
            else "Metal needs macOS; `kvcore emit --target metal` prints its source anywhere"
        )
        raise BackendUnavailable(f"[metal] {error}; {hint}") from error
    module: ModuleType = Metal
    return module
