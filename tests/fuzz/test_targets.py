"""Hostile files: the corpus, and seeded mutations of it, through the fuzz targets."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import CORPUS, TARGETS, reseal, snapshot_target

FILES = sorted(p for p in CORPUS.rglob("*") if p.is_file())
EXAMPLES = 3000 if os.environ.get("KVCORE_FUZZ") == "long" else 150
WORDS = (b"0", b"1", b"-1", b"99999999999", b"[", b'"', b"\\u0000", b"2147483647", b"null", b"1e9")


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_the_corpus_loads(path: Path) -> None:
    assert TARGETS[path.parent.name](path.read_bytes())


def test_a_resealed_file_is_the_file() -> None:
    for path in FILES:
        if path.parent.name == "snapshot":
            data = path.read_bytes()
            assert reseal(data) == data
            assert snapshot_target(data)


@st.composite
def _mutated(draw: st.DrawFn, kind: str) -> bytes:
    """A sound file with bytes flipped, words put into its header, parts cut or repeated."""
    paths = [p for p in FILES if p.parent.name == kind]
    data = bytearray(draw(st.sampled_from(paths)).read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(draw(st.integers(1, 4))):
        end = draw(st.sampled_from((header, len(data))))
        at = draw(st.integers(0, max(min(end, len(data)) - 1, 0)))
        what = draw(st.integers(0, 4))
        if what == 0 and data:
            data[at] ^= draw(st.integers(1, 255))
        elif what == 1:
            word = draw(st.sampled_from(WORDS))
            data[at : at + len(word)] = word
        elif what == 2:
            _replace_number(data, at, draw(st.sampled_from(WORDS)))
        elif what == 3:
            del data[at : at + draw(st.integers(1, 64))]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
    return bytes(data)


def _replace_number(data: bytearray, at: int, word: bytes) -> None:
    """Put a word in the place of the next number of the header, and keep its length true."""
    end = 8 + int.from_bytes(data[:8], "little")
    first = next((i for i in range(at, min(end, len(data))) if data[i : i + 1].isdigit()), None)
    if first is None or at < 8:
        return
    last = first
    while last < min(end, len(data)) and data[last : last + 1].isdigit():
        last += 1
    data[first:last] = word
    size = end - 8 + len(word) - (last - first)
    data[:8] = size.to_bytes(8, "little")


@pytest.mark.parametrize("kind", TARGETS)
def test_mutated_files_are_refused_or_sound(kind: str) -> None:
    taken = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
    @given(data=_mutated(kind))
    def run(data: bytes) -> None:
        nonlocal taken
        taken += TARGETS[kind](data)

    run()
    assert taken > 0 or kind == "dump"


@pytest.mark.parametrize("kind", TARGETS)
def test_noise_is_refused(kind: str) -> None:
    rng = np.random.default_rng(1)
    for n in (0, 1, 7, 8, 9, 64, 1000):
        data = rng.integers(0, 256, n, dtype=np.uint8).tobytes()
        assert not TARGETS[kind](data)
        assert not TARGETS[kind]((n // 2).to_bytes(8, "little") + data)
