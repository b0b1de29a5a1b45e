"""The seeded faults of ``bench.mutations``: each replaces one text of one file."""

# ruff: noqa: E501  a fault quotes the line it replaces

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One fault: `old` becomes `new` in a file.

    Attributes
    ----------
    name : str
    file : str
    old, new : str
        `old` occurs once, or `nth` says which occurrence is meant.
    why : str
        For one that is expected to survive: why no answer can show it.
    """

    name: str
    file: str
    old: str
    new: str
    nth: int = 0
    why: str = ""


def _op(name: str, file: str, old: str, new: str, nth: int = 0, why: str = "") -> Mutation:
    return Mutation(name=name, file=f"kvcore/ops/{file}", old=old, new=new, nth=nth, why=why)


def _in(name: str, file: str, old: str, new: str, nth: int = 0, why: str = "") -> Mutation:
    return Mutation(name=name, file=file, old=old, new=new, nth=nth, why=why)


MUTATIONS = (
    _op("swapped nibble", "codec.h", "GROUP(s) / 2 ? 4 : 0;", "GROUP(s) / 2 ? 0 : 4;"),
    _op("fields from the top", "codec.h", "return d % PER_BYTE(s) * BITS(s);",
        "return (PER_BYTE(s) - 1 - d % PER_BYTE(s)) * BITS(s);"),
    _op("wrong group of a scale", "codec.h", "(DIM(s) / GROUP(s)) + d / GROUP(s)",
        "(DIM(s) / GROUP(s)) + d % GROUP(s) / GROUP(s)"),
    _op("half away instead of half even", "codec.h", "kc_rint(kc_div(x, scale))",
        "(f32)(i32)(kc_div(x, scale) + (x < 0.0f ? -0.5f : 0.5f))"),
    _op("half even instead of half away", "codec.h",
        "code += kc_abs(y - (f32)code) >= 0.5f ? (y < 0.0f ? -1 : 1) : 0;",
        "code = (i32)kc_rint(y);"),
    _op("thresholds closed below", "codec.h", "x > threshold_of(s, i) * scale",
        "x >= threshold_of(s, i) * scale"),
    _op("no saturation in float16", "codec.h", "(h & 0x7fffu) == 0x7c00u", "(h & 0x7fffu) == 0u"),
    _op("bfloat16 truncates", "codec.h", "(u + 0x7fffu + ((u >> 16) & 1u)) >> 16", "u >> 16"),
    _op("an RMS may overflow", "codec.h",
        "return kc_min(kc_sqrt(kc_div(squares, (f32)n)), kc_as_f32(0x7f7fffffu));",
        "return kc_sqrt(kc_div(squares, (f32)n));"),
    _op("gain not rounded back", "codec.h", "kc_h2f(to_f16(kc_div(stored, gain)))",
        "kc_div(stored, gain)"),
    _op("NaN codes clamp to the bottom", "codec.h", "y < -1024.0f ? -1024.0f : 0.0f", "-1024.0f",
        why="a group that holds a NaN stores zero codes whatever this gives"),
    _op("reciprocal of the stored scale", "rows.h",
        "const f32 against = STORED(s) ? kc_h2f(stored) : exact;",
        "const f32 against = kc_h2f(stored);"),
    _op("a tie takes the first", "rows.h", "} else if (x == largest && largest > 0.0f) {",
        "} else if (0) {"),
    _op("squares summed downwards", "rows.h",
        "for (i32 d = first; d < end; d++) {\n        const f32 x = encoded_value(s, from, cell, head, d);\n        finite",
        "for (i32 d = end - 1; d >= first; d--) {\n        const f32 x = encoded_value(s, from, cell, head, d);\n        finite"),
    _op("non-finite groups keep their codes", "rows.h",
        "(finite ? code_of(s, x, against) : zero_code(s))", "code_of(s, x, against)"),
    _op("scale of the next group", "rows.h",
        "into.scales[row * (DIM(s) / GROUP(s)) + group]",
        "into.scales[row * (DIM(s) / GROUP(s)) + (group + 1) % (DIM(s) / GROUP(s))]"),
    _op("sinks count in their group's scale", "groups.h", "if (c >= skip)", "if (c >= 0)"),
    _op("group divided by 32 with sinks", "groups.h", "root_mean(squares, GROUP_CELLS - skip)",
        "root_mean(squares, GROUP_CELLS)"),
    _op("stale scale of a frozen group", "groups.h",
        "ungained(kc_h2f(into.scales[line * DIM(s) + d]), gain)",
        "kc_h2f(into.scales[line * DIM(s) + d])"),
    _op("shrink forgets the cells to come", "groups.h",
        "squares + (f32)(GROUP_CELLS - n) * (prior * prior)", "squares + prior * prior"),
    _op("scale row of the wrong unit", "cells.h", "(page / unit_pages) * n_heads + head",
        "(page / (unit_pages + 1)) * n_heads + head"),
    _op("scale row of a long page", "cells.h", "+ cell % page_size / GROUP_CELLS;", ";"),
    _op("code row forgets the head", "cells.h", "((i64)page * n_heads + head) * page_size",
        "((i64)page * n_heads) * page_size"),
    _op("ring off by one", "cells.h", "sinks + cell % ring;", "sinks + (cell + 1) % ring;"),
    _op("dropped sinks", "cells.h", "if (cell < sinks)\n        return 1;",
        "if (cell < sinks)\n        return 0;"),
    _op("window off by one", "cells.h", "cell >= length - window ||", "cell > length - window ||"),
    _op("ring read before it was filled", "cells.h", "&& cell >= marks[RING_LO(s)];", ";"),
    _op("frontier ignored by readers", "cells.h", " || cell >= marks[FRONTIER(s)])", ")"),
    _op("page beyond the pool is read", "cells.h", "(page < n_pages ? page : BAD_PAGE)", "page"),
    _op("centre subtracted twice rounded", "fresh.h",
        "x = x - kc_h2f(from.centre[((i64)from.b * from.n_heads + head) * K_DIM + d]);",
        "x = kc_h2f(to_f16(x - kc_h2f(from.centre[((i64)from.b * from.n_heads + head) * K_DIM + d])));"),
    _op("centre of the first sequence", "fresh.h",
        "from.centre[((i64)from.b * from.n_heads + head) * K_DIM + d]",
        "from.centre[(i64)head * K_DIM + d]"),
    _op("delayed cells encode from float32", "fresh.h", "x = kc_h2f(to_f16(x));", ";"),
    _op("padding is counted", "append.c", "source[b * n_tokens + before] = t;",
        "source[b * n_tokens + before] = before;"),
    _op("of equal positions the first wins", "append.c",
        "for (i32 t = index + 1; t < n_tokens; t++)", "for (i32 t = 0; t < index; t++)"),
    _op("centre counts the sinks", "append.c",
        "for (i32 cell = sinks; cell < CENTER_CELLS; cell++) {",
        "for (i32 cell = 0; cell < CENTER_CELLS; cell++) {"),
    _op("drafts are final", "append.c", "(draft ? old[COMMITTED] : length)", "length"),
    _op("frontier goes back", "append.c",
        "row[FRONTIER(s)] = grown > old[FRONTIER(s)] ? grown : old[FRONTIER(s)];",
        "row[FRONTIER(s)] = grown;"),
    _op("ring mark forgotten", "append.c",
        "row[RING_LO(s)] = lost > old[RING_LO(s)] ? lost : old[RING_LO(s)];",
        "row[RING_LO(s)] = old[RING_LO(s)];"),
    _op("exact slot of a cell that left", "append.c",
        "if (cell >= sinks && cell < row[LENGTH] - ring)\n        return;", ";"),
    _op("a table's page is trusted", "append.c", "if (!has_place(", "if (0 && !has_place("),
    _op("missing barrier of plan", "append.c", "    lasts[lane] = last;\n    KC_BARRIER();",
        "    lasts[lane] = last;"),
    _op("causal mask off by one", "attention.c", "lengths[b] - (n_tokens - 1 - t)",
        "lengths[b] - (n_tokens - 2 - t)"),
    _op("maximum starts at zero", "attention.c", "f32 m = LOWEST, l = 0.0f;",
        "f32 m = 0.0f, l = 0.0f;"),
    _op("sums are not rescaled", "attention.c", "l = l * shrinks[lane] + total;", "l = l + total;"),
    _op("output is not rescaled", "attention.c", "f32 sum = acc[i] * shrinks[ROW_OF(i)];",
        "f32 sum = acc[i];"),
    _op("masked cells weigh one", "attention.c", "kc_exp(weights[i] - tops[i / TILE]) : 0.0f;",
        "kc_exp(weights[i] - tops[i / TILE]) : 1.0f;"),
    _op("K's centre is left out", "attention.c", "if (CENTRE && where[c] == BULK)",
        "if (0 && where[c] == BULK)"),
    _op("query head of another KV head", "attention.c",
        "const i32 first_query = head * GROUP_HEADS + chunk * HEADS;",
        "const i32 first_query = chunk * n_heads + head;"),
    _op("merge forgets a split", "attention.c", "for (i32 p = 0; p < n_splits; p++) {",
        "for (i32 p = 0; p < n_splits - (n_splits > 1); p++) {", nth=1),
    _op("soft cap before the scale", "attention.c", "capped(dot * scale, softcap)",
        "capped(dot, softcap) * scale"),
    _op("window limit off by one", "attention.c", "length - limit : 0;", "length - limit + 1 : 0;"),
    _op("missing barrier after the keys", "attention.c",
        "        KC_BARRIER();\n        for (i32 i = lane; i < mine * TILE; i += 64) {\n            const i32 r",
        "        for (i32 i = lane; i < mine * TILE; i += 64) {\n            const i32 r"),
    _op("gather reads K for V", "gather.c",
        "value = to_f16(bulk_value(1, v_codes, v_scales, row, line, d));",
        "value = to_f16(bulk_value(1, v_codes, k_scales, row, line, d));"),
    _op("restore forgets the centre", "restore.c", "if (CENTRE)", "if (0)"),
    _op("restore starts one cell late", "restore.c",
        "const i32 held = n - window > sinks ? n - window : sinks;",
        "const i32 held = n - window > sinks ? n - window + 1 : sinks;"),
    _op("move drops the last bytes", "move.c", "word * 4 + i < unit_bytes", "word * 4 + 4 <= unit_bytes"),
    _op("resolve evicts what it just placed", "resolve.c", "slot_stamp[slot] = epoch;\n        slot_ref",
        "slot_ref"),
    _op("resolve's hand starts anew", "resolve.c", "ctl[HAND] = hand;", "ctl[HAND] = 0;"),
    _op("ring table ignores the unit", "ring_table.c", "b / unit % (n_slots / unit) * unit + b % unit",
        "b % n_slots"),
    _op("missing rotation step", "rotate.c", "step < BLOCK; step *= 2", "step < BLOCK / 2; step *= 2"),
    _op("rotation is not scaled", "rotate.c", "values[i] = x[at + i] * SCALE;", "values[i] = x[at + i];"),
    _op("missing barrier of rotate", "rotate.c",
        "step *= 2) {\n        KC_BARRIER();", "step *= 2) {"),
    _op("ties go to the higher block", "select.c", "for (i32 i = 0; i < lane; i++) {",
        "for (i32 i = 63; i > lane; i--) {"),
    _op("NaN scores highest", "select.c", "if ((bits & 0x7fffffffu) > 0x7f800000u)\n        return 0u;",
        "if ((bits & 0x7fffffffu) > 0x7f800000u)\n        return 0xffffffffu;"),
    _in("float16 rounds half up", "kvcore/compiler/common.h", "0x0fffu + ((bits >> 13) & 1u)", "0x1000u"),
    _in("float16 subnormals flushed", "kvcore/compiler/common.h", "if (bits < 0x33000000u)",
        "if (bits < 0x38800000u)"),
    _in("exp's range reduction", "kvcore/compiler/common.h", "n * -2.12194440e-4f;\n    f32 p", "n * 0.0f;\n    f32 p"),
    _in("division by a reciprocal", "backends/sycl/prelude.h", "return a / b;", "return a * (1.0f / b);"),
    _in("contraction in the prelude", "backends/sycl/prelude.h", "FP_CONTRACT OFF", "FP_CONTRACT ON"),
    _in("packed inputs by their shape", "kvcore/portable/arrays.py",
        "kinds[tensor.dtype] == 0 and tensor.contiguous", "kinds[tensor.dtype] == 0"),
    _in("kept integers by shape alone", "kvcore/portable/engine.py", "(data.shape, data.tobytes())",
        "(data.shape, data.tobytes()[:4])"),
    _in("too few groups launched", "kvcore/portable/append.py", "1 + -(-(self.steps + opened) // GROUP_CELLS)",
        "-(-(self.steps + opened) // GROUP_CELLS)",
        why="the count is an upper bound: one more than any call can complete"),
    _in("splits of the longest context", "kvcore/portable/attention.py", "call.lengths.max(initial=0)",
        "call.lengths.min(initial=2**30)"),
    _in("V's gain is K's", "kvcore/ops/append.c",
        "write_group(1, FROM(1), INTO(1), first, head, column, 1.0f, 0);",
        "write_group(1, FROM(1), INTO(1), first, head, column, gain, 0);"),
)  # fmt: skip
