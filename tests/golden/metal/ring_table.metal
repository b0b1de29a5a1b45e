#line 1 "generated:kvcore/ops/ring_table.c"
typedef struct { i32 n_blocks; i32 n_slots; i32 unit; } kc_ring_table_values;
static inline void kc_ring_table_body(device i32 *slots, const i32 n_blocks, const i32 n_slots, const i32 unit, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_ring_table(
    device i32 *slots [[buffer(0)]],
    constant kc_ring_table_values &kc_values [[buffer(1)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_ring_table_body(slots, kc_values.n_blocks, kc_values.n_slots, kc_values.unit, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_ring_table static inline void kc_ring_table_body(device i32 *slots, const i32 n_blocks, const i32 n_slots, const i32 unit, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
