"""One SYCL device through dpctl: USM memory and an in-order queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvcore.compiler.build import Memo, build_error
from kvcore.compiler.device import Argument, Groups, Tensor, c_strides, numpy_dtype
from kvcore.compiler.external import External, host_array, read_external
from kvcore.compiler.kernel import ArgumentPlan
from kvcore.compiler.render import Source
from kvcore.errors import ShapeError, message

_MAX_PENDING = 256


class UsmBuffer:
    """USM memory or a window of it."""

    __slots__ = ("memory", "nbytes")

    def __init__(self, memory: Any, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes

    def view(self, offset: int, nbytes: int) -> UsmBuffer:
        """Return a window; see :class:`kvcore.compiler.device.Buffer`."""
        _check_range(self.nbytes, offset, nbytes)
        if offset == 0 and nbytes == self.nbytes:
            return self
        pointer = self.memory._pointer + offset
        return UsmBuffer(_usm(_Window(pointer, nbytes, self.memory)), nbytes)


class _Window:
    """A pointer into USM memory, described by the USM array interface."""

    def __init__(self, pointer: int, nbytes: int, owner: Any, syclobj: Any = None) -> None:
        self.owner = owner
        self.__sycl_usm_array_interface__ = {
            "data": (pointer, False),
            "shape": (max(nbytes, 1),),
            "strides": None,
            "typestr": "|u1",
            "version": 1,
            "syclobj": syclobj or owner.sycl_queue,
            "offset": 0,
        }


class SyclProgram:
    """A built source with its entries' kernels."""

    __slots__ = ("entries", "source")

    def __init__(self, source: Source, entries: dict[str, tuple[Any, ArgumentPlan, int]]) -> None:
        self.source = source
        self.entries = entries


