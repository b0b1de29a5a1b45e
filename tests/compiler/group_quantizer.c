/* int8 codes of groups of GROUP values, one group of lanes each: barriers and shared memory. */
#include "reduce.h"

KC_ENTRY(quantize)
{
    const i64 at = (i64)(gx + gy * n_columns) * GROUP + lane;
    const f32 v = x[at];
    shared[lane] = kc_abs(v);
    const f32 largest = reduce_max(shared, lane, GROUP);
    const f16 stored = kc_f2h(kc_div(largest, 127.0f));
    const f32 scale = kc_h2f(stored);
    f32 code = scale > 0.0f ? kc_rint(kc_div(v, scale)) : 0.0f;
    code = kc_min(kc_max(code, -127.0f), 127.0f);
    codes[at] = (i8)(i32)code;
    if (lane == 0)
        scales[gx + gy * n_columns] = stored;
}

/* A second entry of the same file, with the table and a value of every type. */
KC_ENTRY(lookup)
{
    const i32 i = gx * 32 + lane;
    if (i >= n)
        return;
    y[i] = levels(i & 3) * gain + (f32)(i32)bias + (f32)(base - ((i64)1 << 40));
}
