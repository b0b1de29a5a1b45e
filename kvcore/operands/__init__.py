"""Operands of every op: brought to one batched form and checked before anything is written.

The only place where messages about operands are composed. Host values are checked for range;
values held by a device are never looked at: a bad row is skipped there and raises a sticky flag.
"""

from __future__ import annotations

from kvcore.operands.arrays import HOST, Arrays, HostArrays, is_host, put, rank4, shape_of
from kvcore.operands.for_append import AppendCall, append
from kvcore.operands.for_attention import AttentionCall, attention
from kvcore.operands.for_gather import GatherCall, gather
from kvcore.operands.tables import check_ids, check_state, pages, table

__all__ = [
    "HOST",
    "AppendCall",
    "Arrays",
    "AttentionCall",
    "GatherCall",
    "HostArrays",
    "append",
    "attention",
    "check_ids",
    "check_state",
    "gather",
    "is_host",
    "pages",
    "put",
    "rank4",
    "shape_of",
    "table",
]
