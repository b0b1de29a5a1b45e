/* One group of lanes per block of BLOCK values: scale, then the butterflies in ascending order. */
KC_ENTRY(rotate)
{
    const i64 at = ((i64)gy * n_columns + gx) * BLOCK;
    if ((i64)gy * n_columns + gx >= n_blocks)
        return;
    for (i32 i = lane; i < BLOCK; i += LANES)
        values[i] = x[at + i] * SCALE;
    for (i32 step = 1; step < BLOCK; step *= 2) {
        KC_BARRIER();
        for (i32 i = lane; i < BLOCK / 2; i += LANES) {
            const i32 low = i / step * (2 * step) + i % step;
            const f32 u = values[low];
            const f32 v = values[low + step];
            values[low] = u + v;
            values[low + step] = u - v;
        }
    }
    KC_BARRIER();
    for (i32 i = lane; i < BLOCK; i += LANES)
        y[at + i] = values[i];
}
