/* The portable half of the dialect: the same text, hence the same bits, on every target. */
#define KC_ENTRY(name) KC_ENTRY_##name
#ifndef KC_ORDERED
#define KC_ORDERED /* before a loop that sums, where a compiler reorders sums unless told */
#endif
#ifndef KC_UNROLL
#define KC_UNROLL /* before a short loop over a private array, where a compiler must be told */
#endif

KC_FN f32 kc_abs(f32 x) { return kc_as_f32(kc_as_u32(x) & 0x7fffffffu); }
/* With a NaN on either side the second operand is returned, on every target. */
KC_FN f32 kc_max(f32 a, f32 b) { return a > b ? a : b; }
KC_FN f32 kc_min(f32 a, f32 b) { return a < b ? a : b; }
/* By bits: compilers fold comparisons away when told that no NaN exists. */
KC_FN i32 kc_isfinite(f32 x) { return (kc_as_u32(x) & 0x7f800000u) != 0x7f800000u; }

/* f32 to f16, nearest even; beyond 65519.99 infinity; subnormals kept. NaN is left to kc_f2h. */
KC_FN f16 kc_soft_f2h(f32 x)
{
    const u32 sign = (kc_as_u32(x) >> 16) & 0x8000u;
    const u32 bits = kc_as_u32(x) & 0x7fffffffu;
    if (bits >= 0x477ff000u)
        return (f16)(sign | 0x7c00u);
    if (bits < 0x33000000u)
        return (f16)sign;
    if (bits < 0x38800000u) {
        const u32 shift = 126u - (bits >> 23);
        const u32 whole = (bits & 0x007fffffu) | 0x00800000u;
        const u32 kept = whole >> shift;
        const u32 rest = whole & ((1u << shift) - 1u);
        const u32 half_way = 1u << (shift - 1u);
        const u32 up = (rest > half_way) || (rest == half_way && (kept & 1u)) ? 1u : 0u;
        return (f16)(sign | (kept + up));
    }
    return (f16)(sign | ((bits - 0x38000000u + 0x0fffu + ((bits >> 13) & 1u)) >> 13));
}

