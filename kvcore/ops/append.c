/* append: plan -> fix_centre -> rows, groups -> exact. No two workers write one byte. */
#include "codec.h"
#include "cells.h"

#define MAX_DRAFT 17

/* The float32 of a new cell of store s, or of an old one from its exact slot. `source` lists the
   tokens of a sequence that are no padding. */
KC_FN f32 cell_value(const i32 s, const i32 b, const i32 cell, const i32 head, const i32 d,
                     KC_GLOBAL const f32 *fresh, KC_GLOBAL const f16 *slots,
                     KC_GLOBAL const i32 *source, const i32 start, const i32 n_tokens,
                     const i32 n_heads, const i32 n_slots, const i32 sinks, const i32 ring)
{
    if (cell >= start) {
        const i64 token = (i64)b * n_tokens + source[b * n_tokens + cell - start];
        return fresh[(token * n_heads + head) * DIM(s) + d];
    }
    const i64 slot = (i64)b * n_slots + exact_slot(cell, sinks, ring);
    return kc_h2f(slots[(slot * n_heads + head) * DIM(s) + d]);
}

/* One lane a sequence: which tokens count, and the marks after the call. A sequence that the call
   would break is left as it is, and says so. */
KC_ENTRY(plan)
{
    const i32 b = gx * 64 + lane;
    if (b >= n_sequences)
        return;
    KC_GLOBAL i32 *row = next + b * N_MARKS;
    const i32 every = n_sequences * n_tokens;
    i32 n = 0, bad = 0, begin = has_state ? marks[b * N_MARKS + LENGTH] : 0;
    for (i32 t = 0; t < n_tokens; t++) {
        const i32 cell = positions[b * n_tokens + t];
        source[every + b * n_tokens + t] = t;
        if (cell == -1)
            continue;
        if (!has_state && n == 0)
            begin = cell;
        if (cell < 0 || cell / page_size >= n_pages_each)
            bad = 1;
        else if (table[b * n_pages_each + cell / page_size] < 0)
            bad = 1;
        if (needs_run && cell != begin + n)
            bad = 1;
        source[b * n_tokens + n] = t;
        n += 1;
    }
    starts[b] = begin;
    counts[b] = bad && (needs_run || has_state) ? 0 : n;
    if (has_state) {
        KC_GLOBAL const i32 *old = marks + b * N_MARKS;
        i32 length = begin + n;
        i32 committed = has_commit ? commit[b] : (draft ? old[COMMITTED] : length);
        if (!has_commit && n > 0 && !draft && begin > old[COMMITTED])
            bad = 1;
        if (committed < old[COMMITTED] || committed > length || length - committed > MAX_DRAFT)
            bad = 1;
        if (bad) {
            counts[b] = 0;
            length = begin;
            committed = old[COMMITTED];
        }
        row[COMMITTED] = committed;
        row[LENGTH] = length;
        row[CENTRED] = old[CENTRED] || (CENTER_CELLS > 0 && committed >= CENTER_CELLS) ? 1 : 0;
        row[FLAG] = old[FLAG] | bad;
        for (i32 s = 0; s < 2; s++) {
            const i32 pending = s == 0 && CENTER_CELLS > 0 && !row[CENTRED];
            const i32 waits = DEFERRED && PER_CHANNEL(s);
            const i32 whole = committed / GROUP_CELLS * GROUP_CELLS;
            const i32 grown = pending ? 0 : (waits ? whole : EVERYTHING);
            const i32 lost = length - (s == 0 ? k_ring : v_ring);
            row[FRONTIER(s)] = grown > old[FRONTIER(s)] ? grown : old[FRONTIER(s)];
            row[RING_LO(s)] = lost > old[RING_LO(s)] ? lost : old[RING_LO(s)];
        }
    }
    if (bad)
        errors[0] = 1;
}

