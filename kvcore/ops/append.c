/* append: plan -> fix_centre -> rows, groups or eager -> exact. No two workers write one byte, so
   nothing waits and no atomic is needed. Entries that a layout does not need are left out. */
#include "codec.h"
#include "cells.h"
#include "fresh.h"
#include "rows.h"
#include "groups.h"

#define MAX_DRAFT 17
#define FROM(s)                                                                                    \
    from_where(BY(s, k, v), BY(s, k_slots, v_slots), centre, source, b, starts[b], n_tokens,        \
               n_heads, BY(s, n_k_slots, n_v_slots), sinks, BY(s, k_ring, v_ring))
#define INTO(s)                                                                                    \
    into_where(table + (i64)b * n_pages_each, page_size, BY(s, k_codes, v_codes),                   \
               BY(s, k_scales, v_scales))

/* Whether a cell can be written: it has a page of the pool, in step with its unit. */
KC_FN i32 has_place(KC_GLOBAL const i32 *pages, const i32 n_pages_each, const i32 n_pages,
                    const i32 page_size, const i32 cell)
{
    const i32 page = page_of(pages, n_pages_each, n_pages, page_size, cell);
    const i32 unit = (K_PER_CHANNEL || V_PER_CHANNEL) && page_size < GROUP_CELLS
                         ? GROUP_CELLS / page_size
                         : 1;
    return page >= 0 && page % unit == cell / page_size % unit;
}

/* One group of lanes a sequence: which tokens count, and the marks after the call. A sequence that
   the call would break is left as it is, and says so. counts = (cells, whether they ascend). */
KC_ENTRY(plan)
{
    const i32 b = gx;
    KC_GLOBAL const i32 *pages = table + (i64)b * n_pages_each;
    KC_GLOBAL const i32 *at = positions + (i64)b * n_tokens;
    KC_GLOBAL const i32 *old = marks + b * N_MARKS;
    const i32 every = n_sequences * n_tokens;
    const i32 each = (n_tokens + 63) / 64;
    const i32 from = lane * each < n_tokens ? lane * each : n_tokens;
    const i32 to = from + each < n_tokens ? from + each : n_tokens;
    i32 n = 0, last = -1, bad = 0, ascends = 1;
    for (i32 t = from; t < to; t++) {
        const i32 cell = at[t];
        source[every + b * n_tokens + t] = t;
        if (cell == -1)
            continue;
        if (n == 0)
            firsts[lane] = cell;
        else
            ascends = ascends && cell > last;
        last = cell;
        n += 1;
    }
    counted[lane] = n;
    lasts[lane] = last;
    KC_BARRIER();
    i32 total = 0, before = 0, begin = has_state ? old[LENGTH] : 0, previous = -1;
    for (i32 i = 0; i < 64; i++) {
        if (i == lane)
            before = total;
        if (counted[i] == 0)
            continue;
        if (total == 0 && !has_state)
            begin = firsts[i];
        if (i == lane)
            ascends = ascends && firsts[i] > previous;
        previous = lasts[i];
        total += counted[i];
    }
    if (begin < 0 || begin / page_size > n_pages_each) {
        bad = 1;
        begin = 0;
    }
    for (i32 t = from; t < to; t++) {
        const i32 cell = at[t];
        if (cell == -1)
            continue;
        if (!has_place(pages, n_pages_each, n_pages, page_size, cell) ||
            (needs_run && cell != begin + before))
            bad = 1;
        source[b * n_tokens + before] = t;
        before += 1;
    }
    /* older cells that may become final now, and the group whose scale a partial one leans on */
    i32 oldest = begin;
    for (i32 s = 0; has_state && s < 2; s++)
        oldest = old[FRONTIER(s)] < oldest ? old[FRONTIER(s)] : oldest;
    const i32 fresh = (begin + GROUP_CELLS - 1) / GROUP_CELLS * GROUP_CELLS;
    const i32 end = begin + total;
    if (HAS_EAGER && rule == RULE_SHRINK && fresh > 0 && fresh < end && end < fresh + GROUP_CELLS)
        oldest = fresh - GROUP_CELLS < oldest ? fresh - GROUP_CELLS : oldest;
    for (i32 cell = oldest + lane; cell < begin; cell += 64)
        bad = bad || !has_place(pages, n_pages_each, n_pages, page_size, cell);
    KC_BARRIER();
    counted[lane] = bad;
    lasts[lane] = ascends;
    KC_BARRIER();
    if (lane != 0)
        return;
    for (i32 i = 0; i < 64; i++) {
        bad = bad || counted[i];
        ascends = ascends && lasts[i];
    }
    i32 length = begin + total;
    i32 committed = length;
    if (has_state) {
        committed = has_commit ? commit[b] : (draft ? old[COMMITTED] : length);
        if (!has_commit && total > 0 && !draft && begin > old[COMMITTED])
            bad = 1;
        if (committed < old[COMMITTED] || committed > length || length - committed > MAX_DRAFT)
            bad = 1;
    }
    starts[b] = begin;
    counts[2 * b] = bad && (needs_run || has_state) ? 0 : total;
    counts[2 * b + 1] = ascends;
    if (bad)
        errors[0] = 1;
    if (!has_state)
        return;
    KC_GLOBAL i32 *row = next + b * N_MARKS;
    length = bad ? begin : length;
    committed = bad ? old[COMMITTED] : committed;
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

#if CENTER_CELLS
/* One lane a channel: the mean of cells sinks .. CENTER_CELLS, once, when they are all final. */
KC_ENTRY(fix_centre)
{
    const i32 channel = gx * 64 + lane;
    const i32 b = gy;
    if (channel >= n_heads * K_DIM)
        return;
    if (marks[b * N_MARKS + CENTRED] || !next[b * N_MARKS + CENTRED])
        return;
    const From from = from_where(k, k_slots, centre, source, b, starts[b], n_tokens, n_heads,
                                 n_k_slots, sinks, k_ring);
    f32 total = 0.0f;
    KC_ORDERED
    for (i32 cell = sinks; cell < CENTER_CELLS; cell++) {
        const f32 x = cell_value(0, from, cell, channel / K_DIM, channel % K_DIM);
        total = total + kc_h2f(to_f16(x));
    }
    const f32 mean = kc_div(total, (f32)(CENTER_CELLS - sinks));
    centre[(i64)b * n_heads * K_DIM + channel] = kc_isfinite(mean) ? to_f16(mean) : (f16)0;
}
#endif

#if HAS_ROWS
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
    i32 cell = 0;
    From k_from = FROM(0), v_from = FROM(1);
    if (has_state) {
        KC_GLOBAL const i32 *after = next + b * N_MARKS;
        cell = index + (marks[b * N_MARKS + FRONTIER(s)] ? starts[b] : 0);
        if (!after[FRONTIER(s)] || cell >= after[LENGTH])
            return;
    } else {
        if (counts[2 * b] == 0)
            return;
        cell = positions[(i64)b * n_tokens + index];
        if (cell == -1)
            return;
        if (!counts[2 * b + 1]) /* of two equal positions the last wins */
            for (i32 t = index + 1; t < n_tokens; t++)
                if (positions[(i64)b * n_tokens + t] == cell)
                    return;
        k_from.source = source + n_sequences * n_tokens; /* every token, as given */
        v_from.source = k_from.source;
        k_from.start = cell - index;
        v_from.start = k_from.start;
    }
    const i32 page =
        page_of(table + (i64)b * n_pages_each, n_pages_each, n_pages, page_size, cell);
    if (page < 0)
        return;
    const i64 row = code_row(page, head, cell, n_heads, page_size);
    if (s == 0 && !K_PER_CHANNEL)
        write_row_group(0, k_from, INTO(0), cell, head, group, row, unbiased);
    if (s == 1 && !V_PER_CHANNEL)
        write_row_group(1, v_from, INTO(1), cell, head, group, row, 0);
}
#endif

