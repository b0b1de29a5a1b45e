"""Arguments that mean nothing: refused with kvcore's own error, before anything is changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.errors import RangeError, ShapeError
from tests.state.world import attended, cells, contents, fed, make_spec, queries

SPEC = make_spec("q4_0")


@pytest.mark.parametrize("draft", ["yes", None, 1, np.array([True])])
def test_draft_is_true_or_false(draft: object) -> None:
    cache = fed(kvcore.get_backend("reference"), SPEC, cells(1, 20))
    before = contents(cache)
    with pytest.raises(ShapeError, match="draft"):
        cache.append(*cells(2, 1), draft=draft)
    assert contents(cache) == before
    cache.append(*cells(2, 1), draft=np.bool_(True))
    assert cache.committed == 20


@pytest.mark.parametrize("name", ["scale", "softcap"])
@pytest.mark.parametrize("value", [1 + 2j, True, "1", [1.0, 2.0], np.inf])
def test_numbers_of_attention_are_numbers(name: str, value: object) -> None:
    cache = fed(kvcore.get_backend("reference"), SPEC, cells(1, 20))
    with pytest.raises(ShapeError, match=name):
        cache.attend(queries(1, 1), **{name: value})


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**63, 10**30])
def test_a_window_beyond_every_cell_is_none(backend: Backend, window: int) -> None:
    cache = fed(backend, SPEC, cells(1, 20))
    q = queries(1, 2)
    np.testing.assert_array_equal(attended(cache, q, window=window), attended(cache, q))


@pytest.mark.parametrize(
    "act",
    [
        lambda s: s.attend([[0], [1, 2]], queries(1, 1)),
        lambda s: s.attend([True], queries(1, 1)),
        lambda s: s.attend(["0"], queries(1, 1)),
        lambda s: s.lengths(5),
        lambda s: s.grow("x"),
        lambda s: s.grow(-1),
        lambda s: s.links(None),
        lambda s: s[True],
    ],
)
def test_sequences_are_named_by_numbers(act: object) -> None:
    batch = kvcore.get_backend("reference").sequences(SPEC, 64)
    batch.add()
    batch.add()
    with pytest.raises((ShapeError, RangeError)):
        act(batch)
    assert len(batch) == 2
    assert batch.n_pages == 64


@pytest.mark.parametrize("capacity", ["x", True, 0, -3, 2.5])
def test_the_capacity_of_a_loaded_cache_is_a_number(capacity: object) -> None:
    be = kvcore.get_backend("reference")
    data = fed(be, SPEC, cells(1, 20)).snapshot()
    with pytest.raises(RangeError, match="capacity"):
        be.load(data, capacity=capacity)


def test_ragged_angles_are_refused() -> None:
    cache = fed(kvcore.get_backend("reference"), SPEC, cells(1, 20))
    before = contents(cache)
    with pytest.raises(ShapeError, match="rope"):
        cache.shift(1, 2, [[1.0], [2.0, 3.0]])
    assert contents(cache) == before


@pytest.mark.parametrize("path", [5, "", b""])
def test_a_stream_needs_the_name_of_a_file(path: object) -> None:
    with pytest.raises(ShapeError, match="path"):
        kvcore.get_backend("reference").stream(SPEC, 64, 64, path=path)


def test_a_streams_file_goes_wherever_the_program_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    cache = kvcore.get_backend("reference").stream(SPEC, 64, 64, path="pages")
    assert (tmp_path / "pages").exists()
    monkeypatch.chdir(tmp_path / "elsewhere")
    del cache
    assert not (tmp_path / "pages").exists()


def test_a_file_that_cannot_be_mapped_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise OSError("cannot map")

    monkeypatch.setattr(np, "memmap", fail)
    with pytest.raises(OSError, match="cannot map"):
        kvcore.get_backend("reference").stream(SPEC, 64, 64, path=str(tmp_path / "pages"))
    assert os.listdir(tmp_path) == []
