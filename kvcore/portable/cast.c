/* cast: a caller's array of any stride and width to packed f32 or i32, one lane a value. */

KC_FN i64 source_of(const i32 i, const i32 n1, const i32 n2, const i32 n3, const i64 s0,
                    const i64 s1, const i64 s2, const i64 s3)
{
    const i32 i3 = i % n3, i2 = i / n3 % n2, i1 = i / n3 / n2 % n1, i0 = i / n3 / n2 / n1;
    return i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;
}

/* kind 0: f32, 1: f16, 2: bf16 */
KC_ENTRY(to_f32)
{
    const i32 i = gx * 64 + lane;
    if (i >= n)
        return;
    KC_GLOBAL const u8 *at = x + source_of(i, n1, n2, n3, s0, s1, s2, s3);
    if (kind == 0)
        y[i] = *(KC_GLOBAL const f32 *)at;
    else if (kind == 1)
        y[i] = kc_h2f(*(KC_GLOBAL const f16 *)at);
    else
        y[i] = kc_as_f32((u32) * (KC_GLOBAL const u16 *)at << 16);
}

/* kind 0: i32, 1: i64; what i32 cannot hold becomes its end and is out of every range */
KC_ENTRY(to_i32)
{
    const i32 i = gx * 64 + lane;
    if (i >= n)
        return;
    KC_GLOBAL const u8 *at = x + source_of(i, n1, n2, n3, s0, s1, s2, s3);
    if (kind == 0) {
        y[i] = *(KC_GLOBAL const i32 *)at;
    } else {
        const i64 wide = *(KC_GLOBAL const i64 *)at;
        y[i] = wide > 0x7fffffff ? 0x7fffffff : (wide < -0x7fffffff ? -0x7fffffff : (i32)wide);
    }
}
