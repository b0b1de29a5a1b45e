"""Stateful fuzzing: every available backend in lockstep with the reference and the model.

``KVCORE_FUZZ=long`` runs 500 sequences of 30 steps for each backend, a quarter for each kind of
cache; otherwise a short, seeded run. ``KVCORE_FUZZ_SEED`` changes the seed, which is printed.
"""

from __future__ import annotations

import os
import time

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

import kvcore
from tests.fuzz.machine import KINDS, machine

LONG = os.environ.get("KVCORE_FUZZ") == "long"
SEED = int(os.environ.get("KVCORE_FUZZ_SEED", "20261129"))


def _settings(sequences: int, steps: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=sequences,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def short_settings() -> hypothesis.settings:
    """Return the profile of CI for one kind: the planted faults are all found within it."""
    return _settings(8, 25)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [b.name for b in kvcore.backends()])
def test_state_machine(name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = next(b for b in kvcore.backends() if b.name == name)
    if not found.available:
        pytest.skip(f"{name}: {found.reason}")
    pair = ("reference",) if name == "reference" else ("reference", name)
    counted = machine(*pair, kind=kind)
    start, outcome = time.monotonic(), "a mismatch"
    try:
        settings = _settings(500 // len(KINDS), 30) if LONG else short_settings()
        run_state_machine_as_test(hypothesis.seed(SEED)(counted), settings=settings)
        outcome = "0 mismatches"
    finally:
        with capsys.disabled():
            print(
                f"\nfuzz {name}, {kind}: seed {SEED}, {counted.counts['sequences']} sequences, "
                f"{counted.counts['steps']} steps, {outcome}, {time.monotonic() - start:.0f} s"
            )
