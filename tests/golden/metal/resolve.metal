#line 1 "generated:kvcore/ops/resolve.c"
typedef struct { i32 n_queries; i32 n_ids; i32 n_units; i32 n_slots; i32 unit_cells; } kc_resolve_values;
static inline void kc_resolve_body(device i32 *table, device i32 *slot_unit, device i32 *slot_stamp, device i32 *slot_ref, device i32 *ctl, device const i32 *ids, device i32 *missing, device i32 *moves, device i32 *errors, const i32 n_queries, const i32 n_ids, const i32 n_units, const i32 n_slots, const i32 unit_cells, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(1)]]
kernel void kc_resolve(
    device i32 *table [[buffer(0)]],
    device i32 *slot_unit [[buffer(1)]],
    device i32 *slot_stamp [[buffer(2)]],
    device i32 *slot_ref [[buffer(3)]],
    device i32 *ctl [[buffer(4)]],
    device const i32 *ids [[buffer(5)]],
    device i32 *missing [[buffer(6)]],
    device i32 *moves [[buffer(7)]],
    device i32 *errors [[buffer(8)]],
    constant kc_resolve_values &kc_values [[buffer(9)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_resolve_body(table, slot_unit, slot_stamp, slot_ref, ctl, ids, missing, moves, errors, kc_values.n_queries, kc_values.n_ids, kc_values.n_units, kc_values.n_slots, kc_values.unit_cells, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_resolve static inline void kc_resolve_body(device i32 *table, device i32 *slot_unit, device i32 *slot_stamp, device i32 *slot_ref, device i32 *ctl, device const i32 *ids, device i32 *missing, device i32 *moves, device i32 *errors, const i32 n_queries, const i32 n_ids, const i32 n_units, const i32 n_slots, const i32 unit_cells, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