/* One lane a channel: the mean of cells sinks .. CENTER_CELLS, once, when they are all final. */
KC_ENTRY(fix_centre)
{
    const i32 channel = gx * 64 + lane;
    const i32 b = gy;
    if (channel >= n_heads * K_DIM)
        return;
    if (marks[b * N_MARKS + CENTRED] || !next[b * N_MARKS + CENTRED])
        return;
    f32 total = 0.0f;
    for (i32 cell = sinks; cell < CENTER_CELLS; cell++) {
        const f32 x = cell_value(0, b, cell, channel / K_DIM, channel % K_DIM, k, k_slots, source,
                                 starts[b], n_tokens, n_heads, n_k_slots, sinks, k_ring);
        total = total + kc_h2f(to_f16(x));
    }
    const f32 mean = kc_div(total, (f32)(CENTER_CELLS - sinks));
    centre[(i64)b * n_heads * K_DIM + channel] = kc_isfinite(mean) ? to_f16(mean) : (f16)0;
}

/* What the bulk encodes of a cell: a store whose cells wait starts from the float16 value. */
KC_FN f32 encoded_value(const i32 s, const i32 b, const i32 cell, const i32 head, const i32 d,
                        KC_GLOBAL const f32 *fresh, KC_GLOBAL const f16 *slots,
                        KC_GLOBAL const f16 *centre, KC_GLOBAL const i32 *source, const i32 start,
                        const i32 n_tokens, const i32 n_heads, const i32 n_slots, const i32 sinks,
                        const i32 ring)
{
    f32 x = cell_value(s, b, cell, head, d, fresh, slots, source, start, n_tokens, n_heads,
                       n_slots, sinks, ring);
    if ((DEFERRED && PER_CHANNEL(s)) || (s == 0 && CENTRE))
        x = kc_h2f(to_f16(x));
    if (s == 0 && CENTRE)
        x = x - kc_h2f(centre[((i64)b * n_heads + head) * K_DIM + d]);
    return x;
}

#define VALUE(cell, d)                                                                             \
    encoded_value(s, b, cell, head, d, fresh, slots, centre, source, start, n_tokens, n_heads,      \
                  n_slots, sinks, ring)

/* Encode GROUP values of one cell and head, or as many floats. */
KC_FN void write_row_group(const i32 s, const i32 b, const i32 cell, const i32 head,
                           const i32 group, KC_GLOBAL const f32 *fresh,
                           KC_GLOBAL const f16 *slots, KC_GLOBAL const f16 *centre,
                           KC_GLOBAL const i32 *source, const i32 start, const i32 n_tokens,
                           const i32 n_heads, const i32 n_slots, const i32 sinks, const i32 ring,
                           KC_GLOBAL u8 *codes, KC_GLOBAL f16 *scales, const i64 row,
                           const i32 unbiased)
{
    const i32 first = group * GROUP(s);
    const i32 end = first + GROUP(s) < DIM(s) ? first + GROUP(s) : DIM(s);
    KC_GLOBAL u8 *bytes = codes + row * ROW_BYTES(s);
    if (KIND(s) < KIND_GRID) {
        for (i32 d = first; d < end; d++) {
            const f32 x = VALUE(cell, d);
            if (KIND(s) == KIND_F32)
                ((KC_GLOBAL f32 *)bytes)[d] = x;
            else
                ((KC_GLOBAL u16 *)bytes)[d] = KIND(s) == KIND_F16 ? to_f16(x) : to_bf16(x);
        }
        return;
    }
    i32 finite = 1;
    f32 largest = 0.0f, top = 0.0f, squares = 0.0f;
    for (i32 d = first; d < end; d++) {
        const f32 x = VALUE(cell, d);
        finite = finite && kc_isfinite(x);
        if (d == first)
            top = x;
        if (kc_abs(x) > largest) {
            largest = kc_abs(x);
            top = x;
        } else if (x == largest && largest > 0.0f) {
            top = x; /* a tie of +a and -a takes the positive */
        }
        squares = squares + x * x;
    }
    f32 exact = RULE(s) == RULE_SIGNED ? top : largest;
    if (RULE(s) == RULE_RMS)
        exact = root_mean(squares, GROUP(s));
    exact = kc_div(exact, DIVISOR(s));
    f16 stored = to_f16(exact);
    const f32 against = STORED(s) ? kc_h2f(stored) : exact;
    if (unbiased && finite) {
        f32 above = 0.0f, below = 0.0f;
        for (i32 d = first; d < end; d++) {
            const f32 x = VALUE(cell, d);
            above = above + x * x;
            below = below + x * level_of(s, (i32)code_of(s, x, against));
        }
        if (below > 0.0f)
            stored = to_f16(quotient(above, below));
    }
    scales[row * (DIM(s) / GROUP(s)) + group] = finite ? stored : (f16)F16_NAN;
    const i32 per_byte = PER_BYTE(s);
    const i32 apart = HALVES(s) ? GROUP(s) / 2 : 1;
    const i32 n_bytes = GROUP(s) / per_byte;
    for (i32 i = 0; i < n_bytes; i++) {
        const i32 d = first + (HALVES(s) ? i : i * per_byte);
        u32 byte = 0u;
        for (i32 j = 0; j < per_byte; j++) {
            const u32 code = finite ? code_of(s, VALUE(cell, d + j * apart), against) : zero_code(s);
            byte |= code << (j * BITS(s));
        }
        bytes[code_byte(s, d)] = (u8)byte;
    }
}

