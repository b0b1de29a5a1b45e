"""Run the command in this process and keep what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kvcore.cli.app import run


@dataclass(frozen=True, kw_only=True)
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def kvcore_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        said = capsys.readouterr()
        return Ran(code=code, out=said.out, err=said.err)

    return call
