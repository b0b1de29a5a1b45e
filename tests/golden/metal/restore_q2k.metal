#line 1 "generated:kvcore/ops/restore.c"
#define CENTRE (1)
#define K_BITS (2)
#define K_CODE_MASK (3)
#define K_DIM (128)
#define K_DIVISOR kc_as_f32(0x3f800000u)
#define K_GROUP (32)
#define K_HALVES (0)
#define K_HIGH (3)
#define K_KIND (4)
#define K_LOW (0)
#define K_N_LEVELS (4)
#define K_PER_BYTE (4)
#define K_PER_CHANNEL (1)
#define K_ROUNDING (3)
#define K_ROW_BYTES (32)
#define K_RULE (2)
#define K_SIGNED (0)
#define K_STORED (1)
#define K_ZERO (0)
#define V_BITS (4)
#define V_CODE_MASK (15)
#define V_DIM (128)
#define V_DIVISOR kc_as_f32(0xc1000000u)
#define V_GROUP (32)
#define V_HALVES (1)
#define V_HIGH (15)
#define V_KIND (3)
#define V_LOW (0)
#define V_N_LEVELS (16)
#define V_PER_BYTE (2)
#define V_PER_CHANNEL (0)
#define V_ROUNDING (2)
#define V_ROW_BYTES (64)
#define V_RULE (1)
#define V_SIGNED (0)
#define V_STORED (0)
#define V_ZERO (8)
constant u32 kc_bits_k_levels[4] = {0xbfc1555du, 0xbee7d2c9u, 0x3ee7d2c9u, 0x3fc1555du};
KC_FN f32 k_levels(i32 i) { return kc_as_f32(kc_bits_k_levels[i]); }
constant u32 kc_bits_k_thresholds[3] = {0xbf7b4a0fu, 0x00000000u, 0x3f7b4a0fu};
KC_FN f32 k_thresholds(i32 i) { return kc_as_f32(kc_bits_k_thresholds[i]); }
constant u32 kc_bits_v_levels[1] = {0x00000000u};
KC_FN f32 v_levels(i32 i) { return kc_as_f32(kc_bits_v_levels[i]); }
constant u32 kc_bits_v_thresholds[1] = {0x00000000u};
KC_FN f32 v_thresholds(i32 i) { return kc_as_f32(kc_bits_v_thresholds[i]); }
typedef struct { i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; i32 window; i32 n_chunks; } kc_restore_values;
static inline void kc_restore_body(device const u8 *k_codes, device const f16 *k_scales, device const u8 *v_codes, device const f16 *v_scales, device const i32 *table, device const i32 *marks, device const i32 *lengths, device const f16 *centre, device f16 *k_slots, device f16 *v_slots, device i32 *errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 window, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_restore(
    device const u8 *k_codes [[buffer(0)]],
    device const f16 *k_scales [[buffer(1)]],
    device const u8 *v_codes [[buffer(2)]],
    device const f16 *v_scales [[buffer(3)]],
    device const i32 *table [[buffer(4)]],
    device const i32 *marks [[buffer(5)]],
    device const i32 *lengths [[buffer(6)]],
    device const f16 *centre [[buffer(7)]],
    device f16 *k_slots [[buffer(8)]],
    device f16 *v_slots [[buffer(9)]],
    device i32 *errors [[buffer(10)]],
    constant kc_restore_values &kc_values [[buffer(11)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_restore_body(k_codes, k_scales, v_codes, v_scales, table, marks, lengths, centre, k_slots, v_slots, errors, kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, kc_values.window, kc_values.n_chunks, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_restore static inline void kc_restore_body(device const u8 *k_codes, device const f16 *k_scales, device const u8 *v_codes, device const f16 *v_scales, device const i32 *table, device const i32 *marks, device const i32 *lengths, device const f16 *centre, device f16 *k_slots, device f16 *v_slots, device i32 *errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 window, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_sequences; i32 window; i32 k_ring; i32 v_ring; } kc_reach_values;
static inline void kc_reach_body(device i32 *marks, device const i32 *lengths, const i32 n_sequences, const i32 window, const i32 k_ring, const i32 v_ring, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_reach(
    device i32 *marks [[buffer(0)]],
    device const i32 *lengths [[buffer(1)]],
    constant kc_reach_values &kc_values [[buffer(2)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_reach_body(marks, lengths, kc_values.n_sequences, kc_values.window, kc_values.k_ring, kc_values.v_ring, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_reach static inline void kc_reach_body(device i32 *marks, device const i32 *lengths, const i32 n_sequences, const i32 window, const i32 k_ring, const i32 v_ring, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
