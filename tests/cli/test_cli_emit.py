"""kvcore emit prints what is compiled: the body verbatim, the entries, for every op and target."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvcore
from kvcore.compiler.target import target_names
from kvcore.ops import declared

OPS = Path(kvcore.__file__).parent / "ops"


@pytest.mark.parametrize("target", target_names())
@pytest.mark.parametrize("op", sorted(declared()))
def test_the_body_is_in_the_source_of_every_target(kvcore_command, op, target):
    ran = kvcore_command("emit", "--op", op, "--target", target, "--json")
    assert ran.code == 0
    said = ran.json()
    body = (OPS / f"{op}.c").read_text(encoding="utf-8")
    kept = [line for line in body.splitlines() if not line.startswith("#include")]
    assert all(line in said["text"] for line in kept)
    assert all(entry in said["text"] for entry in said["entries"])
    assert f"kvcore/ops/{op}.c" in said["text"]
    assert kvcore_command("emit", "--op", op, "--target", target).out == said["text"]


def test_formats_change_the_source_and_the_same_call_does_not(kvcore_command):
    def key(name):
        ran = kvcore_command("emit", "--op", "append", "-f", name, "-t", "cuda", "--json")
        return ran.json()["sha256"]

    names = ("q2k", "q4_0", "int8", "f16")
    assert len({key(name) for name in names}) == len(names)
    assert key("q2k") == key("q2k")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--op", "nosuch"), "unknown op"),
        (("--op", "append", "--target", "vulkan"), "unknown target"),
        (("--op", "attention", "--q-heads", 3), "query heads"),
        (("--op", "append", "--head-dim", 80), "next D that works"),
        ((), "--op"),
    ],
)
def test_a_wrong_call_is_refused(kvcore_command, arguments, words):
    ran = kvcore_command("emit", *arguments)
    assert ran.code == 2
    assert words in ran.err
