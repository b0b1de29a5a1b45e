"""CUDA C and MSL text executed on this machine's CPU, through Intel's OpenCL runtime.

The texts are parsed as C++ for OpenCL with real address spaces, and the drivers' Python code runs
against small stand-ins for CuPy and for PyObjC's Metal. Nothing here is NVIDIA's or Apple's
compiler: README.md says what that leaves unproved.
"""
