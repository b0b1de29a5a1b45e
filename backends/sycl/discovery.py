"""Find OpenCL and SYCL devices with no environment variable set by the user.

The CPU runtime of the PyPI package ``intel-opencl-rt`` registers itself nowhere a loader looks, so
it is announced here, before the first device query of the process. A variable that the user set is
never overridden. Devices are listed GPUs first, and each refused one says why.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvcore.compiler.device import Found

_ICD_FOLDER = Path("/etc/OpenCL/vendors")
_LIBRARIES = frozenset({"libintelocl.so", "intelocl64.dll"})
_KIND_ORDER = {"gpu": 0, "cpu": 1}


def find_intel_runtime() -> Path | None:
    """Return the library of ``intel-opencl-rt``, wherever pip put it, or None."""
    try:
        files = importlib.metadata.files("intel-opencl-rt") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in _LIBRARIES:
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    path = Path(sys.prefix, "lib", "libintelocl.so")
    return path.resolve() if path.is_file() else None


def announce_intel_runtime() -> Path | None:
    """Tell both OpenCL loaders where the pip-installed CPU runtime is; return its library.

    dpctl's loader reads ``OCL_ICD_FILENAMES`` and adds to what the system has. The loader inside
    pyopencl's wheel reads ``OCL_ICD_VENDORS``, which replaces the system's folder, so it is given
    a folder that holds copies of the system's entries and ours.
    """
    library = find_intel_runtime()
    if library is None or not sys.platform.startswith("linux"):
        return library
    names = [name for name in os.environ.get("OCL_ICD_FILENAMES", "").split(":") if name]
    if str(library) not in names:
        os.environ["OCL_ICD_FILENAMES"] = ":".join([*names, str(library)])
    if "OCL_ICD_VENDORS" not in os.environ:
        system = {p.name: p.read_text() for p in sorted(_ICD_FOLDER.glob("*.icd"))}
        if not any(library.name in text for text in system.values()):
            os.environ["OCL_ICD_VENDORS"] = str(_merged_folder(library, system))
    return library


def _merged_folder(library: Path, system: dict[str, str]) -> Path:
    """Write, once per content, a folder of .icd files private to this user."""
    entries = {**system, "kvcore-intel-cpu.icd": f"{library}\n"}
    tag = hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"kvcore-icd-{os.getuid()}-{tag}"
    if folder.is_dir() and folder.stat().st_uid == os.getuid():
        return folder
    fresh = Path(tempfile.mkdtemp(prefix="kvcore-icd-"))
    for name, text in entries.items():
        (fresh / name).write_text(text.strip() + "\n")
    try:
        fresh.rename(folder)
    except OSError:  # another process was first, or the name belongs to another user
        return folder if folder.is_dir() and folder.stat().st_uid == os.getuid() else fresh
    return folder


def dpctl_devices() -> list[Found]:
    """Return every device that dpctl sees, usable ones first, GPUs before CPUs."""
    announce_intel_runtime()
    try:
        import dpctl
    except ImportError as error:
        reason = f"{error}; pip install 'kvcore[sycl]'"
        return [Found(runtime="dpctl", name="not installed", reason=reason)]
    found = [_judge_dpctl(device) for device in dpctl.get_devices()]
    if not found:
        reason = "no SYCL device; pip install intel-opencl-rt gives the CPU one on x86-64"
        return [Found(runtime="dpctl", name="no device", reason=reason, version=dpctl.__version__)]
    return _ordered(found)


def _judge_dpctl(device: Any) -> Found:
    kind = "gpu" if device.is_gpu else "cpu" if device.is_cpu else "other"
    backend = str(device.backend).rpartition(".")[2]
    reason = ""
    if kind == "other":
        reason = "neither a GPU nor a CPU"
    elif backend != "opencl":
        # Level Zero takes SPIR-V only; the same GPU is listed once more through OpenCL.
        reason = f"the {backend} backend takes no OpenCL C; the opencl backend of this device does"
    elif not (device.has_aspect_usm_shared_allocations or device.has_aspect_usm_device_allocations):
        reason = "no unified shared memory, which dpctl's queues need; the opencl runtime works"
    return Found(
        runtime="dpctl",
        name=device.name.strip(),
        kind=kind,
        reason=reason,
        version=f"{backend} {device.driver_version}",
        handle=device,
    )


def opencl_devices() -> list[Found]:
    """Return every device that pyopencl sees, usable ones first, GPUs before CPUs."""
    announce_intel_runtime()
    try:
        import pyopencl
    except ImportError as error:
        reason = f"{error}; pip install 'kvcore[opencl]'"
        return [Found(runtime="opencl", name="not installed", reason=reason)]
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.LogicError as error:
        return [Found(runtime="opencl", name="no platform", reason=str(error))]
    found = [_judge_opencl(pyopencl, device) for p in platforms for device in p.get_devices()]
    if not found:
        return [Found(runtime="opencl", name="no device", reason="no platform lists a device")]
    return _ordered(found)


def _judge_opencl(cl: Any, device: Any) -> Found:
    types = cl.device_type
    kind = "gpu" if device.type & types.GPU else "cpu" if device.type & types.CPU else "other"
    reason = ""
    if kind == "other":
        reason = "neither a GPU nor a CPU"
    elif not (device.available and device.compiler_available):
        reason = "the driver says that the device or its compiler is not available"
    elif not device.endian_little:
        reason = "big-endian"
    elif not device.single_fp_config & cl.device_fp_config.ROUND_TO_NEAREST:
        reason = "no round-to-nearest in f32"
    return Found(
        runtime="opencl",
        name=f"{device.name.strip()} [{device.platform.name.strip()}]",
        kind=kind,
        reason=reason,
        version=f"{device.version.strip()}, driver {device.driver_version.strip()}",
        handle=device,
    )


def _ordered(found: list[Found]) -> list[Found]:
    return sorted(found, key=lambda x: (not x.usable, _KIND_ORDER.get(x.kind, 2)))
