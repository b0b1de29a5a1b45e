"""A stand-in for PyObjC's ``Metal``: the calls kvcore's device makes, with Metal's limits.

Install it with ``sys.modules["Metal"] = fake_metal``; MSL text then runs on Intel's CPU runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.shims.intel import EXACT, FAST, garbage, intel_runtime
from tests.shims.msl import SIMD_WIDTH, Entry, translate

MTLResourceStorageModeShared = 0
MTLMathModeSafe = 0
MTLMathModeFast = 2
_MAX_THREADS = 1024
_MAX_THREADGROUP_BYTES = 32768
_MAX_SET_BYTES = 4096
_COMPLETED = 4

Size = tuple[int, int, int]


def MTLSizeMake(width: int, height: int, depth: int) -> Size:
    return (width, height, depth)


class NSError:
    def __init__(self, text: str) -> None:
        self._text = text

    def localizedDescription(self) -> str:
        return self._text


class MTLCompileOptions:
    def __init__(self) -> None:
        self.safe = False  # Metal's own default is fast math

    @classmethod
    def new(cls) -> MTLCompileOptions:
        return cls()

    def setMathMode_(self, mode: int) -> None:
        self.safe = mode == MTLMathModeSafe

    def setFastMathEnabled_(self, fast: bool) -> None:
        self.safe = not fast


class _Contents:
    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self._data = data

    def as_buffer(self, nbytes: int) -> memoryview:
        return memoryview(self._data)[:nbytes]


class Buffer:
    def __init__(self, nbytes: int) -> None:
        self.data = garbage(nbytes)

    def contents(self) -> _Contents:
        return _Contents(self.data)

    def length(self) -> int:
        return int(self.data.nbytes)


class Function:
    def __init__(self, library: Library, name: str) -> None:
        self.library, self.name = library, name


class Library:
    def __init__(self, program: Any, entries: dict[str, Entry]) -> None:
        self.program, self.entries = program, entries

    def functionNames(self) -> list[str]:
        return list(self.entries)

    def newFunctionWithName_(self, name: str) -> Function | None:
        return Function(self, name) if name in self.entries else None


class Pipeline:
    def __init__(self, function: Function) -> None:
        runtime = intel_runtime()
        assert runtime is not None
        cl = runtime.cl
        self.entry = function.library.entries[function.name]
        self.kernel = cl.Kernel(function.library.program, function.name)
        info = cl.kernel_work_group_info.LOCAL_MEM_SIZE
        self.static_bytes = self.kernel.get_work_group_info(info, runtime.device)

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return min(_MAX_THREADS, self.entry.max_threads)

    def threadExecutionWidth(self) -> int:
        return SIMD_WIDTH


class Encoder:
    def __init__(self, commands: CommandBuffer) -> None:
        self._commands = commands
        self._buffers: dict[int, tuple[Buffer, int]] = {}
        self._local: dict[int, int] = {}
        self._pipeline: Pipeline | None = None
        self.ended = False

    def setComputePipelineState_(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        if not 0 <= index < 31:
            raise ValueError(f"buffer index {index} is not below 31")
        if not 0 <= offset <= buffer.length():
            raise ValueError(f"offset {offset} beyond the buffer's {buffer.length()} bytes")
        self._buffers[index] = (buffer, offset)

    def setBytes_length_atIndex_(self, data: bytes, nbytes: int, index: int) -> None:
        if not 0 < nbytes <= _MAX_SET_BYTES:
            raise ValueError(f"setBytes of {nbytes} bytes")
        buffer = Buffer(nbytes)
        buffer.data[:] = np.frombuffer(data, np.uint8, nbytes)
        self._buffers[index] = (buffer, 0)

    def setThreadgroupMemoryLength_atIndex_(self, nbytes: int, index: int) -> None:
        if nbytes % 16:
            raise ValueError(f"threadgroup memory of {nbytes} bytes is no multiple of 16")
        self._local[index] = nbytes

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: Size, threads: Size) -> None:
        pipeline = self._pipeline
        if pipeline is None:
            raise ValueError("dispatch without a pipeline")
        n = threads[0] * threads[1] * threads[2]
        if not 0 < n <= pipeline.maxTotalThreadsPerThreadgroup():
            raise ValueError(f"{n} threads in a threadgroup")
        if min(groups) < 1:
            raise ValueError(f"empty grid {groups}")
        total = sum(self._local.values()) + pipeline.static_bytes
        if total > _MAX_THREADGROUP_BYTES:
            raise ValueError(f"{total} bytes of threadgroup memory")
        self._commands.add(pipeline, self._bound(pipeline), groups, threads)

    def _bound(self, pipeline: Pipeline) -> list[Any]:
        runtime = intel_runtime()
        assert runtime is not None
        args: list[Any] = []
        for kind, index in pipeline.entry.bindings:
            if kind == "threadgroup":
                args.append(runtime.cl.LocalMemory(self._local[index]))
                continue
            if index not in self._buffers:
                raise ValueError(f"nothing is bound at buffer index {index}")
            buffer, offset = self._buffers[index]
            args.append(runtime.cl.SVM(buffer.data[offset:]))
        return args

    def endEncoding(self) -> None:
        self.ended = True


class CommandBuffer:
    def __init__(self) -> None:
        self._work: list[tuple[Pipeline, list[Any], Size, Size]] = []
        self._encoder: Encoder | None = None
        self._status = 0

    def computeCommandEncoder(self) -> Encoder:
        self._encoder = Encoder(self)
        return self._encoder

    def add(self, pipeline: Pipeline, args: list[Any], groups: Size, threads: Size) -> None:
        self._work.append((pipeline, args, groups, threads))

    def commit(self) -> None:
        if self._encoder is not None and not self._encoder.ended:
            raise ValueError("commit before endEncoding")
        runtime = intel_runtime()
        assert runtime is not None
        for pipeline, args, groups, threads in self._work:
            for index, arg in enumerate(args):
                pipeline.kernel.set_arg(index, arg)
            sizes = [g * t for g, t in zip(groups, threads, strict=True)]
            runtime.cl.enqueue_nd_range_kernel(runtime.queue, pipeline.kernel, sizes, threads)
        self._status = 2

    def waitUntilCompleted(self) -> None:
        if self._status < 2:
            raise ValueError("wait before commit")
        runtime = intel_runtime()
        assert runtime is not None
        runtime.queue.finish()
        self._status = _COMPLETED

    def status(self) -> int:
        return self._status

    def error(self) -> None:
        return None


class CommandQueue:
    def commandBuffer(self) -> CommandBuffer:
        return CommandBuffer()


class Device:
    def name(self) -> str:
        return "MSL text on Intel's CPU runtime"

    def newCommandQueue(self) -> CommandQueue:
        return CommandQueue()

    def newBufferWithLength_options_(self, nbytes: int, _options: int) -> Buffer:
        return Buffer(nbytes)

    def newLibraryWithSource_options_error_(
        self, text: str, options: MTLCompileOptions, _error: None
    ) -> tuple[Library | None, NSError | None]:
        runtime = intel_runtime()
        assert runtime is not None
        flags = [*EXACT] if options.safe else [FAST, "-DSHIM_CONTRACT"]
        try:
            translated, entries = translate(text)
            return Library(runtime.build(translated, *flags), entries), None
        except (SyntaxError, runtime.cl.RuntimeError) as error:
            return None, NSError(str(error))

    def newComputePipelineStateWithFunction_error_(
        self, function: Function, _error: None
    ) -> tuple[Pipeline, None]:
        return Pipeline(function), None


def MTLCreateSystemDefaultDevice() -> Device | None:
    return Device() if intel_runtime() is not None else None
