#line 1 "generated:kvcore/ops/move.c"
typedef struct { i64 origin_at; i64 target_at; i64 from_units_at; i64 to_units_at; i64 unit_bytes; i32 n_chunks; } kc_move_values;
static inline void kc_move_body(__global const u8 *restrict origin, __global u8 *restrict target, __global const i32 *restrict from_units, __global const i32 *restrict to_units, const i64 unit_bytes, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_move(
    __global const u8 *restrict origin,
    __global u8 *restrict target,
    __global const i32 *restrict from_units,
    __global const i32 *restrict to_units,
    const kc_move_values kc_values)
{
    kc_move_body((KC_GLOBAL const u8 *)((KC_GLOBAL const u8 *)origin + kc_values.origin_at), (KC_GLOBAL u8 *)((KC_GLOBAL u8 *)target + kc_values.target_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)from_units + kc_values.from_units_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)to_units + kc_values.to_units_at), kc_values.unit_bytes, kc_values.n_chunks, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_move static inline void kc_move_body(__global const u8 *restrict origin, __global u8 *restrict target, __global const i32 *restrict from_units, __global const i32 *restrict to_units, const i64 unit_bytes, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
