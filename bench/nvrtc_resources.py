"""Registers, stack and local memory of every op's CUDA program, by NVRTC; no GPU is needed.

    python -m bench.nvrtc_resources [--processes 2] > bench/results/nvrtc_resources.md

Every op of every format, head sizes 64, 128 and 256, with and without a state, for each
architecture. Exits with 1 if an entry is missing from a cubin or an entry spills.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import kvcore
from kvcore.compiler.emit import source_of
from kvcore.compiler.render import Source
from kvcore.ops import declared

ARCHITECTURES = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100")
DIMS = (64, 128, 256)
STATELESS = ("append", "attention")
_USAGE = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one entry takes: registers of a lane, bytes of stack and local memory."""

    entry: str
    registers: int
    stack: int
    local: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """One program; ops that depend on no codec have the format "any"."""

    op: str
    format: str
    dim: int
    stateless: bool

    def source(self) -> Source:
        name = "q2k" if self.format == "any" else self.format
        spec = kvcore.CacheSpec(format=name, n_kv_heads=2, head_dim=self.dim)
        return source_of(self.op, spec, "cuda", 8, stateless=self.stateless)


def jobs(formats: list[str], dims: tuple[int, ...] = DIMS) -> Iterator[Job]:
    """Yield every program whose text differs."""
    seen = set()
    for op in declared():
        for name in formats if declared()[op].per_codec and op != "move" else ["any"]:
            for dim in dims:
                for stateless in (False, True) if op in STATELESS else (False,):
                    job = Job(op=op, format=name, dim=dim, stateless=stateless)
                    key = job.source().key
                    if key not in seen:
                        seen.add(key)
                        yield job


def find_cuobjdump() -> str | None:
    """Return NVIDIA's tool from its wheel or the PATH."""
    bundled = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/cuobjdump"))
    return str(bundled[0]) if bundled else shutil.which("cuobjdump")


def resources(cubin: bytes, tool: str) -> list[Usage]:
    """Return what every entry of a cubin takes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run(
            [tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    return [
        Usage(entry=name, registers=int(reg), stack=int(stack), local=int(local))
        for name, reg, stack, local in _USAGE.findall(shown)
    ]


def measure(work: tuple[Job, str]) -> tuple[Job, str, list[Usage], list[str]]:
    """Compile one program for one architecture; return its usage and missing entries."""
    from kvcore.backends.cuda.nvrtc import load_nvrtc

    job, architecture = work
    source = job.source()
    cubin = load_nvrtc().compile(source, architecture)
    missing = [s for s in source.entries if f".text.{s}".encode() not in cubin]
    tool = find_cuobjdump()
    assert tool is not None
    return job, architecture, resources(cubin, tool), missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--format", action="append", help="only this format")
    parser.add_argument("--dim", type=int, action="append")
    options = parser.parse_args()
    from kvcore.backends.cuda.nvrtc import load_nvrtc

    if find_cuobjdump() is None:
        print("cuobjdump is missing: pip install nvidia-cuda-cuobjdump", file=sys.stderr)
        return 2
    chosen = list(jobs(options.format or list(kvcore.formats()), tuple(options.dim or DIMS)))
    work = [(job, a) for job in chosen for a in ARCHITECTURES]
    most: dict[tuple[str, str], dict[str, int]] = {}
    faults = []
    with multiprocessing.Pool(options.processes) as pool:
        for done, (job, architecture, found, missing) in enumerate(
            pool.imap_unordered(measure, work, chunksize=4), start=1
        ):
            if done % 50 == 0:
                print(f"{done} of {len(work)}", file=sys.stderr, flush=True)
            for usage in found:
                row = most.setdefault((job.op, usage.entry), {})
                row[architecture] = max(row.get(architecture, 0), usage.registers)
                if usage.stack or usage.local:
                    faults.append(f"{job} {architecture} {usage}")
            faults += [f"{job} {architecture} lacks {name}" for name in missing]
    report(most, faults, len(chosen), load_nvrtc().version)
    return 1 if faults else 0


def report(
    most: dict[tuple[str, str], dict[str, int]],
    faults: list[str],
    n_programs: int,
    version: tuple[int, int],
) -> None:
    """Print the table."""
    formats = len(list(kvcore.formats()))
    print("# Registers of the portable bodies on CUDA\n")
    print(
        f"NVRTC {version[0]}.{version[1]}; {n_programs} programs (every op, {formats} formats,"
        f" head sizes {', '.join(map(str, DIMS))}, with and without a state) for "
        f"{len(ARCHITECTURES)} architectures, 2 KV heads and 8 query heads. The most registers a "
        "lane of any of them takes. Made by `python -m bench.nvrtc_resources`.\n"
    )
    print(f"Entries missing or spilling (LOCAL or STACK above 0): {len(faults)}\n")
    for fault in faults:
        print(f"- {fault}")
    print("| op | entry | " + " | ".join(ARCHITECTURES) + " |")
    print("|---|---|" + "---:|" * len(ARCHITECTURES))
    for (op, entry), row in sorted(most.items()):
        print(
            f"| {op} | {entry} | " + " | ".join(str(row.get(a, "")) for a in ARCHITECTURES) + " |"
        )


if __name__ == "__main__":
    sys.exit(main())
