"""The fast parity suite that ``bench.mutations`` runs: exits with 1 at the first difference.

The quick conformance kit for formats that between them have every codec kind, on MSL text and
CUDA text (unoptimized, so quickly built) and on OpenCL, then device-held operands and strides.
"""

from __future__ import annotations

import sys

import numpy as np

import kvcore
from kvcore.conformance.kit import all_cases, run_case
from kvcore.portable.backend import PortableBackend
from tests.portable import test_against_reference as suite
from tests.portable.conftest import CLASSES
from tests.shims.devices import open_device

FORMATS = ("q2k", "int8", "q8_0", "k4v4", "bf16", "q2", "k2cv1t")
FEW = ("q4_0", "k4v2c")
OPENCL = ("int8", "f16")


def backend(name: str) -> PortableBackend:
    """Return the backend of a test id."""
    from kvcore.dispatch import backend_class

    made: type = backend_class(CLASSES[name])
    opened: PortableBackend = made(open_device(name))
    return opened


def kit(name: str, formats: tuple[str, ...], quick: bool) -> None:
    """Run the kit until something differs."""
    be = backend(name)
    cases = [case for case in all_cases(formats, pairs=False) if case.quick or not quick]
    for case in sorted(cases, key=lambda case: case.op not in sys.argv[1:]):
        outcome = run_case(be, case)
        if outcome.status.red:
            where = f"{name}: {outcome.op} {outcome.format} {outcome.title}"
            stop(f"{where}: {outcome.detail.splitlines()[0]}")


def stop(text: str) -> None:
    """Say what differs and end."""
    print(text)
    sys.exit(1)


def held_operands(name: str) -> None:
    """A bad page is flagged and nothing is written; strided rows equal their copy."""
    from kvcore.errors import RangeError

    be = backend(name)
    layout = kvcore.CacheSpec(format="q2", n_kv_heads=2, head_dim=64, page_size=32).layout
    pool = be.pool(layout, 4)
    x = np.random.default_rng(0).standard_normal((40, 2, 128)).astype(np.float32)
    table = be.arrays.upload(np.array([0, 9], np.int32))
    positions = be.arrays.upload(np.arange(40, dtype=np.int32))
    be.append(pool, table, positions, x[..., :64], x[..., 64:])
    try:
        be.synchronize()
    except RangeError:
        if any(be.to_host(a).any() for a in pool.planes.values()):
            stop(f"{name}: a refused append wrote")
    else:
        stop(f"{name}: a page beyond the pool was taken")
    be.attention(x[:1, :, :64], pool, table, np.array([40], np.int32))
    try:
        be.synchronize()
    except RangeError:
        return
    stop(f"{name}: a page beyond the pool was read")


def against_reference(name: str) -> None:
    """What the kit does not ask."""
    be = backend(name)
    for what in (suite.rollback, suite.very_low):
        want, got = what(be)
        if not np.allclose(got, want, rtol=1e-4, atol=1e-4):
            stop(f"{name}: {what.__name__} differs")
    for plane, want, got in (*suite.centres(be), *suite.frozen(be)):
        if want.tobytes() != got.tobytes():
            stop(f"{name}: {plane} differs (a batch with centres, or a frozen group)")
    for what in (suite.verify_window, suite.strided, suite.odd_units):
        want, got = what(be)
        if want.tobytes() != got.tobytes():
            stop(f"{name}: {what.__name__} differs")
    try:
        for gain in (1.07, 1.1, 1.31):
            suite.test_a_frozen_group_is_encoded_against_the_scale_without_its_gain(be, gain)
    except AssertionError:
        stop(f"{name}: codes at the thresholds of a gained scale differ")


def main() -> None:
    held_operands("cuda-text")
    against_reference("cuda-text")
    kit("metal-text", FORMATS, quick=True)
    kit("cuda-text", FEW, quick=False)
    kit("opencl", OPENCL, quick=True)
    print("no difference")


if __name__ == "__main__":
    main()
