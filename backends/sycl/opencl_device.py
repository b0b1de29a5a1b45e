"""One OpenCL device through pyopencl: the second runtime of the same text, for any vendor."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcore.compiler.build import Builder, DiskCache, build_error
from kvcore.compiler.device import Argument, Groups, Tensor, c_strides, numpy_dtype
from kvcore.compiler.external import host_array, read_external
from kvcore.compiler.kernel import ArgumentPlan
from kvcore.compiler.render import Source
from kvcore.errors import ShapeError, message

_CORRECTLY_ROUNDED = 1 << 7
_DIVIDE_FLAG = "-cl-fp32-correctly-rounded-divide-sqrt"


class ClBuffer:
    """A ``cl_mem`` and a byte offset into it."""

    __slots__ = ("mem", "nbytes", "offset")

    def __init__(self, mem: Any, nbytes: int, offset: int = 0) -> None:
        self.mem = mem
        self.nbytes = nbytes
        self.offset = offset

    def view(self, offset: int, nbytes: int) -> ClBuffer:
        """Return a window; see :class:`kvcore.compiler.device.Buffer`."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            got = f"bytes {offset} to {offset + nbytes}"
            text = message("buffer", "range", got=got, expected=f"within {self.nbytes} bytes")
            raise ShapeError(text)
        return ClBuffer(self.mem, nbytes, self.offset + offset)


class ClProgram:
    """A built source; ``lock`` guards the kernels' arguments, which are state of the kernel."""

    __slots__ = ("entries", "lock", "source")

    def __init__(self, source: Source, entries: dict[str, tuple[Any, ArgumentPlan, int]]) -> None:
        self.source = source
        self.entries = entries
        self.lock = threading.Lock()


