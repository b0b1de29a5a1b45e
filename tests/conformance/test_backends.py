"""One body: every op x format x backend that is available here, against the reference.

The quick part of the kit by default; all of it with KVCORE_CHECK=full.
"""

from __future__ import annotations

import os

import pytest

import kvcore
from kvcore import dispatch, ops
from kvcore.backend import Backend

FULL = os.environ.get("KVCORE_CHECK") == "full"


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
    report = kvcore.check(opened, ops=[op], quick=not FULL)
    assert report.ok, str(report)
    assert {o.op for o in report.outcomes} == {op}
    if ops.declared()[op].per_codec:
        assert {o.format for o in report.outcomes} >= set(kvcore.formats())
