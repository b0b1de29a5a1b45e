#line 1 "generated:kvcore/ops/resolve.c"
typedef struct { i32 n_queries; i32 n_ids; i32 n_units; i32 n_slots; i32 unit_cells; } kc_resolve_values;
static __device__ __forceinline__ void kc_resolve_body(i32 *__restrict__ table, i32 *__restrict__ slot_unit, i32 *__restrict__ slot_stamp, i32 *__restrict__ slot_ref, i32 *__restrict__ ctl, const i32 *__restrict__ ids, i32 *__restrict__ missing, i32 *__restrict__ moves, i32 *__restrict__ errors, const i32 n_queries, const i32 n_ids, const i32 n_units, const i32 n_slots, const i32 unit_cells, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(1, 4) kc_resolve(
    i32 *__restrict__ table,
    i32 *__restrict__ slot_unit,
    i32 *__restrict__ slot_stamp,
    i32 *__restrict__ slot_ref,
    i32 *__restrict__ ctl,
    const i32 *__restrict__ ids,
    i32 *__restrict__ missing,
    i32 *__restrict__ moves,
    i32 *__restrict__ errors,
    const kc_resolve_values kc_values)
{
    kc_resolve_body(table, slot_unit, slot_stamp, slot_ref, ctl, ids, missing, moves, errors, kc_values.n_queries, kc_values.n_ids, kc_values.n_units, kc_values.n_slots, kc_values.unit_cells, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_resolve static __device__ __forceinline__ void kc_resolve_body(i32 *__restrict__ table, i32 *__restrict__ slot_unit, i32 *__restrict__ slot_stamp, i32 *__restrict__ slot_ref, i32 *__restrict__ ctl, const i32 *__restrict__ ids, i32 *__restrict__ missing, i32 *__restrict__ moves, i32 *__restrict__ errors, const i32 n_queries, const i32 n_ids, const i32 n_units, const i32 n_slots, const i32 unit_cells, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
