"""kvcore works from a wheel, an editable install and a bare checkout, and imports nothing heavy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SHIPPED = ("kvcore", "backends", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
VENDORS = ("cupy", "dpctl", "pyopencl", "numba", "llvmlite", "Metal", "torch", "transformers")
EXTRAS = ("gguf", "tokenizers", "safetensors", "matplotlib", "typer", "rich")

LOOK = """
import json, sys, kvcore
be = kvcore.get_backend("reference")
spec = kvcore.CacheSpec(format="q2k", n_kv_heads=1, head_dim=32)
import numpy as np
cache = be.cache(spec, 64)
cache.append(np.ones((3, 1, 32), "f4"), np.ones((3, 1, 32), "f4"))
print(json.dumps({
    "file": kvcore.__file__,
    "backends": [b.name for b in kvcore.backends()],
    "out": cache.attend(np.ones((1, 1, 32), "f4")).shape,
}))
"""


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KVCORE_BACKEND")}


def call(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def empty_venv(folder: Path) -> Path:
    """Make a venv that sees this environment's dependencies but not its kvcore; return Python.

    The dependencies' folder comes in as a path, so that its own .pth files (an editable kvcore)
    are not followed.
    """
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    where = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(where.stdout.strip(), "dependencies.pth").write_text("\n".join(sorted(dependencies)))
    return python


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that building leaves nothing in the repository."""
    folder = tmp_path_factory.mktemp("checkout")
    junk = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SHIPPED:
        source = REPO / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=junk)
        else:
            shutil.copy(source, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    call(sys.executable, "-c", build, out, cwd=checkout)
    (found,) = out.glob("*.whl")
    return found


def install(python: Path, *what: object) -> None:
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    call(sys.executable, "-m", "pip", "--python", python, "install", *options, *what, cwd=REPO)


def check_looks(ran: subprocess.CompletedProcess[str], inside: Path) -> None:
    said = json.loads(ran.stdout)
    assert Path(said["file"]).resolve().is_relative_to(inside.resolve())
    assert said["out"] == [1, 1, 32]
    assert {"cpu", "sycl", "opencl", "cuda", "metal", "reference"} <= set(said["backends"])


def test_a_wheel_works_from_anywhere(wheel, tmp_path):
    python = empty_venv(tmp_path / "env")
    install(python, wheel)
    check_looks(call(python, "-c", LOOK, cwd=tmp_path), tmp_path / "env")
    command = python.with_name("kvcore.exe" if os.name == "nt" else "kvcore")
    formats = json.loads(call(command, "formats", "--json", cwd=tmp_path).stdout)
    assert "q2k" in [f["name"] for f in formats]
    for arguments in (
        ("emit", "--op", "append", "--target", "metal"),
        ("walk", "--on", "reference"),
        ("check", "--backend", "reference", "--op", "gather", "--quick"),
        ("plan", "--heads", "2", "--head-dim", "64"),
    ):
        assert call(command, *arguments, cwd=tmp_path).stdout


def test_an_editable_install_works(checkout, tmp_path):
    copy = tmp_path / "checkout"
    shutil.copytree(checkout, copy)
    python = empty_venv(tmp_path / "env")
    install(python, "--editable", copy)
    check_looks(call(python, "-c", LOOK, cwd=tmp_path), copy)


def test_a_bare_checkout_works(checkout, tmp_path):
    python = empty_venv(tmp_path / "env")
    check_looks(call(python, "-c", LOOK, cwd=checkout), checkout)
    assert "q2k" in call(python, "-m", "kvcore", "formats", cwd=checkout).stdout


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel, checkout):
    with zipfile.ZipFile(wheel) as archive:
        held = {n for n in archive.namelist() if ".dist-info/" not in n}
    files = [p for r in ("kvcore", "backends") for p in (checkout / r).rglob("*") if p.is_file()]
    names = [p.relative_to(checkout).as_posix() for p in files if "__pycache__" not in p.parts]
    assert held == {n if n.startswith("kvcore/") else f"kvcore/{n}" for n in names}
    assert {Path(n).suffix for n in held} >= {".py", ".c", ".h", ".typed"}


def toml(text: str) -> dict:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def test_pyproject_lists_every_package():
    listed = toml((REPO / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {
        ".".join(("kvcore." * (root == "backends") + str(p.parent.relative_to(REPO))).split(os.sep))
        for root in ("kvcore", "backends")
        for p in (REPO / root).rglob("__init__.py")
    }
    assert set(listed["packages"]) == folders
    assert len(listed["packages"]) == len(folders)


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    env = {**clean_environment(), "PYTHONPATH": str(REPO)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, cwd=REPO
    )
    return {name.partition(".")[0] for name in ran.stdout.split()}


def test_import_kvcore_loads_no_vendor_and_no_extra():
    assert loaded_by("import kvcore") & {*VENDORS, *EXTRAS} == set()


def test_the_link_check_of_every_backend_loads_no_vendor():
    statement = (
        "import kvcore.dispatch as d; [d.backend_class(n) for n in d.IN_TREE if n not in d.PLANNED]"
    )
    assert loaded_by(statement) & set(VENDORS) == set()


def test_the_repository_stands_alone():
    """No path of one machine in what is shipped."""
    bad = re.compile(r"/(?:root|home|Users)/\w|/work/")
    for root in ("kvcore", "backends", "docs", "tests"):
        for path in (REPO / root).rglob("*"):
            if path.suffix in {".py", ".c", ".h", ".md"} and path != Path(__file__):
                found = bad.search(path.read_text(encoding="utf-8"))
                assert not found, f"{path}: {found}"