/* f16 to f32, exact; no f32 subnormal appears on the way. */
KC_FN f32 kc_soft_h2f(f16 h)
{
    const u32 sign = ((u32)h & 0x8000u) << 16;
    const u32 exponent = ((u32)h >> 10) & 31u;
    const u32 mantissa = (u32)h & 0x3ffu;
    if (exponent == 0u)
        return kc_as_f32(sign | kc_as_u32((f32)(i32)mantissa * 5.9604644775390625e-8f));
    if (exponent == 31u)
        return kc_as_f32(sign | (mantissa ? 0x7fc00000u : 0x7f800000u) | (mantissa << 13));
    return kc_as_f32(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

#ifdef KC_SOFT_F16
#define kc_hardware_f2h kc_soft_f2h
#define kc_h2f kc_soft_h2f
#endif

/* Hardware differs in what a NaN becomes: here it is the sign and 0x7e00. */
KC_FN f16 kc_f2h(f32 x)
{
    const u32 bits = kc_as_u32(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (f16)(((bits >> 16) & 0x8000u) | 0x7e00u);
    return kc_hardware_f2h(x);
}

/* exp by Cody and Waite's reduction and a degree-6 polynomial: only + - * rint and bit moves.
   Relative error < 1.2e-7; below -86 it is 0, so no subnormal is made. */
KC_FN f32 kc_exp(f32 x)
{
    if (!(x >= -86.0f))
        return x < -86.0f ? 0.0f : x;
    if (x > 88.72283f)
        return kc_as_f32(0x7f800000u);
    const f32 n = kc_rint(x * 1.44269504f);
    const f32 high = x - n * 0.693359375f;
    const f32 r = high - n * -2.12194440e-4f;
    f32 p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const f32 y = p * (r * r) + r + 1.0f;
    return y * 2.0f * kc_as_f32((u32)((i32)n + 126) << 23);
}

/* Natural logarithm, by the same means; relative error < 2e-7. Zero (and, where a device flushes
   them, subnormals) gives -infinity, a negative number NaN. */
KC_FN f32 kc_log(f32 x)
{
    u32 bits = kc_as_u32(x);
    i32 e = 0;
    if (bits > 0x7f800000u && bits != 0x80000000u)
        return bits < 0x80000000u ? x : kc_as_f32(0x7fc00000u);
    if ((bits & 0x7fffffffu) == 0u)
        return kc_as_f32(0xff800000u);
    if (bits == 0x7f800000u)
        return x;
    if (bits < 0x00800000u) {
        bits = kc_as_u32(x * 8388608.0f);
        e = -23;
        if (bits == 0u)
            return kc_as_f32(0xff800000u);
    }
    e += (i32)(bits >> 23) - 126;
    f32 m = kc_as_f32((bits & 0x007fffffu) | 0x3f000000u);
    if (m < 0.707106781f) {
        e -= 1;
        m = m + m;
    }
    const f32 r = m - 1.0f;
    const f32 z = r * r;
    f32 p = 7.0376836292e-2f;
    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    const f32 n = (f32)e;
    f32 y = p * (r * z);
    y = y + n * -2.12194440e-4f;
    y = y - 0.5f * z;
    return (r + y) + n * 0.693359375f;
}

#ifdef KC_SOFT_DIV
/* For devices whose division or square root is not correctly rounded: integers, nearest even. */
KC_FN f32 kc_pack(u32 sign, i32 e, u32 kept, u32 sticky)
{
    /* value = kept * 2^(e - 25), 2^25 <= kept < 2^26 (two guard bits), sticky = anything below */
    i32 shift = 2;
    if (e > 127)
        return kc_as_f32(sign | 0x7f800000u);
    if (e < -126)
        shift += -126 - e;
    if (shift > 27)
        return kc_as_f32(sign);
    const u32 rest = (kept & ((1u << shift) - 1u)) << 1 | (sticky ? 1u : 0u);
    const u32 half_way = 1u << shift;
    u32 bits = kept >> shift;
    bits += (rest > half_way) || (rest == half_way && (bits & 1u)) ? 1u : 0u;
    if (e >= -126)
        bits += (u32)(e + 126) << 23;
    return kc_as_f32(sign | bits);
}

/* Put a finite, non-zero number's mantissa into 2^23..2^24 and return its exponent. */
KC_FN i32 kc_unpack(u32 bits, u32 *mantissa)
{
    i32 e = (i32)((bits >> 23) & 255u) - 127;
    u32 m = bits & 0x007fffffu;
    if (e == -127) {
        e = -126;
        while (m < 0x00800000u) {
            m <<= 1;
            e -= 1;
        }
    } else {
        m |= 0x00800000u;
    }
    *mantissa = m;
    return e;
}

KC_FN f32 kc_div(f32 a, f32 b)
{
    const u32 sign = (kc_as_u32(a) ^ kc_as_u32(b)) & 0x80000000u;
    const u32 ua = kc_as_u32(a) & 0x7fffffffu, ub = kc_as_u32(b) & 0x7fffffffu;
    u32 ma, mb;
    if (ua > 0x7f800000u || ub > 0x7f800000u || (ua == 0x7f800000u && ub == 0x7f800000u) ||
        (ua == 0u && ub == 0u))
        return kc_as_f32(0x7fc00000u);
    if (ua == 0x7f800000u || ub == 0u)
        return kc_as_f32(sign | 0x7f800000u);
    if (ua == 0u || ub == 0x7f800000u)
        return kc_as_f32(sign);
    i32 e = kc_unpack(ua, &ma) - kc_unpack(ub, &mb);
    if (ma < mb) {
        ma <<= 1;
        e -= 1;
    }
    const i64 top = (i64)ma << 25;
    const i64 q = top / (i64)mb;
    return kc_pack(sign, e, (u32)q, (u32)(top - q * (i64)mb));
}

KC_FN f32 kc_sqrt(f32 x)
{
    const u32 bits = kc_as_u32(x);
    u32 m;
    if ((bits & 0x7fffffffu) == 0u || bits == 0x7f800000u)
        return x;
    if (bits > 0x7f800000u)
        return kc_as_f32(0x7fc00000u);
    i32 e = kc_unpack(bits, &m);
    i64 left = (i64)m << 27; /* square of the wanted 26 bits */
    if (e & 1) {
        left <<= 1;
        e -= 1;
    }
    i64 root = 0;
    for (i32 i = 25; i >= 0; i--) {
        const i64 next = root | ((i64)1 << i);
        if (next * next <= left)
            root = next;
    }
    return kc_pack(0u, e / 2, (u32)root, (u32)(left != root * root));
}
#endif
