"""Devices appear with no variable set by the user, and nothing vendor is imported before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvcore.backends.sycl import discovery

ROOT = Path(__file__).parents[2]
VENDORS = ("cupy", "dpctl", "pyopencl", "Metal", "numba", "torch")


def run(code: str, **variables: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("OCL_ICD")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**clean, **variables},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_importing_targets_devices_and_the_compiler_imports_no_vendor() -> None:
    modules = [
        "kvcore.backends.cuda.device", "kvcore.backends.cuda.nvrtc", "kvcore.backends.metal.device",
        "kvcore.backends.sycl.dpctl_device", "kvcore.backends.sycl.opencl_device",
        "kvcore.compiler.render", "kvcore.compiler.build",
    ]  # fmt: skip
    code = f"import sys, {', '.join(modules)}; print([m for m in {VENDORS} if m in sys.modules])"
    assert run(code).strip() == "[]"


@pytest.mark.skipif(discovery.find_intel_runtime() is None, reason="no intel-opencl-rt")
@pytest.mark.parametrize("which", ["dpctl_devices", "opencl_devices"])
@pytest.mark.parametrize("first", ["dpctl", "pyopencl", "numpy"])
def test_the_pip_installed_cpu_runtime_is_found_with_no_variable_set(
    which: str, first: str
) -> None:
    pytest.importorskip(which.split("_", maxsplit=1)[0].replace("opencl", "pyopencl"))
    pytest.importorskip(first)
    code = (
        f"import {first}\nfrom kvcore.backends.sycl.discovery import {which}\n"
        f"print([f.version for f in {which}() if f.usable and f.kind == 'cpu'])"
    )
    assert run(code).strip() != "[]"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="loaders of Linux")
def test_variables_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libintelocl.so"
    monkeypatch.setattr(discovery, "find_intel_runtime", lambda: library)
    monkeypatch.setenv("OCL_ICD_VENDORS", "/theirs")
    monkeypatch.setenv("OCL_ICD_FILENAMES", "/their.so")
    for _ in range(2):
        discovery.announce_intel_runtime()
    assert os.environ["OCL_ICD_VENDORS"] == "/theirs"
    assert os.environ["OCL_ICD_FILENAMES"] == f"/their.so:{library}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="loaders of Linux")
def test_the_merged_folder_holds_the_systems_entries_and_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library, system = tmp_path / "libintelocl.so", tmp_path / "vendors"
    system.mkdir()
    (system / "gpu.icd").write_text("libgpu.so\n")
    monkeypatch.setattr(discovery, "find_intel_runtime", lambda: library)
    monkeypatch.setattr(discovery, "_ICD_FOLDER", system)
    monkeypatch.setattr(discovery.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    monkeypatch.delenv("OCL_ICD_FILENAMES", raising=False)
    discovery.announce_intel_runtime()
    folder = Path(os.environ["OCL_ICD_VENDORS"])
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        "gpu.icd": "libgpu.so\n",
        "kvcore-intel-cpu.icd": f"{library}\n",
    }
    monkeypatch.delenv("OCL_ICD_VENDORS")
    discovery.announce_intel_runtime()
    assert Path(os.environ["OCL_ICD_VENDORS"]) == folder
    (system / "intel.icd").write_text("/opt/intel/libintelocl.so\n")
    monkeypatch.delenv("OCL_ICD_VENDORS")
    discovery.announce_intel_runtime()
    assert "OCL_ICD_VENDORS" not in os.environ
