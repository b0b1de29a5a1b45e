"""Write the golden sources anew: ``python tests/golden/update.py``; review its diff.

One file per op, format and target: what is generated between the preludes and the body, which are
in the repository as they are.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from kvcore.compiler.emit import emit  # noqa: E402
from kvcore.compiler.target import get_target  # noqa: E402
from kvcore.ops import declared  # noqa: E402

TARGETS = ("cuda", "metal", "opencl")
FORMATS = ("q2k", "int8")
_DIM = 128


def generated(text: str) -> str:
    """Return the generated header of a source: constants, tables, signatures, entries."""
    start = text.index('#line 1 "generated:')
    return text[start : text.index('#line 1 "kvcore/ops/', start)]


def golden() -> Iterator[tuple[Path, str]]:
    """Yield every golden file's path and what it must hold."""
    for target in TARGETS:
        suffix = get_target(target).suffix
        for op in declared():
            per_codec = declared()[op].per_codec and op != "move"
            for name in FORMATS if per_codec else ("",):
                label = f"{op}_{name}" if name else op
                text = emit(op, name or "q2k", target, head_dim=_DIM)
                yield HERE / target / f"{label}{suffix}", generated(text)


def difference(path: Path, text: str) -> str:
    """Return a unified diff from a golden file to a text, or "" if they are equal."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(
        old.splitlines(), text.splitlines(), f"golden/{path.relative_to(HERE)}", "now", lineterm=""
    )
    return "\n".join(lines)


if __name__ == "__main__":
    known = set()
    for file, wanted in golden():
        known.add(file)
        file.parent.mkdir(exist_ok=True)
        if shown := difference(file, wanted):
            print(shown)
            file.write_text(wanted, encoding="utf-8")
    for target in TARGETS:
        for file in (HERE / target).iterdir():
            if file not in known:
                print(f"removed {file.name}")
                file.unlink()
