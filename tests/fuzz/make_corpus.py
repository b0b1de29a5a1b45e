"""Write the corpus: one small, sound file of every kind. ``python -m tests.fuzz.make_corpus``."""

from __future__ import annotations

import numpy as np

import kvcore
from kvcore.lab.dump_file import DumpMeta, save_dump
from tests.fuzz.targets import CORPUS

SPECS = {
    "empty": ("q4_0", 0, {}),
    "floats": ("f16", 5, {}),
    "overlay": ("q8_0", 9, {"window": 3, "sinks": 1}),
    "tail": ("q2k", 41, {"k_gain": 1.1}),
    "eager": ("q2", 35, {"grouping": "eager", "rule": "n"}),
    "centred": ("q4_0", 40, {"k_center": "auto", "center_cells": 32}),
    "waiting": ("q2k", 20, {"k_center": "auto", "center_cells": 32, "window": 2, "sinks": 2}),
    "calibrated": ("k4v2c", 33, {"k_center": np.linspace(-1, 1, 32, dtype="f4").reshape(1, 32)}),
    "pages": ("q4_0", 70, {"page_size": 64}),
}


def main() -> None:
    """Write both folders."""
    rng = np.random.default_rng(1)
    be = kvcore.get_backend("reference")
    folder = CORPUS / "snapshot"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (fmt, n, fields) in SPECS.items():
        given = {"page_size": 4, **fields}
        spec = kvcore.CacheSpec(format=fmt, n_kv_heads=1, head_dim=32, recipe=None, **given)
        cache = be.cache(spec, 128)
        cache.append(*rng.standard_normal((2, n, 1, 32)).astype(np.float32))
        (folder / name).write_bytes(cache.snapshot())
    cache.append(*rng.standard_normal((2, 20, 1, 32)).astype(np.float32))
    cache.truncate(75)
    (folder / "cut").write_bytes(cache.snapshot())
    _dump(rng)


def _dump(rng: np.random.Generator) -> None:
    folder = CORPUS / "dump"
    folder.mkdir(parents=True, exist_ok=True)
    meta = DumpMeta(
        model="m", model_sha256="0" * 64, arch="llama", text="t", text_sha256="0" * 64,
        n_layers=2, layers=[1], windows=[0], thetas=[10000.0], n_heads=2, n_kv_heads=1,
        head_dim=4, scale=0.5, n_cells=3, n_queries=2, kvcore=kvcore.__version__,
    )  # fmt: skip
    k, v = rng.standard_normal((2, 3, 1, 4)).astype(np.float32)
    q = rng.standard_normal((2, 2, 4)).astype(np.float32)
    save_dump(folder / "small", meta, np.arange(3, dtype=np.int32), {1: (k, v, q)})


if __name__ == "__main__":
    main()
