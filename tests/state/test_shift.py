"""Context shift: K turned to its new positions, V moved, everything else in step."""

from __future__ import annotations

import numpy as np
import pytest

import kvcore
from kvcore.backend import Backend
from kvcore.errors import RangeError, ShapeError, UnsupportedError
from tests.state.world import DIM, attended, cells, contents, cut, fed, make_spec, queries, same

PAIRS = DIM // 2
FREQUENCY = 10000.0 ** (-np.arange(PAIRS) / PAIRS)
KEEP, DROP, N = 10, 30, 100


def rope(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Turn NEOX pairs (i, i + pairs) by position, in float64."""
    angle = positions[:, None, None] * FREQUENCY
    low, high = x[..., :PAIRS].astype(float), x[..., PAIRS:].astype(float)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1).astype(np.float32)


def _prompt() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    plain, v = cells(1, N)
    return rope(plain, np.arange(N)), v, plain


def _error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize(
    "fields",
    [{}, {"window": 8, "sinks": 2}, {"recipe": "format"}],
    ids=["bare", "overlay", "recipe"],
)
@pytest.mark.parametrize("name", list(kvcore.formats()))
def test_kb27_shift_in_the_middle_of_groups(
    backend: Backend, name: str, fields: dict[str, object]
) -> None:
    spec = make_spec(name, **fields)
    k, v, plain = _prompt()
    cache = fed(backend, spec, (k, v))
    assert cache.can_shift
    before_k, before_v = cache.read()
    cache.shift(KEEP, DROP, -DROP * FREQUENCY)
    want = np.concatenate([plain[:KEEP], plain[KEEP + DROP :]])
    want = rope(want, np.arange(len(want)))
    once = fed(backend, spec, (want, np.concatenate([v[:KEEP], v[KEEP + DROP :]])))
    got_k, got_v = cache.read()
    assert len(cache) == cache.committed == N - DROP
    np.testing.assert_array_equal(got_k[:KEEP], before_k[:KEEP])
    np.testing.assert_array_equal(got_v[:KEEP], before_v[:KEEP])
    rounding = 1e-6  # float32: cells that are stored as they are
    bound = 1.5 * _error(once.read()[0][KEEP:], want[KEEP:]) + rounding
    assert _error(got_k[KEEP:], want[KEEP:]) <= bound
    if not spec.format.v.per_channel:
        np.testing.assert_array_equal(got_v[KEEP:], before_v[KEEP + DROP :])
    else:
        assert (
            _error(got_v[KEEP:], v[KEEP + DROP :])
            <= 1.5 * _error(before_v[KEEP + DROP :], v[KEEP + DROP :]) + rounding
        )


@pytest.mark.parametrize("name", ["q4_0", "q2k", "k4v2c"])
def test_kb27_a_shifted_cache_goes_on(backend: Backend, name: str) -> None:
    """All cells exact: a shift gives what a cache that was fed the turned cells holds."""
    spec = make_spec(name, window=128, sinks=2)
    k, v, _ = _prompt()
    cache = fed(backend, spec, (k, v))
    fork = cache.fork()
    untouched = contents(fork)
    assert cache.shift(32, 32, lambda x, old, new: x) == 0
    plain = fed(backend, spec, cut((k, v), 0, 32), cut((k, v), 64, N))
    more = cells(5, 40)
    for one in (cache, plain):
        one.append(*more)
    for got, want in zip(cache.read(), plain.read(), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=0.02 * np.abs(want).max())
    q = queries(2, 1)
    assert attended(cache, q).shape == attended(plain, q).shape
    assert contents(fork) == untouched


def test_kb27_v_of_per_channel_groups_moves_as_bytes_when_groups_stay_whole(
    backend: Backend,
) -> None:
    spec = make_spec("k4v2c")
    k, v, _ = _prompt()
    cache = fed(backend, spec, (k, v))
    _, before = cache.read()
    cache.shift(32, 32, -32 * FREQUENCY)
    _, after = cache.read()
    np.testing.assert_array_equal(after[32:], before[64:])


@pytest.mark.parametrize("name", ["f16", "q2k"])
def test_a_function_turns_as_the_angles_do(backend: Backend, name: str) -> None:
    spec = make_spec(name)
    k, v, _ = _prompt()
    one, two = fed(backend, spec, (k, v)), fed(backend, spec, (k, v))
    seen = {}

    def turn(x: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        seen.update(old=old, new=new)
        return rope(x, new - old)

    one.shift(KEEP, DROP, turn)
    two.shift(KEEP, DROP, -DROP * FREQUENCY)
    assert same(one, two) == []
    assert seen["old"].tolist() == list(range(KEEP + DROP, N))
    assert (seen["old"] - seen["new"] == DROP).all()


def test_kb27_what_cannot_be_shifted_says_so_beforehand(backend: Backend) -> None:
    cache = fed(backend, make_spec("q2k", grouping="eager"), cells(1, N))
    before = contents(cache)
    assert not cache.can_shift
    with pytest.raises(UnsupportedError, match="q2k") as caught:
        cache.shift(KEEP, DROP, -DROP * FREQUENCY)
    assert isinstance(caught.value, NotImplementedError)
    assert contents(cache) == before


@pytest.mark.parametrize(
    ("keep", "drop", "turn"),
    [
        (-1, 3, np.zeros(4)), (0, 101, np.zeros(4)), (90, 11, np.zeros(4)), (1.5, 3, np.zeros(4)),
        (0, 3, np.zeros(33)), (0, 3, np.full(4, np.nan)), (0, 3, "angles"),
        (0, 3, lambda k, old, new: k[:1]), (0, 3, lambda k, old, new: k.astype(int)),
    ],
)  # fmt: skip
def test_wrong_shifts_are_refused_before_writing(
    backend: Backend, keep: object, drop: object, turn: object
) -> None:
    cache = fed(backend, make_spec("f16"), cells(1, N))
    before = contents(cache)
    with pytest.raises((RangeError, ShapeError), match="shift"):
        cache.shift(keep, drop, turn)
    assert contents(cache) == before


def test_shifting_nothing_and_everything(backend: Backend) -> None:
    cache = fed(backend, make_spec("q2k", window=8, sinks=2), cells(1, N))
    before = contents(cache)
    assert cache.shift(5, 0, np.zeros(4)) == 0
    assert contents(cache) == before
    assert cache.shift(0, N, np.zeros(4)) == 0
    assert len(cache) == 0
    cache.append(*cells(2, 3), draft=True)
    with pytest.raises(ShapeError, match="drafts"):
        cache.shift(0, 1, np.zeros(4))
