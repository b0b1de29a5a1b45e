/* Every function of the dialect, element by element. */
KC_ENTRY(narrow)
{
    const i64 i = (i64)gx * 256 + lane;
    if (i < n)
        y[i] = kc_f2h(x[i]);
}

KC_ENTRY(widen)
{
    const i64 i = (i64)gx * 256 + lane;
    if (i < n)
        y[i] = kc_h2f(x[i]);
}

KC_ENTRY(unary)
{
    const i64 i = (i64)gx * 256 + lane;
    if (i >= n)
        return;
    const f32 v = x[i];
    y[i] = kc_exp(v);
    y[n + i] = kc_log(v);
    y[2 * n + i] = kc_rint(v);
    y[3 * n + i] = kc_sqrt(v);
    y[4 * n + i] = kc_abs(v);
    y[5 * n + i] = kc_isfinite(v) ? 1.0f : 0.0f;
}

KC_ENTRY(binary)
{
    const i64 i = (i64)gx * 256 + lane;
    if (i >= n)
        return;
    const f32 v = x[i], w = z[i];
    y[i] = kc_div(v, w);
    y[n + i] = kc_fma(v, w, v);
    y[2 * n + i] = v * w + v;
    y[3 * n + i] = kc_max(v, w);
    y[4 * n + i] = kc_min(v, w);
}

/* The same butterfly through the SIMD group and through shared memory. */
KC_ENTRY(simd)
{
    const i64 i = (i64)gx * 32 + lane;
    f32 v = x[i];
#if KC_SIMD
    for (i32 step = 16; step > 0; step >>= 1)
        v = v + kc_simd_xor(v, step);
#else
    for (i32 step = 16; step > 0; step >>= 1) {
        KC_BARRIER();
        shared[lane] = v;
        KC_BARRIER();
        v = v + shared[lane ^ step];
    }
#endif
    y[i] = v;
}
