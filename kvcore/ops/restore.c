/* restore: one lane a value; gx counts chunks of lanes within members, gz = 2 b + store. */
#include "codec.h"
#include "cells.h"

KC_ENTRY(restore)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    const i32 dim = DIM(s), ring = s == 0 ? k_ring : v_ring;
    KC_GLOBAL const i32 *row = marks + b * N_MARKS;
    const i32 n = lengths[b];
    if (ring == 0 || item >= n_heads * dim)
        return;
    const i32 held = n - window > sinks ? n - window : sinks;
    const i32 cell = index < sinks ? index : held + index - sinks;
    const i32 end = n < row[FRONTIER(s)] ? n : row[FRONTIER(s)];
    if (cell >= end)
        return;
    const i32 head = item / dim, d = item % dim;
    const i32 page =
        page_of(table + (i64)b * n_pages_each, n_pages_each, n_pages, page_size, cell);
    if (page < 0) {
        errors[0] = 1;
        return;
    }
    const i64 at = code_row(page, head, cell, n_heads, page_size);
    const i64 line = channel_row(page, head, cell, n_heads, page_size);
    const i64 slot = (i64)b * (s == 0 ? n_k_slots : n_v_slots) + exact_slot(cell, sinks, ring);
    const i64 to = slot * n_heads * dim + item;
    if (s == 0) {
        f32 x = bulk_value(0, k_codes, k_scales, at, line, d);
        if (CENTRE)
            x = x + kc_h2f(centre[(i64)b * n_heads * K_DIM + item]);
        k_slots[to] = to_f16(x);
    } else {
        v_slots[to] = to_f16(bulk_value(1, v_codes, v_scales, at, line, d));
    }
}

/* One lane a sequence: the rings now reach back to the first cell of the window. */
KC_ENTRY(reach)
{
    const i32 b = gx * 64 + lane;
    if (b >= n_sequences)
        return;
    for (i32 s = 0; s < 2; s++) {
        const i32 held = lengths[b] > window ? lengths[b] - window : 0;
        KC_GLOBAL i32 *low = marks + b * N_MARKS + RING_LO(s);
        if ((s == 0 ? k_ring : v_ring) && held < *low)
            *low = held;
    }
}