/* One lane a (cell, head, scale group). With a state the cells continue it, and once the centre is
   fixed all cells before are written; without one the positions say where. gx counts chunks of
   lanes within cells, gz = 2 b + store. */
KC_ENTRY(rows)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 n_groups = s == 0 ? (K_DIM + K_GROUP - 1) / K_GROUP : (V_DIM + V_GROUP - 1) / V_GROUP;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    if (PER_CHANNEL(s) || item >= n_heads * n_groups)
        return;
    const i32 head = item / n_groups, group = item % n_groups;
    i32 start = starts[b], cell = 0;
    KC_GLOBAL const i32 *tokens = source;
    if (has_state) {
        KC_GLOBAL const i32 *after = next + b * N_MARKS;
        cell = index + (marks[b * N_MARKS + FRONTIER(s)] ? start : 0);
        if (!after[FRONTIER(s)] || cell >= after[LENGTH])
            return;
    } else {
        tokens = source + n_sequences * n_tokens; /* every token, as given */
        cell = positions[b * n_tokens + index];
        if (cell < 0 || cell / page_size >= n_pages_each)
            return;
        for (i32 t = index + 1; t < n_tokens; t++)
            if (positions[b * n_tokens + t] == cell)
                return; /* of two equal positions the last wins */
        start = cell - index;
    }
    const i32 page = table[b * n_pages_each + cell / page_size];
    if (page < 0)
        return;
    const i64 row = code_row(page, head, cell, n_heads, page_size);
    if (s == 0)
        write_row_group(0, b, cell, head, group, k, k_slots, centre, tokens, start, n_tokens,
                        n_heads, n_k_slots, sinks, k_ring, k_codes, k_scales, row, unbiased);
    else
        write_row_group(1, b, cell, head, group, v, v_slots, centre, tokens, start, n_tokens,
                        n_heads, n_v_slots, sinks, v_ring, v_codes, v_scales, row, 0);
}

