"""The conformance kit behind :func:`kvcore.check`: one body, every op, codec and backend.

Cases are enumerated from the formats and ops that are known when it runs; each has its own seeded
random numbers, runs on the reference and on the backend, and yields what differs. An op added at
run time brings its cases with :func:`add_cases`; a declared op that no case tries is red.
"""

from __future__ import annotations

from kvcore.conformance.case import Case
from kvcore.conformance.kit import add_cases, check, remove_cases
from kvcore.conformance.report import Outcome, Report, Status
from kvcore.conformance.twin import Bench

__all__ = [
    "Bench",
    "Case",
    "Outcome",
    "Report",
    "Status",
    "add_cases",
    "check",
    "remove_cases",
]
