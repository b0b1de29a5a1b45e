"""A fault in an op's body is reported as kvcore/ops/<op>.c:<line>, by every compiler."""

from __future__ import annotations

import dataclasses

import pytest

import kvcore
from kvcore.compiler.body import read_body
from kvcore.compiler.emit import recipe_of
from kvcore.compiler.render import Source, render
from kvcore.compiler.target import get_target
from kvcore.errors import BuildError
from kvcore.portable.backend import PortableBackend


def broken(op: str, where: str, target: str) -> tuple[Source, int]:
    """Return an op's source with an undeclared name in its body or a header, and that line."""
    spec = kvcore.CacheSpec(format="k4v2c", n_kv_heads=1, head_dim=64)
    recipe = recipe_of(op, spec, 4)
    body = read_body(recipe.path)
    headers = dict(body.headers)
    text = body.text if where.endswith(".c") else headers[where][1]
    lines = text.splitlines()
    at = max(i for i, line in enumerate(lines) if line == "}")
    lines[at] = "    not_declared_anywhere = 1;\n}"
    if where.endswith(".c"):
        body = dataclasses.replace(body, text="\n".join(lines))
    else:
        headers[where] = (headers[where][0], "\n".join(lines))
        body = dataclasses.replace(body, headers=headers)
    made = render(recipe.kernels, recipe.constants, recipe.tables, body, get_target(target))
    return made, at + 1


@pytest.mark.parametrize(
    ("op", "where"), [("append", "rows.h"), ("gather", "gather.c"), ("select", "select.c")]
)
def test_the_log_names_file_and_line(be: PortableBackend, op: str, where: str) -> None:
    source, line = broken(op, where, be.target)
    with pytest.raises(BuildError) as caught:
        be.engine.device.build(source)
    assert f"kvcore/ops/{where}:{line}:" in caught.value.log.replace(" ", "")
    assert "not_declared_anywhere" in caught.value.log
    assert f"kvcore/ops/{op}.c" in str(caught.value)