/* The 8 / BITS channels of one byte column, over one complete group of 32 cells. */
KC_FN void write_group(const i32 s, const i32 b, const i32 first, const i32 head, const i32 column,
                       KC_GLOBAL const f32 *fresh, KC_GLOBAL const f16 *slots,
                       KC_GLOBAL const f16 *centre, KC_GLOBAL const i32 *source, const i32 start,
                       const i32 n_tokens, const i32 n_heads, const i32 n_slots, const i32 sinks,
                       const i32 ring, KC_GLOBAL const i32 *pages, const i32 page_size,
                       KC_GLOBAL u8 *codes, KC_GLOBAL f16 *scales, const f32 gain,
                       const i32 unbiased)
{
    const i32 per_byte = PER_BYTE(s);
    const i32 skip = sinks - first > 0 && sinks - first < GROUP_CELLS ? sinks - first : 0;
    f32 against[8];
    i32 finite[8];
    const i64 line = channel_row(pages[first / page_size], head, first, n_heads, page_size);
    for (i32 j = 0; j < per_byte; j++) {
        const i32 d = column * per_byte + j;
        f32 squares = 0.0f;
        finite[j] = 1;
        for (i32 c = 0; c < GROUP_CELLS; c++) {
            const f32 x = VALUE(first + c, d);
            finite[j] = finite[j] && kc_isfinite(x);
            if (c >= skip)
                squares = squares + x * x;
        }
        const f16 base = to_f16(root_mean(squares, GROUP_CELLS - skip));
        against[j] = kc_h2f(base);
        f16 stored = to_f16(gained(against[j], gain));
        if (unbiased && finite[j]) {
            f32 above = 0.0f, below = 0.0f;
            for (i32 c = skip; c < GROUP_CELLS; c++) {
                const f32 x = VALUE(first + c, d);
                above = above + x * x;
                below = below + x * level_of(s, (i32)code_of(s, x, against[j]));
            }
            stored = below > 0.0f ? to_f16(quotient(above, below)) : base;
        }
        scales[line * DIM(s) + d] = finite[j] ? stored : (f16)F16_NAN;
    }
    for (i32 c = 0; c < GROUP_CELLS; c++) {
        const i32 cell = first + c;
        u32 byte = 0u;
        for (i32 j = 0; j < per_byte; j++) {
            const i32 d = column * per_byte + j;
            const u32 code = finite[j] ? code_of(s, VALUE(cell, d), against[j]) : 0u;
            byte |= code << (j * BITS(s));
        }
        const i64 row = code_row(pages[cell / page_size], head, cell, n_heads, page_size);
        codes[row * ROW_BYTES(s) + column] = (u8)byte;
    }
}

/* Cells from..end of a group whose scale stays as it is. */
KC_FN void write_kept(const i32 s, const i32 b, const i32 from, const i32 end, const i32 head,
                      const i32 column, KC_GLOBAL const f32 *fresh, KC_GLOBAL const f16 *slots,
                      KC_GLOBAL const f16 *centre, KC_GLOBAL const i32 *source, const i32 start,
                      const i32 n_tokens, const i32 n_heads, const i32 n_slots, const i32 sinks,
                      const i32 ring, KC_GLOBAL const i32 *pages, const i32 page_size,
                      KC_GLOBAL u8 *codes, KC_GLOBAL f16 *scales, const f32 gain)
{
    const i32 per_byte = PER_BYTE(s);
    for (i32 cell = from; cell < end; cell++) {
        const i32 page = pages[cell / page_size];
        const i64 line = channel_row(page, head, cell, n_heads, page_size);
        u32 byte = 0u;
        for (i32 j = 0; j < per_byte; j++) {
            const i32 d = column * per_byte + j;
            const f32 scale = ungained(kc_h2f(scales[line * DIM(s) + d]), gain);
            const f32 x = VALUE(cell, d);
            byte |= code_of(s, kc_isfinite(x) ? x : 0.0f, scale) << (j * BITS(s));
        }
        const i64 row = code_row(page, head, cell, n_heads, page_size);
        codes[row * ROW_BYTES(s) + column] = (u8)byte;
    }
}

/* One lane a (head, byte column). Index 0: cells that enter a frozen group; index > 0: the groups that
   are complete and committed now. gz = 2 b + store. */
KC_ENTRY(groups)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    if (!PER_CHANNEL(s) || item >= n_heads * ROW_BYTES(s))
        return;
    KC_GLOBAL const i32 *old = marks + b * N_MARKS;
    KC_GLOBAL const i32 *row = next + b * N_MARKS;
    KC_GLOBAL const i32 *pages = table + b * n_pages_each;
    const i32 head = item / ROW_BYTES(s), column = item % ROW_BYTES(s);
    const i32 start = starts[b];
    if (index == 0) {
        const i32 frontier = old[FRONTIER(s)];
        const i32 end = row[LENGTH] < frontier ? row[LENGTH] : frontier;
        if (s == 0)
            write_kept(0, b, start, end, head, column, k, k_slots, centre, source, start, n_tokens,
                       n_heads, n_k_slots, sinks, k_ring, pages, page_size, k_codes, k_scales,
                       gain);
        else
            write_kept(1, b, start, end, head, column, v, v_slots, centre, source, start, n_tokens,
                       n_heads, n_v_slots, sinks, v_ring, pages, page_size, v_codes, v_scales,
                       1.0f);
        return;
    }
    const i32 first = old[FRONTIER(s)] + (index - 1) * GROUP_CELLS;
    if (first >= row[FRONTIER(s)])
        return;
    if (s == 0)
        write_group(0, b, first, head, column, k, k_slots, centre, source, start, n_tokens,
                    n_heads, n_k_slots, sinks, k_ring, pages, page_size, k_codes, k_scales, gain,
                    unbiased);
    else
        write_group(1, b, first, head, column, v, v_slots, centre, source, start, n_tokens,
                    n_heads, n_v_slots, sinks, v_ring, pages, page_size, v_codes, v_scales, 1.0f,
                    0);
}

