"""Snapshots: portable, exact, transactional, and hard on hostile files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.container import pack, unpack
from kvcore.errors import FormatError
from kvcore.snapshot import load_into, load_new
from kvcore.snapshot_image import read, write
from tests.state.world import (
    FORMATS,
    HEADS,
    attended,
    cells,
    contents,
    fed,
    make_spec,
    queries,
    same,
)

FIELDS = {"window": 8, "sinks": 2}


@pytest.mark.parametrize("n", [0, 1, 5, 31, 32, 33, 64, 97])
@pytest.mark.parametrize("name", ["f16", "q4_0", "q2k", "q2"])
def test_a_loaded_cache_goes_on_as_the_saved_one(backend: Backend, name: str, n: int) -> None:
    spec = make_spec(name, k_center="none" if name == "f16" else "auto", **FIELDS)
    cache = fed(backend, spec, cells(1, n))
    data = cache.snapshot()
    twin = backend.load(data)
    assert twin.spec == spec
    assert twin.snapshot() == data
    q = queries(1, 2)
    np.testing.assert_array_equal(attended(twin, q), attended(cache, q))
    for one in (cache, twin):
        one.append(*cells(2, 70))
    assert same(twin, cache) == []


@pytest.mark.parametrize("name", FORMATS)
def test_kb22_same_settings_on_another_backend(backend: Backend, name: str) -> None:
    spec = make_spec(name, **FIELDS)
    here = fed(backend, spec, cells(1, 75))
    there = kvcore.get_backend("reference").load(here.snapshot())
    back = backend.load(there.snapshot())
    assert here.snapshot() == there.snapshot() == back.snapshot()
    for got, want in zip(there.read(), here.read(), strict=True):
        np.testing.assert_array_equal(got, want)


OTHERS: dict[str, Callable[[], kvcore.CacheSpec]] = {
    "rotate": lambda: make_spec(
        kvcore.Format(k=kvcore.format("q4_0").k, v=kvcore.format("q4_0").v, rotate="none")
    ),
    "n_kv_heads": lambda: make_spec("q4_0", n_kv_heads=4, head_dim=32),
    "page_size": lambda: make_spec("q4_0", page_size=8),
    "k_codec": lambda: make_spec("q2k"),
    "window": lambda: make_spec("q4_0", window=9),
    "sinks": lambda: make_spec("q4_0", window=8, sinks=3),
    "k_center": lambda: make_spec("q4_0", k_center="auto"),
    "k_gain": lambda: make_spec("q4_0", k_gain="unbiased"),
}


@pytest.mark.parametrize("field", OTHERS)
def test_kb22_other_settings_are_refused_by_name(backend: Backend, field: str) -> None:
    data = fed(backend, make_spec("q4_0"), cells(1, 40)).snapshot()
    other = OTHERS[field]()
    target = fed(backend, other, cells(2, 20, other))
    before = contents(target)
    with pytest.raises(ValueError, match=field):
        target.load(data)
    assert contents(target) == before


@pytest.mark.parametrize(
    ("saved", "wanted", "field"),
    [
        ({"k_gain": 1.1}, {"k_gain": 1.05}, "k_gain"),
        ({"grouping": "eager"}, {}, "grouping"),
        ({"grouping": "eager", "rule": "n"}, {"grouping": "eager", "rule": "old"}, "rule"),
        ({"k_center": np.ones((2, 64), np.float32)}, {"k_center": np.zeros((2, 64))}, "k_center"),
        ({"k_center": "auto", "center_cells": 32}, {"k_center": "auto"}, "center_cells"),
    ],
)
def test_kb22_settings_of_q2k(
    backend: Backend, saved: dict[str, object], wanted: dict[str, object], field: str
) -> None:
    data = fed(backend, make_spec("q2k", **saved), cells(1, 40)).snapshot()
    with pytest.raises(ValueError, match=field):
        backend.cache(make_spec("q2k", **wanted), 64).load(data)


def _edited(data: bytes, change: Callable[[dict[str, str], dict[str, object]], None]) -> bytes:
    """Return a sound file whose metadata and key were changed by someone who knows the format."""
    file = unpack(data)
    metadata = dict(file.metadata)
    key = json.loads(metadata["key"])
    change(metadata, key)
    metadata["key"] = json.dumps(key, separators=(",", ":"), sort_keys=True)
    return pack(metadata, {name: file.view(name) for name in file.sections})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layout_version", 2), ("layout_version", 0), ("byte_order", "big"), ("rotate", "both"),
        ("n_kv_heads", 0), ("n_kv_heads", 10**12), ("n_kv_heads", 2.0), ("head_dim", 48),
        ("page_size", 3), ("page_size", 10**9), ("window", -1), ("window", 2**40),
        ("k_codec", None), ("k_codec", {"name": "q4_0"}), ("k_gain", "much"), ("rule", ["n"]),
        ("grouping", None), ("k_center", "calibrated:00"), ("k_center", 5), ("format", 7),
        ("center_cells", 31),
    ],
)  # fmt: skip
def test_impossible_keys_are_refused_by_name(field: str, value: object) -> None:
    be = kvcore.get_backend("reference")
    data = fed(be, make_spec("q4_0", **FIELDS), cells(1, 40)).snapshot()
    hostile = _edited(data, lambda _, key: key.update({field: value}))
    with pytest.raises(ValueError, match=field):
        be.load(hostile)
    with pytest.raises(ValueError, match=field):
        load_into(be.cache(make_spec("q4_0", **FIELDS), 64), hostile)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "2"), ("version", ""), ("version", "-1"), ("version", "9" * 400),
        ("cells", "41"), ("cells", "4294967296"), ("cells", "x"), ("capacity", "0"),
        ("capacity", "39"), ("format", "pt"), ("sha256", "{}"), ("key", "[" * 100_000),
    ],
)  # fmt: skip
def test_impossible_metadata_is_refused_by_name(field: str, value: str) -> None:
    be = kvcore.get_backend("reference")
    data = fed(be, make_spec("q4_0"), cells(1, 40)).snapshot()
    file = unpack(data)
    arrays = {name: file.view(name) for name in file.sections}
    metadata = {**file.metadata, field: value}
    hostile = pack(metadata, arrays)
    if field == "sha256":  # pack writes it itself: cut a hash out of the text
        hostile = data.replace(b"sha256", b"sha255", 1)
    pattern = {"cells": r"marks|cells|shape", "sha256": "header"}.get(field, field)
    with pytest.raises(ValueError, match=pattern):
        be.load(hostile)


@pytest.mark.parametrize(
    ("mark", "value"),
    [
        (0, 39), (1, 41), (1, -1), (2, 40), (2, -32), (2, 96), (3, 0), (4, 41), (4, -1),
        (5, 41), (6, 1), (6, 2), (7, 1), (2, 2**31 - 1),
    ],
)  # fmt: skip
def test_marks_that_cannot_be_are_refused(mark: int, value: int) -> None:
    """Marks say where readers look: a file must not point them outside what it holds."""
    be = kvcore.get_backend("reference")
    image = read(fed(be, make_spec("q2k", **FIELDS), cells(1, 40)).snapshot())
    row = list(image.row)
    row[mark] = value
    with pytest.raises(FormatError, match=r"marks|cells|shape"):
        read(write(replace(image, row=row)))


def test_every_cut_and_every_flipped_byte_is_refused() -> None:
    be = kvcore.get_backend("reference")
    spec = make_spec("q2k", n_kv_heads=1, head_dim=32, window=1)
    cache = fed(be, spec, cells(1, 33, spec))
    data, before = cache.snapshot(), contents(cache)
    rng = np.random.default_rng(1)
    for at in range(0, len(data), 3):
        with pytest.raises(ValueError, match=r"\[snapshot\]"):
            cache.load(data[:at])
        flipped = bytearray(data)
        flipped[at] ^= int(rng.integers(1, 256))
        with pytest.raises(ValueError, match=r"\[snapshot\]"):
            cache.load(bytes(flipped))
    assert contents(cache) == before
    for junk in (b"", b"\0" * 7, b"\xff" * 64, data + b"\0", data[8:], "text", None):
        with pytest.raises(ValueError, match=r"\[snapshot\]"):
            cache.load(junk)


def test_a_file_cannot_ask_for_memory_it_does_not_fill() -> None:
    """A capacity of two billion cells is a number, not an allocation."""
    import tracemalloc

    be = kvcore.get_backend("reference")
    data = fed(be, make_spec("q4_0", **FIELDS), cells(1, 5)).snapshot()
    huge = _edited(data, lambda metadata, _: metadata.update(capacity=str(2**31 - 2**20)))
    tracemalloc.start()
    cache = be.load(huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(data)
    cache.append(*cells(2, 60))
    assert len(cache) == 65
    with pytest.raises(ValueError, match="cells"):
        load_new(be, data, capacity=4)


def test_safetensors_reads_the_same_arrays_and_metadata() -> None:
    """The file is a safetensors file: the package's own reader is the peer."""
    peer = pytest.importorskip("safetensors.numpy")
    be = kvcore.get_backend("reference")
    centre = np.linspace(-1, 1, HEADS * 64, dtype=np.float32).reshape(HEADS, 64)
    for spec in (make_spec("q2k", **FIELDS), make_spec("q4_0", k_center=centre)):
        data = fed(be, spec, cells(1, 75)).snapshot()
        theirs, ours = peer.load(data), unpack(data)
        assert set(theirs) == {*ours.sections, "header_sha256"}
        for name in ours.sections:
            np.testing.assert_array_equal(theirs[name], ours.view(name))
            assert theirs[name].dtype == ours.view(name).dtype.newbyteorder("=")
    written = peer.save({"a": np.arange(6, dtype=np.float32)}, metadata={"format": "pt"})
    with pytest.raises(FormatError, match="header_sha256"):
        read(written)


