"""One body: every op x format x backend that is available here, against the reference.

The quick part of the kit by default; all of it with KVCORE_CHECK=full.
"""

from __future__ import annotations

import os

import pytest

import kvcore
from kvcore import codecs, dispatch, ops
from kvcore.backend import Backend

FULL = os.environ.get("KVCORE_CHECK") == "full"

# Kernels of the sycl backend are those of opencl, character by character, but each takes longer to
# build: by default it runs the formats that use every codec once in each store where we use it.
COVER = {
    "sycl": (
        "k8v32", "k32v8", "f16", "bf16", "q8_0", "k8v4", "k4v4", "k4v2c", "k2cv2t", "k2cv1c",
        "k2cv1t",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest) -> Backend:
    """Open a backend, or skip with the reason it gives."""
    found = dispatch.probe(request.param)
    if not found.available:
        pytest.skip(f"{request.param}: {found.reason}")
    return kvcore.get_backend(request.param)


@pytest.mark.parametrize("opened", dispatch.IN_TREE, indirect=True)
@pytest.mark.parametrize("op", ops.declared())
def test_backend_does_as_the_reference(opened, op):
    formats = None if FULL else COVER.get(opened.name)
    report = kvcore.check(opened, ops=[op], formats=formats, quick=not FULL)
    assert report.ok, str(report)
    assert {o.op for o in report.outcomes} == {op}
    if ops.declared()[op].per_codec:
        assert {o.format for o in report.outcomes} >= set(formats or kvcore.formats())
        assert {c for o in report.outcomes for c in o.codecs} == set(codecs.all_codecs())