/* Sum of squares of n cells of one channel, ascending; *finite says whether all are finite. */
KC_FN f32 squares_of(const i32 s, const i32 b, const i32 first, const i32 n, const i32 head,
                     const i32 d, KC_GLOBAL const f32 *fresh, KC_GLOBAL const f16 *slots,
                     KC_GLOBAL const f16 *centre, KC_GLOBAL const i32 *source, const i32 start,
                     const i32 n_tokens, const i32 n_heads, const i32 n_slots, const i32 sinks,
                     const i32 ring)
{
    f32 total = 0.0f;
    for (i32 c = 0; c < n; c++) {
        const f32 x = VALUE(first + c, d);
        total = total + x * x;
    }
    return total;
}

KC_FN i32 all_finite(const i32 s, const i32 b, const i32 first, const i32 n, const i32 head,
                     const i32 d, KC_GLOBAL const f32 *fresh, KC_GLOBAL const f16 *slots,
                     KC_GLOBAL const f16 *centre, KC_GLOBAL const i32 *source, const i32 start,
                     const i32 n_tokens, const i32 n_heads, const i32 n_slots, const i32 sinks,
                     const i32 ring)
{
    i32 finite = 1;
    for (i32 c = 0; c < n; c++)
        finite = finite && kc_isfinite(VALUE(first + c, d));
    return finite;
}

#define SUM_OF(first, n, d)                                                                        \
    squares_of(s, b, first, n, head, d, fresh, slots, centre, source, start, n_tokens, n_heads,     \
               n_slots, sinks, ring)
#define FINITE_OF(first, n, d)                                                                     \
    all_finite(s, b, first, n, head, d, fresh, slots, centre, source, start, n_tokens, n_heads,     \
               n_slots, sinks, ring)

#define RULE_OLD 0
#define RULE_N 1
#define RULE_SHRINK 2

/* A group whose first cell is in this call: its scale is set now, once, from the cells there are.
   The group before is computed again if this call writes it, so that no lane waits for another. */
KC_FN void write_fresh(const i32 s, const i32 b, const i32 first, const i32 n, const i32 head,
                       const i32 column, KC_GLOBAL const f32 *fresh, KC_GLOBAL const f16 *slots,
                       KC_GLOBAL const f16 *centre, KC_GLOBAL const i32 *source, const i32 start,
                       const i32 n_tokens, const i32 n_heads, const i32 n_slots, const i32 sinks,
                       const i32 ring, KC_GLOBAL const i32 *pages, const i32 page_size,
                       KC_GLOBAL u8 *codes, KC_GLOBAL f16 *scales, const f32 gain, const i32 rule)
{
    const i32 per_byte = PER_BYTE(s);
    f32 against[8];
    i32 finite[8];
    const i64 line = channel_row(pages[first / page_size], head, first, n_heads, page_size);
    for (i32 j = 0; j < per_byte; j++) {
        const i32 d = column * per_byte + j;
        const f32 squares = SUM_OF(first, n, d);
        f32 scale = root_mean(squares, rule == RULE_OLD ? GROUP_CELLS : n);
        finite[j] = FINITE_OF(first, n, d);
        if (rule == RULE_SHRINK && n < GROUP_CELLS && first > 0) {
            const i32 before = first - GROUP_CELLS;
            f32 prior;
            if (before >= start) {
                const f32 whole = root_mean(SUM_OF(before, GROUP_CELLS, d), GROUP_CELLS);
                prior = FINITE_OF(before, GROUP_CELLS, d) ? kc_h2f(to_f16(whole)) : kc_as_f32(0x7fc00000u);
                prior = gained(prior, gain);
            } else {
                const i32 page = pages[before / page_size];
                const i64 at = channel_row(page, head, before, n_heads, page_size);
                prior = kc_h2f(scales[at * DIM(s) + d]);
            }
            prior = ungained(prior, gain);
            if (kc_isfinite(prior))
                scale = root_mean(squares + (f32)(GROUP_CELLS - n) * (prior * prior), GROUP_CELLS);
        }
        against[j] = kc_h2f(to_f16(scale));
        scales[line * DIM(s) + d] = finite[j] ? to_f16(gained(against[j], gain)) : (f16)F16_NAN;
    }
    for (i32 c = 0; c < n; c++) {
        const i32 cell = first + c;
        u32 byte = 0u;
        for (i32 j = 0; j < per_byte; j++) {
            const i32 d = column * per_byte + j;
            byte |= (finite[j] ? code_of(s, VALUE(cell, d), against[j]) : 0u) << (j * BITS(s));
        }
        const i64 row = code_row(pages[cell / page_size], head, cell, n_heads, page_size);
        codes[row * ROW_BYTES(s) + column] = (u8)byte;
    }
}