class DpctlDevice:
    """A device that dpctl lists; see :class:`kvcore.compiler.device.Device`.

    Parameters
    ----------
    device : dpctl.SyclDevice
        As :func:`kvcore.backends.sycl.discovery.dpctl_devices` found it.
    """

    runtime = "dpctl"

    def __init__(self, device: Any) -> None:
        import dpctl
        import dpctl.memory
        import dpctl.program

        self._dpctl = dpctl
        self._device = device
        self.name = device.name.strip()
        self.kind = "gpu" if device.is_gpu else "cpu"
        self.queue = dpctl.SyclQueue(device, property="in_order")
        shared = device.has_aspect_usm_shared_allocations and device.is_cpu
        self._make = dpctl.memory.MemoryUSMShared if shared else dpctl.memory.MemoryUSMDevice
        self._on_host = shared
        self._null = self._make(64, queue=self.queue)
        self._pending: deque[tuple[Any, Any]] = deque()
        self._build = Memo(self._compile)

    def alloc(self, nbytes: int) -> UsmBuffer:
        """Return fresh USM memory."""
        try:
            return UsmBuffer(self._make(max(nbytes, 1), queue=self.queue), nbytes)
        except self._dpctl.memory.USMAllocationError as error:
            raise MemoryError(f"[alloc] {self.name} has no {nbytes} bytes left") from error

    def upload(self, buffer: UsmBuffer, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a host array in, after everything launched before."""
        if array.nbytes:
            data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
            self.queue.wait()
            buffer.view(offset, data.nbytes).memory.copy_from_host(data)

    def download(
        self, buffer: UsmBuffer, nbytes: int | None = None, offset: int = 0
    ) -> npt.NDArray[np.uint8]:
        """Return a host copy, after everything launched before."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        out = np.empty(n, np.uint8)
        window = buffer.view(offset, n)
        if n:
            self.synchronize()
            window.memory.copy_to_host(out)
        return out

    def fill(
        self, buffer: UsmBuffer, byte: int, nbytes: int | None = None, offset: int = 0
    ) -> None:
        """Set bytes, in launch order."""
        n = buffer.nbytes - offset if nbytes is None else nbytes
        if n:
            self.queue.wait()
            buffer.view(offset, n).memory.memset(byte)

    def copy(
        self,
        target: UsmBuffer,
        source: UsmBuffer,
        nbytes: int,
        target_at: int = 0,
        source_at: int = 0,
    ) -> None:
        """Copy between USM buffers, in launch order."""
        if nbytes:
            to, origin = target.view(target_at, nbytes), source.view(source_at, nbytes)
            event = self.queue.memcpy_async(to.memory, origin.memory, nbytes)
            self._keep(event, (to, origin))

    def from_external(self, obj: object) -> Tensor:
        """Return a USM array without a copy, a host array uploaded."""
        external = read_external(obj)
        if external.device == "oneapi":
            return Tensor(
                buffer=self._adopt(external),
                shape=external.shape,
                strides=external.strides,
                dtype=external.dtype,
            )
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

    def _adopt(self, external: External) -> UsmBuffer:
        """Return the caller's USM memory, if this queue's context can reach it."""
        span = sum(max(n - 1, 0) * s for n, s in zip(external.shape, external.strides, strict=True))
        nbytes = span + numpy_dtype(external.dtype).itemsize if 0 not in external.shape else 0
        window = _Window(external.pointer, nbytes, external.owner, self.queue)
        try:
            return UsmBuffer(_usm(window), nbytes)
        except ValueError as error:
            text = message("array", "USM memory of another context", got=error, expected=self.name)
            raise ShapeError(text) from error

    def to_external(self, tensor: Tensor) -> npt.NDArray[Any]:
        """Return a NumPy array: over the same memory on a CPU device, else a copy."""
        dtype = numpy_dtype(tensor.dtype)
        if 0 in tensor.shape:
            return np.empty(tensor.shape, dtype)
        memory = tensor.buffer.memory  # type: ignore[attr-defined]
        self.synchronize()
        data = memory if self._on_host else memory.copy_to_host()
        array: npt.NDArray[Any] = np.ndarray(tensor.shape, dtype, data, 0, tensor.strides)
        return array

    def build(self, source: Source) -> SyclProgram:
        """Compile through dpctl; kept in this process only, as dpctl gives no binary."""
        return self._build(source)

    def _compile(self, source: Source) -> SyclProgram:
        flags = " ".join(source.target.flags)
        try:
            program = self._dpctl.program.create_program_from_source(self.queue, source.text, flags)
        except self._dpctl.program.SyclProgramCompilationError as error:
            from kvcore.backends.sycl.buildlog import build_log

            driver = self._device.driver_version
            log = build_log(self._device.name.strip(), driver, source.text, flags)
            raise build_error(source, f"{self.name} ({driver})", log) from error
        entries = {
            kernel.name: (
                program.get_sycl_kernel(kernel.symbol),
                ArgumentPlan(kernel, offsets=source.target.offsets),
                kernel.lanes,
            )
            for kernel in source.kernels
        }
        return SyclProgram(source, entries)

    def launch(
        self, program: SyclProgram, entry: str, groups: Groups, args: Sequence[Argument]
    ) -> None:
        """Submit without waiting; see :meth:`kvcore.compiler.device.Device.launch`."""
        gx, gy, gz = groups
        kernel, plan, lanes = program.entries[entry]
        null = self._null
        bound = [null if x is None else x.memory for x in plan.buffers(args)]
        values = plan.values(args)
        if values:
            bound.append(self._dpctl.RawKernelArg(values))
        if not gx * gy * gz:
            return
        # dpctl's ranges run from the slowest axis to the fastest
        sizes, local = (
            ([gx * lanes], [lanes]) if gy * gz == 1 else ([gz, gy, gx * lanes], [1, 1, lanes])
        )
        self._keep(self.queue.submit_async(kernel, bound, sizes, local), bound)

    def _keep(self, event: Any, used: Any) -> None:
        """Hold what a launch uses until it has run; dpctl does not."""
        pending = self._pending
        pending.append((event, used))
        if len(pending) >= _MAX_PENDING:
            done = self._dpctl.event_status_type.complete
            while pending and pending[0][0].execution_status == done:
                pending.popleft()
            if len(pending) >= _MAX_PENDING:
                pending[_MAX_PENDING // 2][0].wait()

    def synchronize(self) -> None:
        """Wait for the queue."""
        self.queue.wait()
        self._pending.clear()


def _usm(window: _Window) -> Any:
    from dpctl.memory import as_usm_memory

    return as_usm_memory(window)


def _check_range(size: int, offset: int, nbytes: int) -> None:
    if offset < 0 or nbytes < 0 or offset + nbytes > size:
        got = f"bytes {offset} to {offset + nbytes}"
        raise ShapeError(message("buffer", "range", got=got, expected=f"within {size} bytes"))
