/* gather: one lane a value; gx counts chunks of lanes within ids, gz = 2 b + store. A bad id gives
   zeros and says so. */
#include "codec.h"
#include "cells.h"

KC_ENTRY(gather)
{
    const i32 s = gz % 2, b = gz / 2;
    const i32 item = gx % n_chunks * 64 + lane;
    const i32 index = gx / n_chunks;
    const i32 dim = DIM(s);
    if (item >= n_heads * dim)
        return;
    const i32 head = item / dim, d = item % dim;
    const i32 cell = ids[(i64)b * n_ids + index];
    const i32 page =
        page_of(table + (i64)b * n_pages_each, n_pages_each, n_pages, page_size, cell);
    const i64 at = ((i64)b * n_ids + index) * n_heads * dim + item;
    f16 value = (f16)0;
    if (page < 0) {
        errors[0] = 1;
    } else {
        const i64 row = code_row(page, head, cell, n_heads, page_size);
        const i64 line = channel_row(page, head, cell, n_heads, page_size);
        if (s == 0)
            value = to_f16(bulk_value(0, k_codes, k_scales, row, line, d));
        else
            value = to_f16(bulk_value(1, v_codes, v_scales, row, line, d));
    }
    if (s == 0)
        k[at] = value;
    else
        v[at] = value;
}
