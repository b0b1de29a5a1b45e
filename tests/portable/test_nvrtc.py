"""Every program compiles for every CUDA architecture, defines its entries and spills nothing.

A run takes one format of each kind, one head size and all five architectures in turn, about 40 s;
KVCORE_CHECK=full takes all of it (``python -m bench.nvrtc_resources`` prints the same as a table).
"""

from __future__ import annotations

import os

import pytest
from kvcore.backends.cuda.nvrtc import load_nvrtc

import kvcore
from bench.nvrtc_resources import ARCHITECTURES, DIMS, Job, find_cuobjdump, jobs, resources
from kvcore.errors import BackendUnavailable, BuildError
from kvcore.ops import declared

FULL = os.environ.get("KVCORE_CHECK") == "full"
SOME = ("k2cv1t", "k4v4", "f16")
CHOSEN = (
    [(job, a) for job in jobs(list(kvcore.formats())) for a in ARCHITECTURES]
    if FULL
    else [
        (job, ARCHITECTURES[i % len(ARCHITECTURES)])
        for i, job in enumerate(jobs(list(SOME), (128,)))
    ]
)


def _label(work: tuple[Job, str]) -> str:
    job, architecture = work
    return f"{job.op}-{job.format}-{job.dim}-{'bare' if job.stateless else 'state'}-{architecture}"


@pytest.mark.long
@pytest.mark.parametrize("work", CHOSEN, ids=_label)
def test_entries_exist_and_nothing_spills(work: tuple[Job, str]) -> None:
    job, architecture = work
    try:
        nvrtc = load_nvrtc()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    source = job.source()
    try:
        cubin = nvrtc.compile(source, architecture)
    except BuildError as error:
        if "invalid value for --gpu-architecture" in error.log:
            pytest.skip(f"NVRTC {nvrtc.version} has no {architecture}")
        raise
    assert [s for s in source.entries if f".text.{s}".encode() not in cubin] == []
    tool = find_cuobjdump()
    if tool is None:
        pytest.skip("cuobjdump is not installed; the entries were found")
    found = resources(cubin, tool)
    assert {u.entry for u in found} == set(source.entries)
    assert [u for u in found if u.stack or u.local] == []
    assert max(u.registers for u in found) <= 255


def test_the_whole_list_covers_every_op_codec_and_head_size() -> None:
    every = list(jobs(list(kvcore.formats())))
    assert {job.op for job in every} == set(declared())
    for op in declared():
        if declared()[op].per_codec and op != "move":
            mine = {(job.format, job.dim) for job in every if job.op == op}
            assert mine == {(f, d) for f in kvcore.formats() for d in DIMS}
