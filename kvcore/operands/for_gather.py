"""The operands of gather."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcore.errors import RangeError, message
from kvcore.operands.arrays import Arrays, is_host, shape_of
from kvcore.operands.tables import check_ids, table
from kvcore.pool import Pool


@dataclass(frozen=True, kw_only=True, eq=False)
class GatherCall:
    """Checked operands of gather: table i32[B, blocks], ids i32[B, N], batched as given."""

    table: Any
    ids: Any
    batched: bool


def gather(arrays: Arrays, pool: Pool, table_: Any, ids: Any) -> GatherCall:
    """Check the operands of gather; see :mod:`kvcore.ops.gather`."""
    op = "gather"
    rows = arrays.asarray(ids, "int", op, "ids")
    batched = len(rows.shape) == 2
    if len(rows.shape) == 1:
        rows = rows.reshape(1, rows.shape[0])
    shape_of(rows, op, "ids", "[N] or [B, N]", (None, None))
    t = table(arrays, op, pool, table_, rows.shape[0])
    if is_host(rows) and rows.size:
        cells = t.shape[1] * pool.layout.page_size
        check_ids(op, rows, 0, cells)
        if is_host(t):
            for b in range(rows.shape[0]):
                page = t[b][rows[b] // pool.layout.page_size]
                if (page < 0).any():
                    bad = int(rows[b][page < 0][0])
                    raise RangeError(
                        message(
                            op,
                            "a cell is not resident",
                            got=f"cell {bad}, page -1",
                            expected="resident pages",
                            fix="resolve and move it first",
                        )
                    )
    return GatherCall(table=t, ids=rows, batched=batched)
