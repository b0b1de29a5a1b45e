"""Seeded faults in bodies, preludes and portable host code: does the parity suite find them?

    python -m bench.mutations [--only NAME] [--list] > bench/results/mutations.md

Each mutation replaces one text in a private copy of the package and runs ``bench.parity`` there:
the quick conformance kit on CUDA and MSL text and on OpenCL, plus device-held operands and bits.
Exits with 1 if fewer than 90 % are caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.faults import MUTATIONS, Mutation
from kvcore.ops import declared

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("kvcore", "backends", "tests", "bench")
ENOUGH = 0.9
TIMEOUT_S = 900


def apply(mutation: Mutation, root: Path) -> None:
    """Write the fault into a copy; raises ValueError if its place is not found."""
    path = root / mutation.file
    text = path.read_text(encoding="utf-8")
    found = text.count(mutation.old)
    if found <= mutation.nth:
        raise ValueError(f"{mutation.name}: {mutation.old!r} occurs {found} times")
    parts = text.split(mutation.old)
    head = mutation.old.join(parts[: mutation.nth + 1])
    tail = mutation.old.join(parts[mutation.nth + 1 :])
    path.write_text(head + mutation.new + tail, encoding="utf-8")


def first(mutation: Mutation | None) -> list[str]:
    """Return the ops that a fault concerns, to be looked at first."""
    name = "" if mutation is None else Path(mutation.file).stem
    owners = {"rows": "append", "groups": "append", "fresh": "append"}
    found = owners.get(name, name)
    return [found] if found in declared() else []


def run(mutation: Mutation | None) -> tuple[bool, str, float]:
    """Return whether the suite found a fault, its first line about it, and seconds."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("results"))
        if mutation is not None:
            apply(mutation, root)
        environment = {**os.environ, "PYTHONPATH": str(root), "KVCORE_CACHE": str(root / "cache")}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "bench.parity", *first(mutation)],
                cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return True, "did not end", time.monotonic() - start
    said = (done.stdout.strip() or done.stderr.strip()).splitlines() or [""]
    return done.returncode != 0, said[-1][:160], time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="only this mutation")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.only or m.name in options.only]
    if options.list:
        print("\n".join(m.name for m in chosen))
        return 0
    found, said, _ = run(None)
    if found:
        print(f"the suite fails without a fault: {said}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(options.processes) as pool:
        results = []
        for mutation, result in zip(chosen, pool.map(run, chosen), strict=True):
            print(mutation.name, result, file=sys.stderr, flush=True)
            results.append((mutation, *result))
    caught = sum(found for _, found, _, _ in results)
    print("# Seeded faults\n")
    share = f"{caught} of {len(results)} caught ({caught / len(results):.0%})"
    print(f"{share}. Made by `python -m bench.mutations`.\n")
    print("| fault | file | result | by |\n|---|---|---|---|")
    for m, found, said, _ in results:
        by = said.replace("|", "\\|") if found else m.why or "not explained"
        print(f"| {m.name} | {m.file} | {'caught' if found else 'survived'} | {by} |")
    return 0 if caught >= ENOUGH * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