class OpenClDevice:
    """A device that pyopencl lists; see :class:`kvcore.compiler.device.Device`.

    Parameters
    ----------
    device : pyopencl.Device
        As :func:`kvcore.backends.sycl.discovery.opencl_devices` found it.
    cache : DiskCache, optional
        Default: the user's cache folder.
    """

    runtime = "opencl"

    def __init__(self, device: Any, cache: DiskCache | None = None) -> None:
        import pyopencl

        self._cl = pyopencl
        self._device = device
        self.name = f"{device.name.strip()} [{device.platform.name.strip()}]"
        self.kind = "gpu" if device.type & pyopencl.device_type.GPU else "cpu"
        self.context = pyopencl.Context([device])
        self.queue = pyopencl.CommandQueue(self.context)
        # CPU drivers divide with the processor's own instruction and do not always set the bit.
        self._exact_divide = self.kind == "cpu" or bool(
            device.single_fp_config & _CORRECTLY_ROUNDED
        )
        self._build = Builder[ClProgram](self, cache or DiskCache())
        self._enqueue = pyopencl.enqueue_nd_range_kernel

    @property
    def identity(self) -> str:
        """What a binary depends on beside text and flags."""
        device = self._device
        parts = (device.platform.version, device.name, device.version, device.driver_version)
        return "|".join(("opencl", *parts, *self._options(())))

    def alloc(self, nbytes: int) -> ClBuffer:
        """Return a fresh ``cl_mem``."""
        cl = self._cl
        try:
            return ClBuffer(
                cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(nbytes, 1)), nbytes
            )
        except (cl.MemoryError, cl.LogicError, cl.RuntimeError) as error:
            raise MemoryError(f"[alloc] {self.name} cannot give {nbytes} bytes: {error}") from error

    def upload(self, buffer: ClBuffer, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a host array in, in launch order."""
        if array.nbytes:
            data = np.ascontiguousarray(array)
            at = buffer.view(offset, data.nbytes).offset
            self._cl.enqueue_copy(self.queue, buffer.mem, data, dst_offset=at, is_blocking=True)

    def download(
        self, buffer: ClBuffer, nbytes: int | None = None, offset: int = 0
    ) -> npt.NDArray[np.uint8]:
        """Return a host copy, after everything launched before."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        out = np.empty(n, np.uint8)
        at = buffer.view(offset, n).offset
        if n:
            self._cl.enqueue_copy(self.queue, out, buffer.mem, src_offset=at, is_blocking=True)
        return out

    def fill(self, buffer: ClBuffer, byte: int, nbytes: int | None = None, offset: int = 0) -> None:
        """Set bytes, in launch order."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        at = buffer.view(offset, n).offset
        if n:
            self._cl.enqueue_fill_buffer(self.queue, buffer.mem, np.uint8(byte), at, n)

    def copy(
        self,
        target: ClBuffer,
        source: ClBuffer,
        nbytes: int,
        target_at: int = 0,
        source_at: int = 0,
    ) -> None:
        """Copy between buffers, in launch order."""
        to, origin = target.view(target_at, nbytes), source.view(source_at, nbytes)
        if nbytes:
            self._cl.enqueue_copy(
                self.queue,
                to.mem,
                origin.mem,
                byte_count=nbytes,
                dst_offset=to.offset,
                src_offset=origin.offset,
            )

    def from_external(self, obj: object) -> Tensor:
        """Return a pyopencl array of this context without a copy, a host array uploaded."""
        if hasattr(obj, "base_data") and hasattr(obj, "offset"):  # pyopencl.array.Array
            return self._adopt(obj)
        external = read_external(obj)
        if external.device != "cpu":
            raise ShapeError(
                message("array", "device", got=external.device, expected=f"host or {self.name}")
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

    def _adopt(self, array: Any) -> Tensor:
        from kvcore.compiler.device import dtype_name

        mem = array.base_data
        if mem.get_info(self._cl.mem_info.CONTEXT) != self.context:
            text = message("array", "OpenCL context", got="another", expected=f"of {self.name}")
            raise ShapeError(text)
        return Tensor(
            buffer=ClBuffer(mem, mem.size - array.offset, array.offset),
            shape=array.shape,
            strides=array.strides,
            dtype=dtype_name(array.dtype),
        )

    def to_external(self, tensor: Tensor) -> npt.NDArray[Any]:
        """Return a NumPy copy."""
        dtype = numpy_dtype(tensor.dtype)
        if 0 in tensor.shape:
            return np.empty(tensor.shape, dtype)
        raw = self.download(tensor.buffer)  # type: ignore[arg-type]
        array: npt.NDArray[Any] = np.ndarray(tensor.shape, dtype, raw, 0, tensor.strides)
        return array

    def build(self, source: Source) -> ClProgram:
        """Compile, or load from the memo or the disk cache."""
        return self._build(source)

    def _options(self, flags: Sequence[str]) -> list[str]:
        if self._exact_divide:
            return list(flags)
        return [flag for flag in flags if flag != _DIVIDE_FLAG] + ["-DKC_SOFT_DIV"]

    def compile(self, source: Source) -> bytes:
        """Return the driver's binary of a source."""
        cl = self._cl
        options = self._options(source.target.flags)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)
                program = cl.Program(self.context, source.text).build(options, cache_dir=False)
        except (cl.RuntimeError, cl.LogicError) as error:
            raise build_error(source, self.name, _log(str(error))) from error
        return bytes(program.get_info(cl.program_info.BINARIES)[0])

    def load(self, source: Source, binary: bytes) -> ClProgram:
        """Return the program of a binary."""
        cl = self._cl
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)
                program = cl.Program(self.context, [self._device], [binary]).build()
            entries = {
                kernel.name: (
                    cl.Kernel(program, kernel.symbol),
                    ArgumentPlan(kernel, offsets=source.target.offsets),
                    kernel.lanes,
                )
                for kernel in source.kernels
            }
        except (cl.RuntimeError, cl.LogicError) as error:
            raise build_error(source, self.name, f"binary refused: {error}") from error
        return ClProgram(source, entries)

    def launch(
        self, program: ClProgram, entry: str, groups: Groups, args: Sequence[Argument]
    ) -> None:
        """Enqueue without waiting; see :meth:`kvcore.compiler.device.Device.launch`."""
        gx, gy, gz = groups
        kernel, plan, lanes = program.entries[entry]
        buffers = plan.buffers(args)
        at = [0 if x is None else x.offset for x in buffers] if plan.offsets else ()
        values = plan.values(args, at)
        if not gx * gy * gz:
            return
        index = 0
        with program.lock:
            for index, buffer in enumerate(buffers, start=1):
                kernel.set_arg(index - 1, None if buffer is None else buffer.mem)
            if values:
                kernel.set_arg(index, values)
            self._enqueue(self.queue, kernel, (gx * lanes, gy, gz), (lanes, 1, 1))

    def synchronize(self) -> None:
        """Wait for the queue."""
        self.queue.finish()


def _log(text: str) -> str:
    """Return the compiler's part of pyopencl's exception text."""
    body = re.split(r"^Build on .*:\s*$", text, maxsplit=1, flags=re.MULTILINE)[-1]
    return re.sub(r"\n?\((options: |source saved as ).*", "", body).strip()
