"""The measures against cases whose value follows from their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvcore.lab.divergence import Divergence, change, compare, summarize
from kvcore.lab.dump_file import DumpLayer
from kvcore.lab.errors import SettingError
from kvcore.lab.exact import steps
from kvcore.lab.measure import Readers, flat_queries, mean_share, relative_rms, spread
from kvcore.lab.patterns import PATTERNS, pieces
from kvcore.lab.recall import has_loop

T, N, H, Q, D = 60, 8, 2, 4, 32


def layer(window=None, q_scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    k, v = (rng.standard_normal((T, H, D)).astype(np.float32) for _ in range(2))
    q = (rng.standard_normal((N, Q, D)) * q_scale).astype(np.float32)
    return DumpLayer(index=3, k=k, v=v, q=q, window=window, scale=D**-0.5)


def test_queries_of_zero_attend_to_every_cell_they_see():
    seen = [T - N + t + 1 for t in range(N)]
    expected = math.exp(np.mean(np.log(seen)))
    assert Readers(layer(q_scale=0.0)).attended == pytest.approx(expected, rel=1e-12)
    assert Readers(layer(window=10, q_scale=0.0)).attended == pytest.approx(10, rel=1e-12)


def test_one_dominant_key_is_one_cell_attended():
    a = layer()
    k = np.zeros_like(a.k)
    k[5] = 100
    q = np.ones_like(a.q)
    b = DumpLayer(index=0, k=k, v=a.v, q=q, window=None, scale=a.scale)
    assert Readers(b).attended == pytest.approx(1, abs=1e-9)


def test_shrunk_keys_have_their_factor_as_every_slope():
    a = layer(window=20)
    s = Readers(a).slope(a.k * np.float32(0.5))
    assert (s.raw, s.centred, s.weighted) == pytest.approx((0.5, 0.5, 0.5), rel=1e-12)


def test_a_constant_added_to_every_key_leaves_the_centred_slopes_at_one():
    a = layer()
    s = Readers(a).slope(a.k + np.float32(3))
    assert (s.centred, s.weighted) == pytest.approx((1, 1), abs=1e-6)
    assert abs(s.raw - 1) > 0.01


def test_exact_keys_have_no_window_bias_and_far_keys_of_zero_have_one():
    a = layer(q_scale=3.0)
    readers = Readers(a)
    assert readers.window_bias(a.k, window=10, sinks=2) == pytest.approx(0, abs=1e-12)
    # Zero keys score 0 where real ones reach far above: the window gains.
    assert readers.window_bias(a.k * 0, window=10, sinks=2) > 0.1


def test_spread_and_mean_share_of_a_known_matrix():
    x = np.zeros((4, 1, 4), np.float32)
    x[:, 0] = [1, 1, 1, 8]
    assert spread(x) == pytest.approx(8)
    assert mean_share(x) == pytest.approx(1)
    x[::2] *= -1
    assert mean_share(x) == pytest.approx(0)


def test_relative_rms_of_a_known_error():
    assert relative_rms(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)


def test_flat_queries_have_the_rms_asked_for_and_a_seed():
    a, b = flat_queries(layer(), 0.3), flat_queries(layer(seed=5), 0.3)
    np.testing.assert_array_equal(a.q, b.q)
    # The RMS of n normal numbers is off by 0.3 / sqrt(2 n) typically; five times that is safe.
    assert np.sqrt(np.square(a.q).mean()) == pytest.approx(0.3, abs=5 * 0.3 / (2 * a.q.size) ** 0.5)


def test_kl_of_known_distributions_and_of_the_same_rows():
    p, q = np.log([[0.5, 0.25, 0.25]]), np.log([[0.25, 0.25, 0.5]])
    got = compare(p.astype(np.float32), q.astype(np.float32), [2])
    assert got.kl[0] == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2), rel=1e-6)
    assert got.nll == pytest.approx(math.log(2), rel=1e-6)
    assert got.nll_exact == pytest.approx(math.log(4), rel=1e-6)
    same = np.random.default_rng(0).standard_normal((5, 1000)).astype(np.float32) * 9
    assert compare(same, same.copy(), [0] * 5).kl == [0.0] * 5


def test_a_summary_counts_each_text_once_and_each_position_for_quantiles():
    one = Divergence(kl=[1.0, 3.0], same=[True, False], nll=2.0, nll_exact=1.0)
    two = Divergence(kl=[6.0], same=[True], nll=4.0, nll_exact=3.0)
    s = summarize([one, two])
    assert (s.mean_kl, s.median_kl, s.per_text, s.nll) == (4.0, 3.0, [2.0, 6.0], 3.0)
    assert s.top1 == pytest.approx(2 / 3)
    assert s.nll_per_text == [2.0, 4.0]


def test_a_change_is_the_geometric_mean_and_counts_texts():
    c = change([1.0, 8.0], [2.0, 2.0])
    assert (c.ratio, c.improved, c.n_texts) == (pytest.approx(math.sqrt(0.5 * 4)), 1, 2)
    with pytest.raises(SettingError, match="no ratio"):
        change([0.0], [1.0])


@pytest.mark.parametrize("n", [1, 31, 64, 333])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_cover_every_cell_once_in_order(pattern, n):
    found = list(pieces(pattern, n))
    assert [a for a, _ in found] == [0, *(b for _, b in found[:-1])]
    assert found[-1][1] == n
    assert all(b > a for a, b in found)


@pytest.mark.parametrize("together", [1, 16])
@pytest.mark.parametrize("stored", [0, 5, 31, 32, 100])
def test_no_call_of_steps_hides_the_end_of_a_group(stored, together):
    found = list(steps(stored, 150, together))
    assert [a for a, _ in found] == [0, *(b for _, b in found[:-1])]
    assert found[-1][1] == 150
    for a, b in found:
        assert b - a <= together
        completing = [c for c in range(stored + a, stored + b) if c % 32 == 31]
        assert not completing or b - a == 1


def test_a_loop_is_a_period_that_fills_the_end():
    assert has_loop([9, 8, *([1, 2, 3] * 20)])
    assert not has_loop(list(range(100)))
    assert not has_loop([1, 2] * 5)
