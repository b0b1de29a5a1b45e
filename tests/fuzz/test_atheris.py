"""Coverage-guided fuzzing of the file readers: seconds in CI, minutes in the long profile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

SECONDS = 600 if os.environ.get("KVCORE_FUZZ") == "long" else 8


@pytest.mark.parametrize("kind", TARGETS)
def test_coverage_guided(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install 'kvcore[fuzz]'")
    command = [sys.executable, "-m", "tests.fuzz.fuzz_files", kind, "-seed=1", "-rss_limit_mb=2048"]
    command += [f"-max_total_time={SECONDS}", f"-artifact_prefix={tmp_path}/"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=SECONDS + 120, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done" in done.stderr
