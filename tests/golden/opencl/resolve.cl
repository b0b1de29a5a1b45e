#line 1 "generated:kvcore/ops/resolve.c"
typedef struct { i64 table_at; i64 slot_unit_at; i64 slot_stamp_at; i64 slot_ref_at; i64 ctl_at; i64 ids_at; i64 missing_at; i64 moves_at; i64 errors_at; i32 n_queries; i32 n_ids; i32 n_units; i32 n_slots; i32 unit_cells; } kc_resolve_values;
static inline void kc_resolve_body(__global i32 *restrict table, __global i32 *restrict slot_unit, __global i32 *restrict slot_stamp, __global i32 *restrict slot_ref, __global i32 *restrict ctl, __global const i32 *restrict ids, __global i32 *restrict missing, __global i32 *restrict moves, __global i32 *restrict errors, const i32 n_queries, const i32 n_ids, const i32 n_units, const i32 n_slots, const i32 unit_cells, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void kc_resolve(
    __global i32 *restrict table,
    __global i32 *restrict slot_unit,
    __global i32 *restrict slot_stamp,
    __global i32 *restrict slot_ref,
    __global i32 *restrict ctl,
    __global const i32 *restrict ids,
    __global i32 *restrict missing,
    __global i32 *restrict moves,
    __global i32 *restrict errors,
    const kc_resolve_values kc_values)
{
    kc_resolve_body((KC_GLOBAL i32 *)((KC_GLOBAL u8 *)table + kc_values.table_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)slot_unit + kc_values.slot_unit_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)slot_stamp + kc_values.slot_stamp_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)slot_ref + kc_values.slot_ref_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)ctl + kc_values.ctl_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)ids + kc_values.ids_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)missing + kc_values.missing_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)moves + kc_values.moves_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)errors + kc_values.errors_at), kc_values.n_queries, kc_values.n_ids, kc_values.n_units, kc_values.n_slots, kc_values.unit_cells, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_resolve static inline void kc_resolve_body(__global i32 *restrict table, __global i32 *restrict slot_unit, __global i32 *restrict slot_stamp, __global i32 *restrict slot_ref, __global i32 *restrict ctl, __global const i32 *restrict ids, __global i32 *restrict missing, __global i32 *restrict moves, __global i32 *restrict errors, const i32 n_queries, const i32 n_ids, const i32 n_units, const i32 n_slots, const i32 unit_cells, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
