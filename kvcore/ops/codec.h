/* How a store keeps a value. K is store 0, V is store 1; a literal store folds every branch. */
#define BY(s, k, v) ((s) == 0 ? (k) : (v))
#define DIM(s) BY(s, K_DIM, V_DIM)
#define KIND(s) BY(s, K_KIND, V_KIND)
#define BITS(s) BY(s, K_BITS, V_BITS)
#define GROUP(s) BY(s, K_GROUP, V_GROUP)
#define PER_CHANNEL(s) BY(s, K_PER_CHANNEL, V_PER_CHANNEL)
#define RULE(s) BY(s, K_RULE, V_RULE)
#define ROUNDING(s) BY(s, K_ROUNDING, V_ROUNDING)
#define DIVISOR(s) BY(s, K_DIVISOR, V_DIVISOR)
#define STORED(s) BY(s, K_STORED, V_STORED)
#define SIGNED(s) BY(s, K_SIGNED, V_SIGNED)
#define ZERO(s) BY(s, K_ZERO, V_ZERO)
#define LOW(s) BY(s, K_LOW, V_LOW)
#define HIGH(s) BY(s, K_HIGH, V_HIGH)
#define N_LEVELS(s) BY(s, K_N_LEVELS, V_N_LEVELS)
#define PER_BYTE(s) BY(s, K_PER_BYTE, V_PER_BYTE)
#define CODE_MASK(s) BY(s, K_CODE_MASK, V_CODE_MASK)
#define HALVES(s) BY(s, K_HALVES, V_HALVES)
#define ROW_BYTES(s) BY(s, K_ROW_BYTES, V_ROW_BYTES)

#define KIND_F32 0
#define KIND_F16 1
#define KIND_BF16 2
#define KIND_GRID 3     /* codes on a uniform grid */
#define KIND_CODEBOOK 4 /* codes chosen between levels */

#define RULE_ABSMAX 0
#define RULE_SIGNED 1
#define RULE_RMS 2

#define DIVIDE_HALF_EVEN 0
#define RECIPROCAL_HALF_AWAY 1
#define RECIPROCAL_TRUNC 2

#define GROUP_CELLS 32
#define F16_NAN 0x7e00u

KC_FN f32 level_of(const i32 s, const i32 code)
{
    if (KIND(s) == KIND_CODEBOOK)
        return s == 0 ? k_levels(code) : v_levels(code);
    return (f32)(SIGNED(s) ? (code ^ 128) - 128 : code - ZERO(s));
}

KC_FN f32 threshold_of(const i32 s, const i32 i)
{
    return s == 0 ? k_thresholds(i) : v_thresholds(i);
}

/* To float16, a finite value never becoming infinite. */
KC_FN f16 to_f16(const f32 x)
{
    const f16 h = kc_f2h(x);
    if (kc_isfinite(x) && (h & 0x7fffu) == 0x7c00u)
        return (f16)((h & 0x8000u) | 0x7bffu);
    return h;
}

KC_FN u16 to_bf16(const f32 x)
{
    const u32 u = kc_as_u32(x);
    const u32 sign = (u >> 16) & 0x8000u;
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (u16)(sign | 0x7fc0u);
    const u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    if (kc_isfinite(x) && (rounded & 0x7fffu) == 0x7f80u)
        return (u16)(sign | 0x7f7fu);
    return (u16)rounded;
}

/* The code of a value against a scale, as its unsigned field. */
KC_FN u32 code_of(const i32 s, const f32 x, const f32 scale)
{
    f32 y = 0.0f;
    if (KIND(s) == KIND_CODEBOOK) {
        u32 code = 0u;
        if (!(scale > 0.0f))
            return 0u;
        for (i32 i = 0; i < N_LEVELS(s) - 1; i++)
            code += x > threshold_of(s, i) * scale ? 1u : 0u;
        return code;
    }
    if (ROUNDING(s) == DIVIDE_HALF_EVEN) {
        y = scale > 0.0f ? kc_rint(kc_div(x, scale)) : 0.0f;
    } else {
        y = x * (scale != 0.0f ? kc_div(1.0f, scale) : 0.0f);
        if (ROUNDING(s) == RECIPROCAL_TRUNC)
            y = y + ((f32)ZERO(s) + 0.5f);
    }
    if (!(y >= -1024.0f))
        y = y < -1024.0f ? -1024.0f : 0.0f; /* a NaN counts as 0 */
    y = kc_min(y, 1024.0f);
    i32 code = (i32)y;
    if (ROUNDING(s) == RECIPROCAL_HALF_AWAY)
        code += kc_abs(y - (f32)code) >= 0.5f ? (y < 0.0f ? -1 : 1) : 0;
    code = code < LOW(s) ? LOW(s) : code;
    code = code > HIGH(s) ? HIGH(s) : code;
    return (u32)code & CODE_MASK(s);
}

/* The field that fills a group which holds a non-finite value. */
KC_FN u32 zero_code(const i32 s) { return KIND(s) == KIND_CODEBOOK ? 0u : (u32)ZERO(s); }

/* A sum of squares that overflows gives the largest float, which saturates as a scale. */
KC_FN f32 root_mean(const f32 squares, const i32 n)
{
    return kc_min(kc_sqrt(kc_div(squares, (f32)n)), kc_as_f32(0x7f7fffffu));
}

/* inf / inf is NaN, which compares false and so saturates too. */
KC_FN f32 quotient(const f32 above, const f32 below)
{
    return kc_min(kc_div(above, below), kc_as_f32(0x7f7fffffu));
}

KC_FN f32 gained(const f32 scale, const f32 gain)
{
    return gain != 1.0f ? kc_h2f(to_f16(gain * scale)) : scale;
}

KC_FN f32 ungained(const f32 stored, const f32 gain)
{
    return gain != 1.0f ? kc_h2f(to_f16(kc_div(stored, gain))) : stored;
}

/* Where the code of dimension d lies in its row: byte and shift. */
KC_FN i32 code_byte(const i32 s, const i32 d)
{
    if (HALVES(s)) {
        const i32 half_group = GROUP(s) / 2;
        return d / GROUP(s) * half_group + d % half_group;
    }
    return d / PER_BYTE(s);
}

KC_FN i32 code_shift(const i32 s, const i32 d)
{
    if (HALVES(s))
        return d % GROUP(s) >= GROUP(s) / 2 ? 4 : 0;
    return d % PER_BYTE(s) * BITS(s);
}

/* A value as it was put in: one product, or the float itself. */
KC_FN f32 bulk_value(const i32 s, KC_GLOBAL const u8 *codes, KC_GLOBAL const f16 *scales,
                     const i64 row, const i64 scale_row, const i32 d)
{
    KC_GLOBAL const u8 *bytes = codes + row * ROW_BYTES(s);
    if (KIND(s) == KIND_F32)
        return ((KC_GLOBAL const f32 *)bytes)[d];
    if (KIND(s) == KIND_F16)
        return kc_h2f(((KC_GLOBAL const f16 *)bytes)[d]);
    if (KIND(s) == KIND_BF16)
        return kc_as_f32((u32)((KC_GLOBAL const u16 *)bytes)[d] << 16);
    const u32 field = (u32)bytes[code_byte(s, d)] >> code_shift(s, d);
    const f32 level = level_of(s, (i32)(field & CODE_MASK(s)));
    const i64 at = PER_CHANNEL(s) ? scale_row * DIM(s) + d
                                  : row * (DIM(s) / GROUP(s)) + d / GROUP(s);
    return level * kc_h2f(scales[at]);
}
