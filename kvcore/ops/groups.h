/* Groups of 32 cells of one byte column: 8 / BITS channels of one head. A lane takes the channels
   one after the other and the cells' bytes in a second pass; each lane owns its bytes. */

#define MAX_PER_BYTE 8

/* The scale that codes were chosen against, kept in f16 while the column's bytes are made. */
KC_FN void write_codes(const i32 s, const From from, const Into into, const i32 first, const i32 n,
                       const i32 head, const i32 column, const u32 *against, const u32 finite)
{
    for (i32 c = 0; c < n; c++) {
        const i32 cell = first + c;
        u32 byte = 0u;
        KC_UNROLL
        for (i32 j = 0; j < PER_BYTE(s); j++) {
            const i32 d = column * PER_BYTE(s) + j;
            const f32 x = encoded_value(s, from, cell, head, d);
            const u32 code = code_of(s, x, kc_h2f((f16)against[j]));
            byte |= ((finite >> j) & 1u ? code : 0u) << (j * BITS(s));
        }
        const i32 page = into.pages[cell / into.page_size];
        const i64 row = code_row(page, head, cell, from.n_heads, into.page_size);
        into.codes[row * ROW_BYTES(s) + column] = (u8)byte;
    }
}

/* One complete group of 32 cells; its sinks count only if there is nothing else. */
KC_FN void write_group(const i32 s, const From from, const Into into, const i32 first,
                       const i32 head, const i32 column, const f32 gain, const i32 unbiased)
{
    const i32 left = from.sinks - first;
    const i32 skip = left > 0 && left < GROUP_CELLS ? left : 0;
    const i64 line =
        channel_row(into.pages[first / into.page_size], head, first, from.n_heads, into.page_size);
    u32 against[MAX_PER_BYTE];
    u32 finite = 0u;
    KC_UNROLL
    for (i32 j = 0; j < PER_BYTE(s); j++) {
        const i32 d = column * PER_BYTE(s) + j;
        f32 squares = 0.0f;
        i32 good = 1;
        KC_ORDERED
        for (i32 c = 0; c < GROUP_CELLS; c++) {
            const f32 x = encoded_value(s, from, first + c, head, d);
            good = good && kc_isfinite(x);
            if (c >= skip)
                squares = squares + x * x;
        }
        const f16 base = to_f16(root_mean(squares, GROUP_CELLS - skip));
        against[j] = base;
        f16 stored = to_f16(gained(kc_h2f(base), gain));
        if (unbiased && good) {
            f32 above = 0.0f, below = 0.0f;
            KC_ORDERED
            for (i32 c = skip; c < GROUP_CELLS; c++) {
                const f32 x = encoded_value(s, from, first + c, head, d);
                above = above + x * x;
                below = below + x * level_of(s, (i32)code_of(s, x, kc_h2f(base)));
            }
            stored = below > 0.0f ? to_f16(quotient(above, below)) : base;
        }
        finite |= (u32)good << j;
        into.scales[line * DIM(s) + d] = good ? stored : (f16)F16_NAN;
    }
    write_codes(s, from, into, first, GROUP_CELLS, head, column, against, finite);
}

/* Cells begin..end of a group whose scale stays as it is. */
KC_FN void write_kept(const i32 s, const From from, const Into into, const i32 begin, const i32 end,
                      const i32 head, const i32 column, const f32 gain)
{
    for (i32 cell = begin; cell < end; cell++) {
        const i32 page = into.pages[cell / into.page_size];
        const i64 line = channel_row(page, head, cell, from.n_heads, into.page_size);
        u32 byte = 0u;
        for (i32 j = 0; j < PER_BYTE(s); j++) {
            const i32 d = column * PER_BYTE(s) + j;
            const f32 scale = ungained(kc_h2f(into.scales[line * DIM(s) + d]), gain);
            const f32 x = encoded_value(s, from, cell, head, d);
            byte |= code_of(s, kc_isfinite(x) ? x : 0.0f, scale) << (j * BITS(s));
        }
        const i64 row = code_row(page, head, cell, from.n_heads, into.page_size);
        into.codes[row * ROW_BYTES(s) + column] = (u8)byte;
    }
}

#define RULE_OLD 0
#define RULE_N 1
#define RULE_SHRINK 2

/* The sum of squares of n cells of one channel, ascending; NaN if one of them is not finite. */
KC_FN f32 squares_of(const i32 s, const From from, const i32 first, const i32 n, const i32 head,
                     const i32 d, i32 *finite)
{
    f32 total = 0.0f;
    *finite = 1;
    KC_ORDERED
    for (i32 c = 0; c < n; c++) {
        const f32 x = encoded_value(s, from, first + c, head, d);
        *finite = *finite && kc_isfinite(x);
        total = total + x * x;
    }
    return total;
}

/* The scale of the whole group before `first`: computed again if this call writes it, so that no
   lane waits for another. NaN if that group stores NaN. */
KC_FN f32 scale_before(const i32 s, const From from, const Into into, const i32 first,
                       const i32 head, const i32 d, const f32 gain)
{
    const i32 before = first - GROUP_CELLS;
    if (before >= from.start) {
        i32 finite;
        const f32 squares = squares_of(s, from, before, GROUP_CELLS, head, d, &finite);
        const f32 whole = kc_h2f(to_f16(root_mean(squares, GROUP_CELLS)));
        return ungained(finite ? gained(whole, gain) : kc_as_f32(0x7fc00000u), gain);
    }
    const i32 page = into.pages[before / into.page_size];
    const i64 at = channel_row(page, head, before, from.n_heads, into.page_size);
    return ungained(kc_h2f(into.scales[at * DIM(s) + d]), gain);
}

/* Eager: a group whose first cell is in this call; its scale is set once, from the n cells of it
   that there are. */
KC_FN void write_fresh(const i32 s, const From from, const Into into, const i32 first, const i32 n,
                       const i32 head, const i32 column, const f32 gain, const i32 rule)
{
    const i64 line =
        channel_row(into.pages[first / into.page_size], head, first, from.n_heads, into.page_size);
    u32 against[MAX_PER_BYTE];
    u32 finite = 0u;
    KC_UNROLL
    for (i32 j = 0; j < PER_BYTE(s); j++) {
        const i32 d = column * PER_BYTE(s) + j;
        i32 good;
        const f32 squares = squares_of(s, from, first, n, head, d, &good);
        f32 scale = root_mean(squares, rule == RULE_OLD ? GROUP_CELLS : n);
        if (rule == RULE_SHRINK && n < GROUP_CELLS && first > 0) {
            const f32 prior = scale_before(s, from, into, first, head, d, gain);
            if (kc_isfinite(prior))
                scale = root_mean(squares + (f32)(GROUP_CELLS - n) * (prior * prior), GROUP_CELLS);
        }
        const f16 base = to_f16(scale);
        against[j] = base;
        finite |= (u32)good << j;
        into.scales[line * DIM(s) + d] =
            good ? to_f16(gained(kc_h2f(base), gain)) : (f16)F16_NAN;
    }
    write_codes(s, from, into, first, n, head, column, against, finite);
}