/* Eager grouping: the index counts groups that this call touches. gz = 2 b + store. */
KC_ENTRY(eager)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    if (!PER_CHANNEL(s) || item >= n_heads * ROW_BYTES(s))
        return;
    KC_GLOBAL const i32 *pages = table + b * n_pages_each;
    const i32 head = item / ROW_BYTES(s), column = item % ROW_BYTES(s);
    const i32 start = starts[b], end = starts[b] + counts[b];
    const i32 first = (start / GROUP_CELLS + index) * GROUP_CELLS;
    const i32 stop = first + GROUP_CELLS < end ? first + GROUP_CELLS : end;
    if (first >= end)
        return;
    if (first < start) {
        if (s == 0)
            write_kept(0, b, start, stop, head, column, k, k_slots, centre, source, start, n_tokens,
                       n_heads, n_k_slots, sinks, k_ring, pages, page_size, k_codes, k_scales,
                       gain);
        else
            write_kept(1, b, start, stop, head, column, v, v_slots, centre, source, start, n_tokens,
                       n_heads, n_v_slots, sinks, v_ring, pages, page_size, v_codes, v_scales,
                       1.0f);
    } else if (s == 0) {
        write_fresh(0, b, first, stop - first, head, column, k, k_slots, centre, source, start,
                    n_tokens, n_heads, n_k_slots, sinks, k_ring, pages, page_size, k_codes,
                    k_scales, gain, rule);
    } else {
        write_fresh(1, b, first, stop - first, head, column, v, v_slots, centre, source, start,
                    n_tokens, n_heads, n_v_slots, sinks, v_ring, pages, page_size, v_codes,
                    v_scales, 1.0f, rule);
    }
}

/* One lane a value: new cells into their exact slots; of cells that share a slot only the last is
   written. The first lane of each sequence moves the marks on. gz = 2 b + store. */
KC_ENTRY(exact)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    KC_GLOBAL const i32 *row = next + b * N_MARKS;
    if (s == 0 && gx == 0 && lane < N_MARKS)
        marks[b * N_MARKS + lane] = row[lane];
    const i32 dim = DIM(s), ring = s == 0 ? k_ring : v_ring;
    if (ring == 0 || index >= counts[b] || item >= n_heads * dim)
        return;
    const i32 cell = starts[b] + index;
    if (cell >= sinks && cell < row[LENGTH] - ring)
        return;
    const i64 token = (i64)b * n_tokens + source[b * n_tokens + index];
    const i64 from = token * n_heads * dim + item;
    const i64 slot = (i64)b * (s == 0 ? n_k_slots : n_v_slots) + exact_slot(cell, sinks, ring);
    const i64 to = slot * n_heads * dim + item;
    if (s == 0)
        k_slots[to] = to_f16(k[from]);
    else
        v_slots[to] = to_f16(v[from]);
}
