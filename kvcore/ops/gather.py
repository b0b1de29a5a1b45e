"""gather: chosen cells of the bulk as float16."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore import operands
from kvcore.addressing import read_bulk
from kvcore.numerics import F16, to_f16
from kvcore.ops import Arg, Op
from kvcore.pool import Pool


def gather(pool: Pool, table: Any, ids: Any) -> tuple[F16, F16]:
    """Read cells from the bulk, in the stored basis, centred as stored.

    Parameters
    ----------
    pool : Pool
    table : i32[B, blocks]
    ids : i32[N] or i32[B, N]
        Cells in any order, repeats allowed.

    Returns
    -------
    k : f16[N, H, Dk] or f16[B, N, H, Dk]
    v : f16[N, H, Dv] or f16[B, N, H, Dv]

    Raises
    ------
    RangeError
        If an id is out of range or its page is not resident.

    Notes
    -----
    Rounding: float32(level * scale), then float16 to nearest even, saturating at 65504.
    """
    call = operands.gather(operands.HOST, pool, table, ids)
    out = []
    for store in ("k", "v"):
        rows = [read_bulk(pool, store, t, i) for t, i in zip(call.table, call.ids, strict=True)]
        values = to_f16(np.stack(rows))
        out.append(values if call.batched else values[0])
    return out[0], out[1]


OP = Op(
    name="gather",
    version=1,
    args=(
        Arg(name="pool", what="Pool"),
        Arg(name="table", what="i32[B, blocks]"),
        Arg(name="ids", what="i32[B, N]"),
    ),
    returns="f16[B, N, H, Dk], f16[B, N, H, Dv]",
    reference=gather,
    per_codec=True,
)
