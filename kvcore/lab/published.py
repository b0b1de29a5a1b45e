"""The published figures of the public engine Strata, to be printed beside measured ones.

Another and far larger model (2 KV heads of 256, 864 real cells, readers not described), so only
order and ratios can be compared, never the values.
"""

from __future__ import annotations

SOURCE = (
    "Source: the texts of the pull request that adds 2-bit formats to the public engine Strata "
    "(Niko1221/Strata) and of its issues; that code is not in the public tree."
)
"""Printed under every table of published figures."""

ERROR_ARMS = ("q4_0:bare", "q2k:bare", "k4v2c:bare", "q2:bare")

ERROR: dict[str, tuple[float, tuple[float, ...]]] = {
    "L3": (5.8, (0.888, 1.911, 3.171, 3.508)),
    "L11": (5.9, (0.740, 2.002, 2.589, 3.471)),
    "L23": (14.2, (0.941, 2.211, 2.768, 3.655)),
    "L47": (74.9, (1.040, 1.645, 2.663, 2.948)),
}
"""Layer: channel spread of K, then the error in per cent of each of ERROR_ARMS."""

ERROR_EXTRAS = {"k2cv2t:bare": 5.188, "k2cv1c:bare": 9.7, "k2cv1t:bare": 14.4}
"""Further arms at L3, in per cent."""

APPEND_RULES = ("old", "n", "shrink")

APPEND: dict[str, tuple[float, tuple[float, ...], tuple[float, ...], float]] = {
    "L3": (1.910, (1.978, 1.912, 1.892), (3.631, 2.076, 2.186), 1.910),
    "L11": (2.002, (2.030, 2.011, 2.012), (3.617, 2.727, 2.626), 2.002),
    "L23": (2.211, (2.895, 2.667, 2.245), (3.767, 2.509, 2.161), 2.211),
    "L47": (1.648, (1.457, 1.799, 1.720), (1.438, 1.346, 1.803), 1.648),
}
"""Layer: one-shot, 3-cell windows by rule, 100-cell chunks by rule, prompt + decode; per cent."""

DECODE_KL = {
    "q4_0": 0.0198,
    "q4_0 + window 128": 0.0174,
    "q2k": 0.1825,
    "q2k + window 128": 0.2060,
    "q2k + window 128 + gain 1.10": 0.1338,
    "q2k + window 256 + gain 1.10": 0.1203,
}
"""Nine texts, 128 forced tokens, nats."""

GAIN_SWEEP = {1.03: -9, 1.05: -15, 1.08: -26, 1.10: -30, 1.13: -29}
"""Change of the KL of q2k with window 128 by the gain, per cent."""
