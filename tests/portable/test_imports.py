"""Importing every backend touches no driver, says nothing and costs little."""

from __future__ import annotations

import json
import subprocess
import sys

VENDORS = (
    "cupy", "dpctl", "pyopencl", "Metal", "objc", "numba", "llvmlite", "torch", "ctypes.util",
)  # fmt: skip

SCRIPT = """
import json, sys, time, warnings
warnings.simplefilter("error")
import numpy
import kvcore, kvcore.backend, kvcore.dispatch, kvcore.ops, kvcore.registry
kvcore.ops.declared()
before = set(sys.modules)
start = time.perf_counter()
names = ["cuda", "metal", "sycl", "opencl", "cpu"]
for name in names:
    kvcore.dispatch.backend_class(name)
spent = time.perf_counter() - start
print(json.dumps({"ms": spent * 1000, "new": sorted(set(sys.modules) - before)}))
"""


def test_every_backend_links_without_a_driver_and_without_a_word(capsys) -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    said = json.loads(ran.stdout)
    with capsys.disabled():
        print(f" [{said['ms']:.0f} ms beyond numpy and kvcore] ", end="")
    assert ran.stderr == ""
    foreign = [m for m in said["new"] if m.split(".")[0] in VENDORS or m in VENDORS]
    assert foreign == []
    assert len([m for m in said["new"] if not m.startswith("kvcore.")]) < 40
