"""The packages that pyproject.toml lists are the packages of the tree."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def in_tree(folder: str, name: str) -> set[str]:
    base = ROOT / folder
    return {
        ".".join([name, *init.parent.relative_to(base).parts]) for init in base.rglob("__init__.py")
    }


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is new in Python 3.11")
def test_listed_packages_equal_the_tree():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = project["packages"]
    assert project["package-dir"] == {"kvcore": "kvcore", "kvcore.backends": "backends"}
    assert len(listed) == len(set(listed))
    assert set(listed) == in_tree("kvcore", "kvcore") | in_tree("backends", "kvcore.backends")


def test_every_folder_with_python_files_is_a_package():
    for folder in ("kvcore", "backends"):
        for file in (ROOT / folder).rglob("*.py"):
            assert (file.parent / "__init__.py").is_file(), file
