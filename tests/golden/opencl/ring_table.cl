#line 1 "generated:kvcore/ops/ring_table.c"
typedef struct { i64 slots_at; i32 n_blocks; i32 n_slots; i32 unit; } kc_ring_table_values;
static inline void kc_ring_table_body(__global i32 *restrict slots, const i32 n_blocks, const i32 n_slots, const i32 unit, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_ring_table(
    __global i32 *restrict slots,
    const kc_ring_table_values kc_values)
{
    kc_ring_table_body((KC_GLOBAL i32 *)((KC_GLOBAL u8 *)slots + kc_values.slots_at), kc_values.n_blocks, kc_values.n_slots, kc_values.unit, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_ring_table static inline void kc_ring_table_body(__global i32 *restrict slots, const i32 n_blocks, const i32 n_slots, const i32 unit, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
