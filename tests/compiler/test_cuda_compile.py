"""NVRTC compiles every test body for every architecture we name, with no driver."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from kvcore.backends.cuda.nvrtc import Nvrtc, find_nvrtc, load_nvrtc

from kvcore.errors import BackendUnavailable, BuildError
from tests.compiler.declarations import source_of

ARCHITECTURES = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100")


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    try:
        return load_nvrtc()
    except BackendUnavailable as error:
        pytest.skip(str(error))


def cuobjdump() -> str | None:
    bundled = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/cuobjdump"))
    return str(bundled[0]) if bundled else shutil.which("cuobjdump")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["group_quantizer", "words"])
def test_entries_exist_and_nothing_spills(
    nvrtc: Nvrtc, architecture: str, name: str, tmp_path: Path
) -> None:
    if int(architecture[3:]) not in nvrtc.architectures() and architecture != "sm_89":
        pytest.skip(f"NVRTC {nvrtc.version} has no {architecture}")
    source = source_of(name, "cuda")
    cubin = nvrtc.compile(source, architecture)
    assert [s for s in source.entries if f".text.{s}".encode() not in cubin] == []
    tool = cuobjdump()
    if tool is None:
        pytest.skip("cuobjdump is not installed; the entries were found")
    path = tmp_path / "x.cubin"
    path.write_bytes(cubin)
    shown = subprocess.run(
        [tool, "--dump-resource-usage", str(path)], check=True, capture_output=True, text=True
    ).stdout
    usage = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)", shown)
    assert {u[0] for u in usage} == set(source.entries)
    assert {(stack, local) for _, _, stack, local in usage} == {("0", "0")}
    assert max(int(registers) for _, registers, _, _ in usage) <= 64


def test_an_error_reads_file_colon_line(nvrtc: Nvrtc) -> None:
    with pytest.raises(BuildError, match=r"tests/compiler/broken\.c:5: error: .*") as caught:
        nvrtc.compile(source_of("broken", "cuda"), "sm_90")
    assert "not_declared_anywhere" in caught.value.log


def test_an_nvrtc_newer_than_the_driver_is_passed_over(nvrtc: Nvrtc) -> None:
    with pytest.raises(BackendUnavailable, match="the driver only 1; pip install"):
        load_nvrtc(1)
    assert nvrtc.path in find_nvrtc()


def test_a_library_that_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"\[nvrtc\] .*cannot be loaded"):
        Nvrtc(str(tmp_path / "libnvrtc.so"))