@pytest.mark.parametrize("dirty", [65, 33, 32, 31, 3, 0])
@pytest.mark.parametrize("name", ["q4_0", "q2k", "k4v2c"])
def test_incremental_equals_full_and_reuses_whole_groups(
    backend: Backend, name: str, dirty: int
) -> None:
    spec = make_spec(name, page_size=4)
    cache = fed(backend, spec, cells(1, 100))
    base = cache.snapshot()
    cache.truncate(100 - dirty)
    cache.append(*cells(2, dirty + 7))
    found = cache.snapshot_since(base)
    fresh = backend.load(found.data)
    assert same(fresh, cache) == []
    unit = spec.layout.unit_cells
    settled = min(100 - dirty, 96 if spec.format.per_channel else 100)
    assert found.reused == settled // unit * unit
    full = cache.snapshot()
    assert found.data == full


def test_incremental_takes_nothing_from_a_stranger(backend: Backend) -> None:
    spec = make_spec("q4_0", window=128, k_center="auto", center_cells=64)
    cache = fed(backend, spec, cells(1, 100))
    stranger = fed(backend, spec, cells(5, 100)).snapshot()
    base = cache.snapshot()
    assert cache.snapshot_since(stranger).reused == 0
    base = cache.snapshot()
    cache.truncate(50)  # the centre is forgotten: every cell will be encoded anew
    cache.append(*cells(2, 70))
    assert cache.snapshot_since(base).reused == 0
    loaded = backend.load(base)
    loaded.append(*cells(4, 3))
    assert loaded.snapshot_since(base).reused == 100
    fork = loaded.fork()
    saved = loaded.snapshot()
    assert fork.snapshot_since(saved).data == saved


