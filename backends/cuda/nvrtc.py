"""NVRTC through ctypes: CUDA C to a cubin, without a driver, a toolkit or a header."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import os
from functools import cache
from pathlib import Path
from typing import Any

from kvcore.compiler.build import build_error
from kvcore.compiler.render import Source
from kvcore.errors import BackendUnavailable

_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")


class Nvrtc:
    """One NVRTC library.

    Parameters
    ----------
    path : str
        What :func:`find_nvrtc` found.

    Raises
    ------
    BackendUnavailable
        The library cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise BackendUnavailable(f"[nvrtc] {path} cannot be loaded: {error}") from error
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.path = path
        self.version = (major.value, minor.value)

    def architectures(self) -> tuple[int, ...]:
        """Return the compute capabilities it compiles for, as 75, 80, ..."""
        n = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(n)))
        found = (ctypes.c_int * n.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return tuple(found)

    def compile(self, source: Source, architecture: str) -> bytes:
        """Return the cubin of a source for ``sm_90`` and the like.

        Raises
        ------
        BuildError
            With NVRTC's log.
        """
        lib = self._library
        program = ctypes.c_void_p()
        text, name = source.text.encode(), source.label.encode()
        self._check(lib.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None))
        try:
            flags = [f"--gpu-architecture={architecture}", *source.target.flags]
            options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            if lib.nvrtcCompileProgram(program, len(flags), options):
                log = self._read(program, "ProgramLog").decode(errors="replace")
                compiler = f"NVRTC {self.version[0]}.{self.version[1]} for {architecture}"
                raise build_error(source, compiler, log)
            return self._read(program, "CUBIN")
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _check(self, code: int) -> None:
        if code:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            text = self._library.nvrtcGetErrorString(code).decode()
            raise BackendUnavailable(f"[nvrtc] {text} (code {code})")


@cache
def load_nvrtc(max_major: int | None = None) -> Nvrtc:
    """Return the newest NVRTC that a driver of CUDA ``max_major`` can serve.

    Raises
    ------
    BackendUnavailable
        None was found; the message lists what was tried.
    """
    tried: list[str] = []
    best: Nvrtc | None = None
    for path in find_nvrtc():
        try:
            found = Nvrtc(path)
        except BackendUnavailable as error:
            tried.append(str(error))
            continue
        if max_major is not None and found.version[0] > max_major:
            tried.append(f"{path} is CUDA {found.version[0]}, the driver only {max_major}")
        elif best is None or found.version > best.version:
            best = found
    if best is None:
        what = "; ".join(tried) or "no library found"
        raise BackendUnavailable(f"[nvrtc] {what}; pip install nvidia-cuda-nvrtc")
    return best


def find_nvrtc() -> list[str]:
    """Return candidate libraries: pip packages, ``CUDA_PATH``, the system's loader."""
    names: list[str] = []
    for package in _PACKAGES:
        names += [str(path) for path in _package_files(package) if _is_nvrtc(path)]
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if root := os.environ.get(variable):
            for folder in ("lib64", "lib", "bin"):
                names += [
                    str(p) for p in sorted(Path(root, folder).glob("*nvrtc*")) if _is_nvrtc(p)
                ]
    for place in (Path("/usr/local/cuda/lib64"), Path("/usr/local/cuda/targets")):
        names += [str(path) for path in sorted(place.glob("**/libnvrtc.so.*")) if _is_nvrtc(path)]
    if system := ctypes.util.find_library("nvrtc"):
        names.append(system)
    return list(dict.fromkeys(names))


def _package_files(package: str) -> list[Path]:
    try:
        files: list[Any] = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if "nvrtc" in file.name]


def _is_nvrtc(path: Path) -> bool:
    name = path.name
    library = name.startswith("libnvrtc.so") or (name.startswith("nvrtc64") and "dll" in name)
    return library and "builtins" not in name and path.is_file()
