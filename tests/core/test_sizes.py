"""Bytes per cell, planes and overlays equal the published tables."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore import codecs
from kvcore.errors import FormatError
from kvcore.layout import StateLayout
from kvcore.reference import Reference
from kvcore.spec import Format

GIB = 2**30

PUBLISHED = {
    "f32": 4096,
    "k8v32": 528 + 2048,
    "k32v8": 528 + 2048,
    "f16": 2048,
    "bf16": 2048,
    "int8": 1056,
    "k8v4": 816,
    "q4_0": 576,
    "k4v4": 544,
    "q2k": 448,
    "k4v2c": 448,
    "q2": 320,
    "k2cv2t": 320,
    "k2cv1c": 256,
    "k2cv1t": 256,
    "q8_0": 2 * 2 * (256 + 16),
}


def test_every_format_has_a_published_size():
    assert set(PUBLISHED) == set(kvcore.formats())


@pytest.mark.parametrize(("name", "size"), PUBLISHED.items())
def test_bytes_per_cell_at_2_heads_of_256(name, size):
    fmt = kvcore.format(name)
    assert fmt.bytes_per_cell(2, 256) == size
    spec = kvcore.CacheSpec(format=name, n_kv_heads=2, head_dim=256)
    pages = spec.layout.pages_for(1024)
    assert spec.layout.nbytes(pages) == 1024 * size
    pool = Reference().pool(spec.layout, pages)
    assert sum(p.nbytes for p in pool.planes.values()) == pool.nbytes == 1024 * size


def test_formats_iterate_from_most_bytes_to_least():
    sizes = [PUBLISHED[name] for name in kvcore.formats()]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("name", "gib"), [("f16", 6.0), ("q4_0", 1.6875), ("q2k", 1.3125), ("q2", 0.9375)]
)
def test_twelve_layers_of_262144_cells(name, gib):
    spec = kvcore.CacheSpec(format=name, n_kv_heads=2, head_dim=256, recipe=None)
    pages = spec.layout.pages_for(262_144)
    assert 12 * spec.layout.nbytes(pages) == gib * GIB


@pytest.mark.parametrize(("window", "kib"), [(128, 304), (256, 560)])
def test_an_overlay_of_8_sinks_and_a_window(window, kib):
    layout = kvcore.CacheSpec(format="q4_0", n_kv_heads=2, head_dim=256, recipe=None).layout
    state = StateLayout(layout=layout, sinks=8, window=window)
    assert state.slots("k") == 8 + window + 16
    planes = Reference().state(state)
    assert planes.k.nbytes + planes.v.nbytes == kib * 1024


def test_a_tail_without_an_overlay_holds_only_the_deferred_stores():
    layout = kvcore.CacheSpec(format="q2k", n_kv_heads=2, head_dim=256, recipe=None).layout
    state = StateLayout(layout=layout)
    assert (state.slots("k"), state.slots("v")) == (32 + 16, 0)
    both = kvcore.CacheSpec(format="q2", n_kv_heads=2, head_dim=256, recipe=None).layout
    assert StateLayout(layout=both).slots("v") == 32 + 16


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 32, 64, 128])
def test_capacity_of_a_per_channel_pool_is_whole_groups(page_size):
    layout = kvcore.CacheSpec(
        format="q2", n_kv_heads=1, head_dim=32, page_size=page_size, recipe=None
    ).layout
    pages = layout.pages_for(33)
    assert pages * page_size == max(64, page_size)
    assert layout.unit_cells == max(32, page_size)
    assert layout.unit_bytes == layout.unit_cells * 20


@pytest.mark.parametrize("page_size", [3, 12, 33, 48])
def test_a_page_size_that_does_not_fit_groups_is_refused(page_size):
    with pytest.raises(FormatError, match=r"\[spec\] page_size is not usable"):
        kvcore.CacheSpec(format="q2", n_kv_heads=1, head_dim=32, page_size=page_size)


@pytest.mark.parametrize("name", list(kvcore.formats()))
@pytest.mark.parametrize("dim", [64, 80, 96, 100, 112, 128, 192, 256, 576])
def test_kb_16_a_head_size_works_or_is_named_with_the_next_that_does(name, dim):
    fmt = kvcore.format(name)
    steps = {c.dim_multiple for c in (fmt.k, fmt.v)} | ({32} if fmt.rotate != "none" else set())
    fits = all(dim % step == 0 for step in steps)
    if fits:
        assert fmt.bytes_per_cell(2, dim) > 0
        return
    with pytest.raises(FormatError, match=f"D={dim}") as caught:
        fmt.bytes_per_cell(2, dim)
    step = next(s for s in (64, 32, 8, 4, 2) if f"multiple of {s}" in str(caught.value))
    assert f"next D that works is {-(-dim // step) * step}" in str(caught.value)


def test_any_codec_of_k_pairs_with_any_codec_of_v():
    for k in codecs.all_codecs().values():
        for v in codecs.all_codecs().values():
            fmt = Format(k=k, v=v, rotate="none")
            size = fmt.bytes_per_cell(2, 256, 128)
            each = k.row_bytes(256) + k.scale_bytes(256) + v.row_bytes(128) + v.scale_bytes(128)
            assert size == np.ceil(2 * each)


def test_an_unknown_format_lists_those_there_are():
    with pytest.raises(FormatError, match=r"unknown format: got 'q9'.*q2k.*Format\(k="):
        kvcore.format("q9")
    with pytest.raises(FormatError, match=r"unknown codec: got 'q9'.*q2c"):
        codecs.get("q9")


def test_a_format_prints_as_a_table():
    text = str(kvcore.format("q2k"))
    assert "448 at 2 heads x 256" in text
    assert "8 sinks, window 128, deferred grouping" in text
