#line 1 "generated:kvcore/ops/move.c"
typedef struct { i64 unit_bytes; i32 n_chunks; } kc_move_values;
static inline void kc_move_body(device const u8 *origin, device u8 *target, device const i32 *from_units, device const i32 *to_units, const i64 unit_bytes, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_move(
    device const u8 *origin [[buffer(0)]],
    device u8 *target [[buffer(1)]],
    device const i32 *from_units [[buffer(2)]],
    device const i32 *to_units [[buffer(3)]],
    constant kc_move_values &kc_values [[buffer(4)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_move_body(origin, target, from_units, to_units, kc_values.unit_bytes, kc_values.n_chunks, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_move static inline void kc_move_body(device const u8 *origin, device u8 *target, device const i32 *from_units, device const i32 *to_units, const i64 unit_bytes, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
