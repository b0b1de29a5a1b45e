"""resolve and select: which units to bring in, and which cells to attend over."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvcore.residency import HAND

from .jit import inner, kernel

LANES = 16
"""Blocks scored side by side."""

CLAIMED = -2
"""Table entry of a unit that is missing and already listed."""


@kernel
def find_missing(
    table: Any, stamp: Any, ref: Any, ids: Any, unit_cells: Any, epoch: Any, missing: Any
) -> tuple[Any, Any]:
    """Mark the units that are resident as used; list the others once.

    Parameters
    ----------
    table : i32[n_units]
        Entries of missing units become CLAIMED.
    stamp, ref : i32[n_slots]
    ids : i32[n_q, cap]
    unit_cells, epoch : int
    missing : i64[n_units]
        Written.

    Returns
    -------
    found, lookups : int
    """
    found = lookups = 0
    for q in range(ids.shape[0]):
        last = np.int64(-1)
        for i in range(ids.shape[1]):
            if ids[q, i] < 0:
                continue
            unit = np.int64(ids[q, i]) // unit_cells
            if unit == last:
                continue
            last = unit
            lookups += 1
            slot = table[unit]
            if slot >= 0:
                stamp[slot] = epoch
                ref[slot] = 1
            elif slot != CLAIMED:
                table[unit] = CLAIMED
                missing[found] = unit
                found += 1
    return found, lookups


@kernel
def place(
    table: Any, unit_of: Any, stamp: Any, ref: Any, ctl: Any, missing: Any, epoch: Any, placed: Any
) -> Any:
    """Give slots to missing units, second chance first; return how many were placed.

    Parameters
    ----------
    table : i32[n_units]
    unit_of, stamp, ref : i32[n_slots]
    ctl : i32[16]
        Its hand moves.
    missing : i64[n]
    epoch : int
    placed : i32[n, 2]
        Written: unit, slot.
    """
    n_slots, done, hand = unit_of.size, 0, np.int64(ctl[HAND])
    for _ in range(3 * n_slots):
        if done == missing.size:
            break
        slot = hand
        hand = (hand + 1) % n_slots
        if stamp[slot] == epoch:
            continue
        old = unit_of[slot]
        if old >= 0 and ref[slot]:
            ref[slot] = 0
            continue
        unit = missing[done]
        if old >= 0:
            table[old] = -1
        table[unit] = slot
        unit_of[slot] = unit
        stamp[slot] = epoch
        ref[slot] = 1
        placed[done, 0], placed[done, 1] = unit, slot
        done += 1
    for i in range(done, missing.size):
        table[missing[i]] = -1
    ctl[HAND] = hand
    return done


@inner()
def _score_lanes(keys: Any, first: Any, n: Any, q: Any, lanes: Any, dots: Any, total: Any) -> None:
    """Score n blocks side by side: heads in order, each dot in ascending order."""
    for j in range(n):
        for e in range(keys.shape[1]):
            lanes[e, j] = keys[first + j, e]
    total[:] = np.float32(0)
    for head in range(q.shape[0]):
        dots[:] = np.float32(0)
        for e in range(q.shape[1]):
            x = q[head, e]
            for j in range(LANES):
                dots[j] = dots[j] + lanes[e, j] * x
        for j in range(LANES):
            d = dots[j]
            total[j] = total[j] + (np.float32(0) if d < 0 else d)


@kernel
def score_blocks(keys: Any, q: Any, scores: Any) -> None:
    """Write sum over heads of max(0, <keys[b], q[head]>) for every block.

    Parameters
    ----------
    keys : f32[blocks, E]
    q : f32[heads, E]
    scores : f32[blocks]
        Written.
    """
    lanes = np.zeros((keys.shape[1], LANES), np.float32)
    dots, total = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    for first in range(0, scores.size, LANES):
        n = min(LANES, scores.size - first)
        _score_lanes(keys, first, n, q, lanes, dots, total)
        for j in range(n):
            scores[first + j] = total[j]
