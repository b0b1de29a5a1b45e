#line 1 "generated:kvcore/ops/rotate.c"
#define BLOCK (128)
#define LANES (64)
#define SCALE kc_as_f32(0x3db504f3u)
typedef struct { i64 x_at; i64 y_at; i32 n_blocks; i32 n_columns; } kc_rotate_values;
static inline void kc_rotate_body(__global const f32 *x, __global f32 *y, const i32 n_blocks, const i32 n_columns, __local f32 *values, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_rotate(
    __global const f32 *x,
    __global f32 *y,
    const kc_rotate_values kc_values)
{
    __local f32 values[128];
    kc_rotate_body((KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)x + kc_values.x_at), (KC_GLOBAL f32 *)((KC_GLOBAL u8 *)y + kc_values.y_at), kc_values.n_blocks, kc_values.n_columns, values, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_rotate static inline void kc_rotate_body(__global const f32 *x, __global f32 *y, const i32 n_blocks, const i32 n_columns, __local f32 *values, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
