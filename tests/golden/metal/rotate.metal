#line 1 "generated:kvcore/ops/rotate.c"
#define BLOCK (128)
#define LANES (64)
#define SCALE kc_as_f32(0x3db504f3u)
typedef struct { i32 n_blocks; i32 n_columns; } kc_rotate_values;
static inline void kc_rotate_body(device const f32 *x, device f32 *y, const i32 n_blocks, const i32 n_columns, threadgroup f32 *values, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_rotate(
    device const f32 *x [[buffer(0)]],
    device f32 *y [[buffer(1)]],
    constant kc_rotate_values &kc_values [[buffer(2)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    threadgroup f32 values[128];
    kc_rotate_body(x, y, kc_values.n_blocks, kc_values.n_columns, values, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_rotate static inline void kc_rotate_body(device const f32 *x, device f32 *y, const i32 n_blocks, const i32 n_columns, threadgroup f32 *values, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
