"""The conformance kit on the devices that ``tests/conformance`` cannot name: PoCL and stand-ins.

CUDA C and MSL run here as text on Intel's CPU runtime. PoCL builds slowly, so it gets the formats
whose codecs differ most unless KVCORE_CHECK=full.
"""

from __future__ import annotations

import os

import pytest

import kvcore
from tests.portable.conftest import open_backend

FULL = os.environ.get("KVCORE_CHECK") == "full"
POCL = ("int8", "k4v2c")
PLAIN = ("rotate", "ring_table", "resolve", "select")


@pytest.mark.parametrize("fmt", list(kvcore.formats()))
@pytest.mark.parametrize("name", ["cuda-text", "metal-text"])
def test_text_does_as_the_reference(name: str, fmt: str) -> None:
    report = kvcore.check(open_backend(name), formats=[fmt], quick=not FULL)
    assert report.ok, str(report)


@pytest.mark.parametrize("fmt", list(kvcore.formats()) if FULL else POCL)
def test_a_second_opencl_compiler_does_as_the_reference(fmt: str) -> None:
    be = open_backend("pocl")
    ops = ["append", "gather", "attention", "restore", "move"]
    report = kvcore.check(be, ops=ops, formats=[fmt], quick=not FULL)
    assert report.ok, str(report)


@pytest.mark.parametrize("op", PLAIN)
def test_ops_without_a_codec_do_as_the_reference_on_pocl(op: str) -> None:
    report = kvcore.check(open_backend("pocl"), ops=[op], quick=not FULL)
    assert report.ok, str(report)
