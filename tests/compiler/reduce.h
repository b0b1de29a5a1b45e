/* The largest of n values in shared memory, for every lane. */
KC_FN f32 reduce_max(KC_LOCAL f32 *values, i32 lane, i32 n)
{
    KC_BARRIER();
    for (i32 step = n / 2; step > 0; step >>= 1) {
        if (lane < step)
            values[lane] = kc_max(values[lane], values[lane + step]);
        KC_BARRIER();
    }
    return values[0];
}
