"""What every test folder shares: Hypothesis profiles and the reference backend."""

from __future__ import annotations

import os

import hypothesis
import pytest

from kvcore.reference import Reference

hypothesis.settings.register_profile("short", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


@pytest.fixture
def reference() -> Reference:
    return Reference()
