"""Fuzz targets: bytes in, no surprise out. Used by Hypothesis and by atheris.

A file is either refused with a ValueError, or it loads, reads, attends, goes on
and saves again. Most mutations would end at a hash, so a target also sees each file with its hashes
made right again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np

from kvcore.lab.dump_file import read_dump
from kvcore.lab.errors import DataFileError
from kvcore.marks import fault
from kvcore.reference import Reference
from kvcore.snapshot import load_new
from kvcore.snapshot_image import read

CORPUS = Path(__file__).parent / "corpus"
MOST_CELLS = 4096
_reference = Reference()


def snapshot_target(data: bytes) -> bool:
    """Load bytes as they are and resealed; return True if either was taken."""
    return any([_snapshot(data), _snapshot(reseal(data))])


def _snapshot(data: bytes) -> bool:
    try:
        image = read(data)
    except ValueError:
        return False
    assert fault(image.row, image.spec.state_layout) == ""
    assert sum(a.nbytes for a in image.planes.values()) <= len(data)
    cache = load_new(_reference, data)
    n = len(cache)
    spec = cache.spec
    if n > MOST_CELLS or spec.n_kv_heads * (spec.head_dim + spec.head_dim_v) > 1 << 14:
        return True
    with np.errstate(all="ignore"):
        k, v = cache.read()
        assert k.shape == (n, spec.n_kv_heads, spec.head_dim)
        assert v.shape == (n, spec.n_kv_heads, spec.head_dim_v)
        cache.attend(np.ones((1, spec.n_kv_heads, spec.head_dim), np.float32))
        again = cache.snapshot()
        assert read(again).row == image.row
        room = min(40, cache.capacity - n)
        shape = (room, spec.n_kv_heads)
        cache.append(
            np.ones((*shape, spec.head_dim), np.float32),
            np.ones((*shape, spec.head_dim_v), np.float32),
        )
        cache.truncate(n // 2)
    return True


def reseal(data: bytes) -> bytes:
    """Return a file with every hash recomputed, as far as its header can be read."""
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= len(data) - 8:
        return data
    body = data[8 + size :]
    try:
        header = json.loads(data[8 : 8 + size])
        hashes = {}
        for name, entry in header.items():
            if name not in ("__metadata__", "header_sha256"):
                start, end = entry["data_offsets"]
                hashes[name] = hashlib.sha256(body[start:end]).hexdigest()
        header["__metadata__"]["sha256"] = json.dumps(hashes, separators=(",", ":"))
        start, end = header["header_sha256"]["data_offsets"]
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        seal = hashlib.sha256(raw).digest()
        sealed = body[:start] + seal + body[end:]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError):
        return data
    return len(raw).to_bytes(8, "little") + raw + sealed


def dump_target(data: bytes) -> bool:
    """Read bytes as a dump file; return True if it was taken."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump"
        path.write_bytes(data)
        try:
            dump = read_dump(path)
        except DataFileError:
            return False
        layer = dump.layer(dump.meta.layers[0])
        assert layer.k.shape == layer.v.shape
        assert sum(a.nbytes for a in (layer.k, layer.v)) <= 2 * len(data)
    return True


TARGETS = {"snapshot": snapshot_target, "dump": dump_target}
