"""Tiny models, written once a run."""

from __future__ import annotations

import pytest
import tiny_gguf
from tiny_gguf import Tiny


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    """Path of a tiny model of the given kind; each kind is written once."""
    folder = tmp_path_factory.mktemp("tiny")
    made = {}

    def make(**knobs):
        key = repr(sorted(knobs.items()))
        if key not in made:
            made[key] = tiny_gguf.write(folder / f"{len(made)}.gguf", Tiny(**knobs))
        return made[key]

    return make
