"""emit prints what is compiled; golden sources pin what is generated around the bodies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kvcore
from kvcore.compiler.emit import emit
from kvcore.compiler.target import target_names
from kvcore.errors import FormatError, UnsupportedError
from kvcore.ops import Op, declared, register, unregister
from tests.golden.update import HERE, difference, golden
from tests.portable.conftest import open_backend

OPS = Path(kvcore.__file__).parent / "ops"


def test_generated_sources_are_the_golden_ones() -> None:
    wanted = dict(golden())
    changed = [shown for path, text in wanted.items() if (shown := difference(path, text))]
    hint = "\n\nif this is meant: python tests/golden/update.py, and review its diff"
    assert not changed, "\n\n".join(changed[:3]) + hint
    kept = {p for folder in ("cuda", "metal", "opencl") for p in (HERE / folder).iterdir()}
    assert kept == set(wanted)


def test_a_changed_source_shows_as_a_diff(tmp_path: Path) -> None:
    path, text = next(iter(golden()))
    shown = difference(path, text.replace("#define K_BITS (2)", "#define K_BITS (3)"))
    assert "-#define K_BITS (2)" in shown
    assert "+#define K_BITS (3)" in shown


@pytest.mark.parametrize("target", target_names())
@pytest.mark.parametrize("fmt", list(kvcore.formats()))
def test_every_op_of_every_format_renders_with_the_whole_body(fmt: str, target: str) -> None:
    for op in declared():
        for stateless in (False, True):
            text = emit(op, fmt, target, stateless=stateless)
            body = (OPS / f"{op}.c").read_text(encoding="utf-8")
            lines = [line for line in body.splitlines() if not line.startswith("#include")]
            assert all(line in text for line in lines)
            assert f'#line 1 "kvcore/ops/{op}.c"' in text


@pytest.mark.parametrize("fmt", ["q2k", "k4v2c", "int8"])
def test_a_cache_compiles_exactly_what_emit_prints(fmt: str, monkeypatch) -> None:
    be = open_backend("opencl")
    built = []
    real = be.engine.device.build
    monkeypatch.setattr(be.engine, "_programs", {})
    monkeypatch.setattr(be.engine.device, "build", lambda s: (built.append(s.text), real(s))[1])
    spec = kvcore.CacheSpec(format=fmt, n_kv_heads=2, head_dim=64)
    cache = be.cache(spec, 64)
    x = np.ones((3, 2, 64), np.float32)
    cache.append(x, x)
    cache.attend(np.ones((1, 8, 64), np.float32))
    be.restore(cache.state, cache.pool, cache.table, 3)
    be.gather(cache.pool, cache.table, np.arange(3))
    printed = {
        emit(op, fmt, "opencl", head_dim=64)
        for op in ("rotate", "append", "attention", "restore", "gather")
        if (op != "rotate" or spec.format.rotate_k)
        and (op != "restore" or spec.state_layout.overlay)
    }
    assert set(built) == printed


def test_a_wrong_request_is_refused_with_the_choices() -> None:
    with pytest.raises(FormatError, match=r"unknown op: got 'nosuch', expected append, attention"):
        emit("nosuch")
    with pytest.raises(FormatError, match=r"query heads: got 3, expected a multiple of 2"):
        emit("attention", query_heads=3)
    with pytest.raises(UnsupportedError, match=r"unknown target: got vulkan"):
        emit("append", "q2k", "vulkan")
    register(Op(name="toy_op", version=1, args=(), returns="", reference=lambda: None))
    try:
        with pytest.raises(UnsupportedError, match="toy_op has no portable body"):
            emit("toy_op")
    finally:
        unregister("toy_op")
