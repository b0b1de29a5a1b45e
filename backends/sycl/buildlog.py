"""The OpenCL compiler's log of a failed build, which dpctl's own exception leaves out.

The text is built once more through the OpenCL API of the loader that dpctl already uses.
"""

from __future__ import annotations

import ctypes
from typing import Any

_DEVICE_TYPE_ALL = 0xFFFFFFFF
_DEVICE_NAME = 0x102B
_DRIVER_VERSION = 0x102D
_BUILD_LOG = 0x1183
_Handle = ctypes.c_void_p


def build_log(device_name: str, driver: str, text: str, flags: str) -> str:
    """Return what the compiler of a device writes about a text; why not, if it cannot be had."""
    try:
        cl = ctypes.CDLL("libOpenCL.so.1")
    except OSError as error:
        return f"(no log: the OpenCL loader cannot be opened: {error})"
    device = _find(cl, device_name, driver)
    if device is None:
        return f"(no log: {device_name} is not visible to the OpenCL loader)"
    code = ctypes.c_int(0)
    cl.clCreateContext.restype = cl.clCreateProgramWithSource.restype = _Handle
    devices = (_Handle * 1)(device)
    context = _Handle(cl.clCreateContext(None, 1, devices, None, None, ctypes.byref(code)))
    if code.value:
        return f"(no log: clCreateContext returned {code.value})"
    lines = (ctypes.c_char_p * 1)(text.encode())
    program = _Handle(cl.clCreateProgramWithSource(context, 1, lines, None, ctypes.byref(code)))
    try:
        cl.clBuildProgram(program, 1, devices, flags.encode(), None, None)
        return _text(cl.clGetProgramBuildInfo, program, _Handle(device), _BUILD_LOG)
    finally:
        cl.clReleaseProgram(program)
        cl.clReleaseContext(context)


def _find(cl: Any, name: str, driver: str) -> int | None:
    """Return the cl_device_id with this name and driver version."""
    n_platforms = ctypes.c_uint(0)
    cl.clGetPlatformIDs(0, None, ctypes.byref(n_platforms))
    platforms = (_Handle * n_platforms.value)()
    cl.clGetPlatformIDs(n_platforms.value, platforms, None)
    for platform in platforms:
        n = ctypes.c_uint(0)
        kinds = ctypes.c_ulong(_DEVICE_TYPE_ALL)
        if cl.clGetDeviceIDs(_Handle(platform), kinds, 0, None, ctypes.byref(n)):
            continue
        devices = (_Handle * n.value)()
        cl.clGetDeviceIDs(_Handle(platform), kinds, n.value, devices, None)
        for device in devices:
            if (
                _text(cl.clGetDeviceInfo, _Handle(device), _DEVICE_NAME).strip() == name
                and _text(cl.clGetDeviceInfo, _Handle(device), _DRIVER_VERSION) == driver
            ):
                return int(device or 0)
    return None


def _text(query: Any, *args: Any) -> str:
    size = ctypes.c_size_t(0)
    query(*args, ctypes.c_size_t(0), None, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value or 1)
    query(*args, ctypes.c_size_t(size.value), buffer, None)
    return buffer.value.decode(errors="replace")
