/* Encode GROUP values of one cell and head, or as many floats. */
KC_FN void write_floats(const i32 s, const From from, const Into into, const i32 cell,
                        const i32 head, const i32 first, const i32 end, const i64 row)
{
    KC_GLOBAL u8 *bytes = into.codes + row * ROW_BYTES(s);
    for (i32 d = first; d < end; d++) {
        const f32 x = encoded_value(s, from, cell, head, d);
        if (KIND(s) == KIND_F32)
            ((KC_GLOBAL f32 *)bytes)[d] = x;
        else
            ((KC_GLOBAL u16 *)bytes)[d] = KIND(s) == KIND_F16 ? to_f16(x) : to_bf16(x);
    }
}

KC_FN void write_row_group(const i32 s, const From from, const Into into, const i32 cell,
                           const i32 head, const i32 group, const i64 row, const i32 unbiased)
{
    const i32 first = group * GROUP(s);
    const i32 end = first + GROUP(s) < DIM(s) ? first + GROUP(s) : DIM(s);
    if (KIND(s) < KIND_GRID) {
        write_floats(s, from, into, cell, head, first, end, row);
        return;
    }
    i32 finite = 1;
    f32 largest = 0.0f, top = 0.0f, squares = 0.0f;
    KC_ORDERED
    for (i32 d = first; d < end; d++) {
        const f32 x = encoded_value(s, from, cell, head, d);
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
        KC_ORDERED
        for (i32 d = first; d < end; d++) {
            const f32 x = encoded_value(s, from, cell, head, d);
            above = above + x * x;
            below = below + x * level_of(s, (i32)code_of(s, x, against));
        }
        const f16 sign = stored & 0x8000u; /* a signed absmax may be negative */
        below = sign ? -below : below;
        if (below > 0.0f)
            stored = (f16)(to_f16(quotient(above, below)) | sign);
    }
    into.scales[row * (DIM(s) / GROUP(s)) + group] = finite ? stored : (f16)F16_NAN;
    const i32 per_byte = PER_BYTE(s);
    const i32 apart = HALVES(s) ? GROUP(s) / 2 : 1;
    for (i32 i = 0; i < GROUP(s) / per_byte; i++) {
        const i32 d = first + (HALVES(s) ? i : i * per_byte);
        u32 byte = 0u;
        for (i32 j = 0; j < per_byte; j++) {
            const f32 x = encoded_value(s, from, cell, head, d + j * apart);
            byte |= (finite ? code_of(s, x, against) : zero_code(s)) << (j * BITS(s));
        }
        into.codes[row * ROW_BYTES(s) + code_byte(s, d)] = (u8)byte;
    }
}
