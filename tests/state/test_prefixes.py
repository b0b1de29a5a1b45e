"""Shared prefixes: whoever resumes gets what an undisturbed cache of these cells would hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.errors import OutOfPages, ShapeError
from kvcore.sequences import Sequences
from tests.state.world import cells, contents, cut, fed, joined, make_spec, same


@pytest.mark.parametrize(
    "fields", [{}, {"k_center": "auto", "center_cells": 64}], ids=["plain", "centred"]
)
@pytest.mark.parametrize("name", ["q4_0", "q2k"])
def test_prefix_sharing_by_key_chain(
    backend: Backend, name: str, fields: dict[str, object]
) -> None:
    spec = make_spec(name, window=16, sinks=2, **fields)
    batch = backend.sequences(spec, 256)
    prompt, more = cells(1, 128), cells(2, 21)
    first = batch.add()
    batch.append([first], *prompt)
    ends = batch.links(128).tolist()
    assert ends[0] >= max(spec.center_cells, spec.sinks)
    keys = [("prompt", e) for e in ends]
    assert batch.publish(first, keys) == ends[-1] == 128
    used = batch.n_pages - batch.free_pages
    found = batch.resume(keys)
    assert (found.cells, found.inexact) == (128, 0)
    assert batch.n_pages - batch.free_pages == used
    batch.append([found.seq], *more)
    assert same(batch[found.seq], fed(backend, spec, prompt, more)) == []
    assert same(batch[first], fed(backend, spec, prompt)) == []

    shorter = batch.resume([*keys[:-1], "another"])
    assert (shorter.cells, shorter.inexact) == (ends[-2], 16)
    for got, want in zip(batch[shorter.seq].read([0, 1]), batch[first].read([0, 1]), strict=True):
        np.testing.assert_array_equal(got, want)
    assert batch.resume(["unknown"]).cells == 0
    for seq in list(batch):
        batch.free(seq)
    batch.forget_prefixes()
    assert batch.free_pages == batch.n_pages


def test_published_prefixes_make_room_when_pages_run_out(backend: Backend) -> None:
    spec = make_spec("f16")
    batch = backend.sequences(spec, 20)
    first = batch.add()
    batch.append([first], *cells(1, 60))
    batch.publish(first, list(range(15)))
    batch.free(first)
    assert batch.free_pages == 5
    other = batch.add()
    batch.append([other], *cells(2, 60))
    assert batch.resume(list(range(15))).cells == 20  # the newest links went, the rest is whole
    with pytest.raises(OutOfPages):
        batch.append([other], *cells(2, 60))


def test_equal_units_are_shared_by_their_bytes(backend: Backend) -> None:
    spec = make_spec("q2k")
    batch = backend.sequences(spec, 256)
    seqs = [batch.add() for _ in range(3)]
    for seq in seqs:
        batch.append([seq], *cells(1, 100))
    assert batch.deduplicate() == 2 * 3 * 8
    batch.append(seqs[:1], *cells(2, 40))
    assert same(batch[seqs[0]], fed(backend, spec, cells(1, 100), cells(2, 40))) == []
    assert same(batch[seqs[1]], fed(backend, spec, cells(1, 100))) == []


CENTRED = {"k_center": "auto", "center_cells": 64, "window": 16, "sinks": 2}
SPECS = {
    "q4_0 centred": ("q4_0", CENTRED),
    "q2k centred": ("q2k", CENTRED),
    "q2k bare": ("q2k", {}),
    "q2k eager": ("q2k", {"grouping": "eager", "rule": "shrink"}),
    "q4_0 window": ("q4_0", {"window": 16, "sinks": 2}),
}
PROMPT, OTHER = cells(1, 260), cells(2, 260, size=3.0)


def _history(batch: Sequences, detours: tuple[int, ...]) -> int:
    """Return a sequence of the prompt's cells that went astray after some of them, and back."""
    seq, at = batch.add(), 0
    for cell in detours:
        batch.append([seq], *joined(cut(PROMPT, at, cell), cut(OTHER, 0, 90)))
        batch[seq].truncate(cell)
        at = cell
    batch.append([seq], *cut(PROMPT, at, 260))
    return seq


