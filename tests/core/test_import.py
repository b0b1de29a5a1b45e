"""Importing kvcore is cheap: no vendor library, no probing, no warning."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

VENDORS = (
    "cupy", "numba", "llvmlite", "dpctl", "pyopencl", "Metal", "objc", "torch", "transformers",
    "gguf", "tokenizers", "safetensors", "ml_dtypes", "typer", "rich",
)  # fmt: skip

SCRIPT = """
import json, sys, time
import numpy
before = set(sys.modules)
start, cpu = time.perf_counter(), time.process_time()
import kvcore
took, busy = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps({"took": took, "busy": busy, "new": sorted(set(sys.modules) - before)}))
"""


def run(*flags: str) -> dict:
    done = subprocess.run(
        [sys.executable, *flags, "-c", SCRIPT], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_importing_kvcore_loads_no_vendor_library_and_no_backend(capsys):
    runs = [run("-W", "error") for _ in range(5)]
    for new in (r["new"] for r in runs):
        roots = {name.split(".")[0] for name in new}
        assert roots.isdisjoint(VENDORS)
        assert not [name for name in new if name.startswith("kvcore.backends")]
    took, busy = (statistics.median(r[key] for r in runs) * 1e3 for key in ("took", "busy"))
    with capsys.disabled():
        print(f"\nimport kvcore after NumPy: {took:.1f} ms, {busy:.1f} ms of CPU (aim: under 50)")


def test_every_public_name_resolves():
    import kvcore

    for name in kvcore.__all__:
        assert getattr(kvcore, name) is not None
    assert set(kvcore._LAZY) <= set(kvcore.__all__)


def test_an_unknown_name_is_an_attribute_error():
    import kvcore

    assert not hasattr(kvcore, "no_such_name")


def test_linking_every_backend_of_the_tree_touches_no_driver():
    script = """
import sys
from kvcore import dispatch
for name in dispatch.IN_TREE:
    dispatch.backend_class(name)
print(*sorted({m.split(".")[0] for m in sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint(set(VENDORS) - {"typer", "rich"})