def test_load_into_pages_that_forks_share(backend: Backend) -> None:
    spec = make_spec("q2k", **FIELDS)
    cache = fed(backend, spec, cells(1, 75))
    fork = cache.fork()
    data = fed(backend, spec, cells(2, 90)).snapshot()
    before = contents(fork)
    cache.load(data)
    assert contents(fork) == before
    assert cache.snapshot() == fed(backend, spec, cells(2, 90)).snapshot()
    cache.append(*cells(3, 30))
    assert contents(fork) == before
    assert same(cache, fed(backend, spec, cells(2, 90), cells(3, 30))) == []


def test_a_snapshot_holds_nothing_of_what_was_dropped(backend: Backend) -> None:
    """Equal caches have equal files, whatever their pages held before."""
    spec = make_spec("q4_0", window=8, sinks=2)
    used = fed(backend, spec, cells(9, 300, size=77.0))
    used.truncate(0)
    used.append(*cells(1, 37))
    fresh = fed(backend, spec, cells(1, 37))
    assert used.snapshot() == fresh.snapshot()
    batch = backend.sequences(spec, 64)
    first = batch.add()
    batch.append([first], *cells(9, 80, size=77.0))
    batch.free(first)
    second = batch.add()
    batch.append([second], *cells(1, 37))
    assert same(batch[second], fresh) == []


@pytest.mark.parametrize("name", ["q4_0", "q2k"])
def test_a_batch_loads_a_snapshot_as_a_new_sequence(backend: Backend, name: str) -> None:
    spec = make_spec(name, **FIELDS)
    one = fed(backend, spec, cells(1, 75))
    batch = backend.sequences(spec, 64)
    batch.append([batch.add()], *cells(2, 10))
    seq = batch.load(one.snapshot())
    batch.append([seq], *cells(3, 5))
    one.append(*cells(3, 5))
    assert same(batch[seq], one) == []
    count, pages = len(batch), batch.free_pages
    with pytest.raises(ValueError, match="size"):
        batch.load(one.snapshot()[:-1])
    with pytest.raises(kvcore.OutOfPages):
        batch.load(fed(backend, spec, cells(4, 300)).snapshot())
    assert (len(batch), batch.free_pages) == (count, pages)


def test_known_answer(backend: Backend) -> None:
    """A file of this version keeps loading: hash of a snapshot of arithmetic cells."""
    import hashlib

    spec = make_spec("f16", n_kv_heads=1, head_dim=32)
    ramp = (np.arange(3 * 32, dtype=np.float32).reshape(3, 1, 32) - 48) / 8
    data = fed(backend, spec, (ramp, -ramp), capacity=32).snapshot()
    assert hashlib.sha256(data).hexdigest() == KNOWN
    got = backend.load(data).read()
    np.testing.assert_array_equal(got[0], ramp)
    np.testing.assert_array_equal(got[1], -ramp)


KNOWN = "d57b0213ce3e49516d8c9c340c38fded71be908b644f53bad3184e3a87bbb52f"