@pytest.mark.parametrize("kind", SPECS)
def test_disturbed_sequences_publish_nothing_that_differs(backend: Backend, kind: str) -> None:
    """Clean, disturbed early, in a group, twice: in every order, then everything is resumed."""
    name, fields = SPECS[kind]
    spec = make_spec(name, **fields)
    ways = ((), (20,), (107,), (20, 140), (96,))
    order = itertools.permutations(range(len(ways)), 2)
    for first, second in order:
        batch = backend.sequences(spec, 1024)
        keys = [("prompt", int(e)) for e in batch.links(260)]
        published = []
        for way in (first, second):
            seq = _history(batch, ways[way])
            published.append(batch.publish(seq, keys))
            if not ways[way]:
                assert published[-1] >= 256
            batch[seq].truncate(230)
            batch.publish(seq, keys)
        for n in range(1, len(keys) + 1):
            found = batch.resume(keys[:n])
            if not found.cells:
                continue
            fresh = fed(backend, spec, cut(PROMPT, 0, found.cells))
            assert _bulk(batch[found.seq]) == _bulk(fresh), (ways[first], ways[second], n)
            if not found.inexact:  # otherwise the window came from the bulk, as it says
                for got, want in zip(batch[found.seq].read(), fresh.read(), strict=True):
                    np.testing.assert_array_equal(got, want)
            if n < len(keys):
                batch.free(found.seq)
                continue
            batch.append([found.seq], *cut(PROMPT, found.cells, 260))
            assert _bulk(batch[found.seq]) == _bulk(fed(backend, spec, PROMPT))


def _bulk(cache: kvcore.KVCache) -> dict[str, bytes]:
    found = contents(cache)
    return {k: x for k, x in found.items() if "codes" in k or "scales" in k or k == "centre"}


def test_loaded_and_shifted_sequences_publish_nothing(backend: Backend) -> None:
    spec = make_spec("q4_0", window=16, sinks=2)
    batch = backend.sequences(spec, 256)
    keys = [("prompt", int(e)) for e in batch.links(128)]
    seq = batch.load(fed(backend, spec, cut(PROMPT, 0, 128)).snapshot())
    assert batch.publish(seq, keys) == 0
    batch[seq].truncate(0)
    batch.append([seq], *cut(PROMPT, 0, 128))
    assert batch.publish(seq, keys) == 128
    batch[seq].shift(10, 20, np.full(4, 0.3))
    assert batch.publish(seq, [("shifted", int(e)) for e in batch.links(108)]) == 0


def test_a_refilled_window_is_never_resumed_as_exact(backend: Backend) -> None:
    """A resumes without an exact window, and stands where others would take its window over."""
    spec = make_spec("q4_0", window=16, sinks=2)
    batch = backend.sequences(spec, 512)
    keys = [("prompt", int(e)) for e in batch.links(256)]
    first = batch.add()
    batch.append([first], *cut(PROMPT, 0, 256))
    batch.publish(first, keys)
    middle = batch.resume(keys[:20])
    assert middle.inexact == 16
    batch.publish(middle.seq, keys[:20])
    assert batch.resume(keys[:20]).inexact == 16
    batch.append([middle.seq], *cut(PROMPT, middle.cells, middle.cells + 40))
    batch.publish(middle.seq, keys[:30])
    again = batch.resume(keys[:30])
    assert (again.cells, again.inexact) == (middle.cells + 40, 0)
    assert same(batch[again.seq], fed(backend, spec, cut(PROMPT, 0, again.cells))) == []


def test_keys_that_cannot_be_keys_change_nothing(backend: Backend) -> None:
    batch = backend.sequences(make_spec("f16"), 20)
    seq = batch.add()
    batch.append([seq], *cells(1, 20))
    for bad in ([[1]], None, 5):
        with pytest.raises(ShapeError, match="hashable"):
            batch.resume(bad)
        with pytest.raises(ShapeError, match="hashable"):
            batch.publish(seq, bad)
    assert len(batch) == 1
