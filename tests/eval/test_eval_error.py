"""Attention error on a made layer: exact arms, order, append patterns, and how arms are written."""

from __future__ import annotations

import numpy as np
import pytest

from kvcore.errors import FormatError
from kvcore.lab.arms import parse_arm, parse_arms, read_back
from kvcore.lab.dump_file import DumpLayer
from kvcore.lab.errors import SettingError
from kvcore.lab.eval_error import RULES, LayerBench, append_table, error_table
from kvcore.lab.measure import relative_rms
from kvcore.lab.patterns import PATTERNS
from kvcore.lab.simulate import (
    SIMULATIONS,
    SimulatedCache,
    affine,
    by_cell,
    by_channel,
    channel_order,
    clip_search,
)

T, N, H, Q, D = 200, 8, 2, 4, 64


@pytest.fixture(scope="module")
def layer():
    rng = np.random.default_rng(0)
    scale = np.exp(rng.standard_normal((1, H, D)))  # channels of different size
    k = (rng.standard_normal((T, H, D)) * scale).astype(np.float16).astype(np.float32)
    v = rng.standard_normal((T, H, D)).astype(np.float16).astype(np.float32)
    q = rng.standard_normal((N, Q, D)).astype(np.float32)
    return DumpLayer(index=0, k=k, v=v, q=q, window=None, scale=D**-0.5)


def test_f16_is_the_measure_of_all_and_has_error_zero(layer, backend):
    table = error_table([layer], parse_arms(["f16"]), backend)
    assert table.errors == {"f16": [0.0]}


def test_fewer_bits_are_a_larger_error(layer, backend):
    names = ["int8:bare", "q4_0:bare", "q2:bare"]
    table = error_table([layer], parse_arms(names), backend)
    errors = [table.errors[n][0] for n in names]
    assert errors == sorted(errors)
    assert errors[0] > 0
    assert table.bytes_per_cell == {"int8:bare": 264, "q4_0:bare": 144, "q2:bare": 80}


def test_the_error_is_that_of_the_stored_values_attended_in_float64(layer, backend):
    bench = LayerBench(layer, backend)
    arm = parse_arm("q4_0:bare")
    k, v = read_back(bench.stored(arm))
    expected = []
    for keys, values in ((k, v), (layer.k, layer.v)):
        out = np.zeros((N, Q, D))
        for t in range(N):
            end = T - N + t + 1
            for h in range(Q):
                s = keys[:end, h // 2].astype(np.float64) @ layer.q[t, h] * layer.scale
                p = np.exp(s - s.max())
                out[t, h] = p / p.sum() @ values[:end, h // 2]
        expected.append(out)
    # float32 sums over 200 cells against float64 ones.
    assert bench.error(arm) == pytest.approx(relative_rms(*expected), rel=1e-3)


def test_deferred_grouping_has_one_error_for_every_pattern_and_eager_has_not(layer, backend):
    found = append_table([layer], "q2k", backend)
    assert list(found) == list(RULES)
    # Cells after the last whole group of 32 are exact, so the patterns store the same bytes.
    assert len({found["deferred"][p][0] for p in PATTERNS}) == 1
    assert found["old"]["3-cell windows"] != found["old"]["one-shot"]
    assert found["old"]["prompt+decode"][0] > found["deferred"]["prompt+decode"][0]


def test_a_window_that_holds_everything_leaves_no_error_of_decode_steps(layer, backend):
    table = error_table([layer], parse_arms(["q2k:window=256"]), backend, reading="decode")
    # The overlay holds float16 of rotated values, the reference float16 of unrotated ones.
    assert table.errors["q2k:window=256"][0] < 2e-3


def test_an_arm_says_all_of_its_spec():
    spec = parse_arm("q2k:bare,window=64,sinks=4,k_gain=1.1").spec(2, 64)
    assert (spec.window, spec.sinks, spec.k_gain, spec.center_key) == (64, 4, 1.1, "none")
    spec = parse_arm("q4_0+q2c/kv:grouping=eager,rule=n").spec(2, 64)
    assert (spec.format.k.name, spec.format.v.name, spec.format.rotate) == ("q4_0", "q2c", "kv")
    assert (spec.grouping, spec.rule) == ("eager", "n")
    assert parse_arm("q2k").spec(2, 64).window == 128


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("q9", FormatError), ("q4_0+q9/kv", FormatError), ("sim:none", SettingError),
        ("q2k:window=many", SettingError), ("q2k:colour=red", SettingError),
        ("q2k:window", SettingError), ("q4_0+q4_0/sideways", FormatError),
    ],
)  # fmt: skip
def test_what_is_no_arm_is_refused(text, error):
    with pytest.raises(error):
        parse_arm(text)


def test_the_same_arm_twice_is_refused():
    with pytest.raises(SettingError, match="twice"):
        parse_arms(["q2k", "q4_0", "q2k"])


def test_a_calibrated_arm_needs_its_centre():
    arm = parse_arm("q2k:k_center=calibrated")
    with pytest.raises(SettingError, match="calibration"):
        arm.spec(2, 64)
    assert arm.spec(2, 64, np.ones((2, 64), np.float32)).center_key.startswith("calibrated:")


def test_affine_levels_are_at_most_half_a_step_off():
    x = np.random.default_rng(0).standard_normal((32, H, D)).astype(np.float32)
    low, high = x.min(0, keepdims=True), x.max(0, keepdims=True)
    step = (high - low) / 3
    # Half a step, and step and zero point rounded to float16 (2^-11 of each, three steps).
    bound = step / 2 + 2**-11 * (np.abs(low) + 4 * step) * 2
    assert (np.abs(affine(x, low, high, 2) - x) <= bound).all()


def test_placements_quantize_along_their_own_axis():
    x = np.zeros((64, 1, 64), np.float32)
    x[:32] = 1  # a step along cells is exact per channel
    np.testing.assert_array_equal(by_channel(x), x)
    y = np.zeros((64, 1, 64), np.float32)
    y[..., :32] = 1
    np.testing.assert_array_equal(by_cell(y), y)


def test_the_clipping_search_never_loses_to_no_clipping(layer):
    clip = clip_search(layer.k)
    plain, clipped = (
        np.square(y - layer.k).sum() for y in (by_cell(layer.k), by_cell(layer.k, clip))
    )
    assert clipped < plain


def test_reordered_channels_come_back_in_their_place(layer):
    order = channel_order(layer.k)
    rms = np.sqrt(np.square(layer.k).mean(0))
    assert (np.diff(np.take_along_axis(rms, order, 1), axis=1) >= 0).all()
    quantize, _ = SIMULATIONS["skvq"].fit(layer.k, layer.v)
    got = quantize(layer.k)
    assert relative_rms(got, layer.k) < relative_rms(by_cell(layer.k), layer.k)


def test_a_simulated_cache_keeps_its_open_group_exact(layer):
    cache = SimulatedCache(SIMULATIONS["kivi"])
    cache.append(layer.k[:50], layer.v[:50])
    for i in range(50, 70):
        cache.append(layer.k[i : i + 1], layer.v[i : i + 1])
    k, v = cache.read()
    np.testing.assert_array_equal(k[64:], layer.k[64:70])
    np.testing.assert_array_equal(k[:64], by_channel(layer.k[:64]))
    np.testing.assert_array_equal(v[:64], by_cell(layer.v[:64]))
    assert cache.nbytes == 64 * 2 * 2 * 24 + 6 * 2 * 2 * 128
