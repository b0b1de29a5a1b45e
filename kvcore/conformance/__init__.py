"""The conformance kit behind :func:`kvcore.check`: one body, every op, codec and backend.

Cases are enumerated from the formats and ops that are known when it runs; each has its own seeded
random numbers, runs on the reference and on the backend, and yields what differs.
"""

from __future__ import annotations

from kvcore.conformance.kit import check
from kvcore.conformance.report import Outcome, Report, Status

__all__ = ["Outcome", "Report", "Status", "check"]