#if HAS_GROUPS
/* One lane a (head, byte column). Index 0: cells that enter a frozen group; index > 0: the groups
   that are complete and committed now. gz = 2 b + store. */
KC_ENTRY(groups)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    if (!PER_CHANNEL(s) || item >= n_heads * ROW_BYTES(s))
        return;
    KC_GLOBAL const i32 *row = next + b * N_MARKS;
    const i32 head = item / ROW_BYTES(s), column = item % ROW_BYTES(s);
    const i32 start = starts[b], frontier = marks[b * N_MARKS + FRONTIER(s)];
    if (index == 0) {
        const i32 end = row[LENGTH] < frontier ? row[LENGTH] : frontier;
        if (s == 0 && K_PER_CHANNEL)
            write_kept(0, FROM(0), INTO(0), start, end, head, column, gain);
        if (s == 1 && V_PER_CHANNEL)
            write_kept(1, FROM(1), INTO(1), start, end, head, column, 1.0f);
        return;
    }
    const i32 first = frontier + (index - 1) * GROUP_CELLS;
    if (first >= row[FRONTIER(s)])
        return;
    if (s == 0 && K_PER_CHANNEL)
        write_group(0, FROM(0), INTO(0), first, head, column, gain, unbiased);
    if (s == 1 && V_PER_CHANNEL)
        write_group(1, FROM(1), INTO(1), first, head, column, 1.0f, 0);
}
#endif

#if HAS_EAGER
/* Eager grouping: the index counts groups that this call touches. gz = 2 b + store. */
KC_ENTRY(eager)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    if (!PER_CHANNEL(s) || item >= n_heads * ROW_BYTES(s))
        return;
    const i32 head = item / ROW_BYTES(s), column = item % ROW_BYTES(s);
    const i32 start = starts[b], end = starts[b] + counts[2 * b];
    const i32 first = (start / GROUP_CELLS + index) * GROUP_CELLS;
    const i32 stop = first + GROUP_CELLS < end ? first + GROUP_CELLS : end;
    if (first >= end)
        return;
    if (first < start) {
        if (s == 0 && K_PER_CHANNEL)
            write_kept(0, FROM(0), INTO(0), start, stop, head, column, gain);
        if (s == 1 && V_PER_CHANNEL)
            write_kept(1, FROM(1), INTO(1), start, stop, head, column, 1.0f);
        return;
    }
    if (s == 0 && K_PER_CHANNEL)
        write_fresh(0, FROM(0), INTO(0), first, stop - first, head, column, gain, rule);
    if (s == 1 && V_PER_CHANNEL)
        write_fresh(1, FROM(1), INTO(1), first, stop - first, head, column, 1.0f, rule);
}
#endif

#if HAS_STATE
/* One lane a value: new cells into their exact slots; of cells that share a slot only the last is
   written. The first lanes of each sequence move the marks on. gz = 2 b + store. */
KC_ENTRY(exact)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    KC_GLOBAL const i32 *row = next + b * N_MARKS;
    if (s == 0 && gx == 0 && lane < N_MARKS)
        marks[b * N_MARKS + lane] = row[lane];
    const i32 dim = DIM(s), ring = s == 0 ? k_ring : v_ring;
    if (ring == 0 || index >= counts[2 * b] || item >= n_heads * dim)
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
#endif
