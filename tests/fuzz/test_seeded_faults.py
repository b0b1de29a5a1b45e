"""The state machine finds every planted fault within the short profile."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz.faults import FAULTS
from tests.fuzz.machine import KINDS, machine
from tests.fuzz.test_state_machine import SEED, short_settings

SETTINGS = hypothesis.settings(short_settings(), phases=[hypothesis.Phase.generate])


def _run(kind: str) -> None:
    found = hypothesis.seed(SEED)(machine("reference", kind=kind))
    run_state_machine_as_test(found, settings=SETTINGS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    complaints = []
    for kind in KINDS:
        try:
            _run(kind)
        except Exception as error:  # an assertion, an error of the library, or a group of both
            complaints.append(f"{kind}: {type(error).__name__}")
            break
    assert complaints, f"{fault} was not found"


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_fault_the_same_runs_pass(kind: str) -> None:
    _run(kind)
