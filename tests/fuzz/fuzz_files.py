"""Coverage-guided fuzzing of the file readers with atheris.

``python -m tests.fuzz.fuzz_files snapshot -max_total_time=60``: the first argument is the target,
the rest are libFuzzer's. New inputs go to a temporary folder; the corpus in the repository seeds.
"""

from __future__ import annotations

import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["kvcore"]):
    from tests.fuzz.targets import CORPUS, TARGETS


def main() -> None:
    """Run one target until libFuzzer's limits."""
    kind = sys.argv[1]
    found = tempfile.mkdtemp(prefix=f"kvcore-{kind}-")
    arguments = [sys.argv[0], *sys.argv[2:], found, str(CORPUS / kind)]
    atheris.Setup(arguments, TARGETS[kind])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
