#line 1 "generated:kvcore/ops/gather.c"
#define K_BITS (8)
#define K_CODE_MASK (255)
#define K_DIM (128)
#define K_DIVISOR kc_as_f32(0x42fe0000u)
#define K_GROUP (64)
#define K_HALVES (0)
#define K_HIGH (127)
#define K_KIND (3)
#define K_LOW (-127)
#define K_N_LEVELS (255)
#define K_PER_BYTE (1)
#define K_PER_CHANNEL (0)
#define K_ROUNDING (0)
#define K_ROW_BYTES (128)
#define K_RULE (0)
#define K_SIGNED (1)
#define K_STORED (1)
#define K_ZERO (0)
#define V_BITS (8)
#define V_CODE_MASK (255)
#define V_DIM (128)
#define V_DIVISOR kc_as_f32(0x42fe0000u)
#define V_GROUP (64)
#define V_HALVES (0)
#define V_HIGH (127)
#define V_KIND (3)
#define V_LOW (-127)
#define V_N_LEVELS (255)
#define V_PER_BYTE (1)
#define V_PER_CHANNEL (0)
#define V_ROUNDING (0)
#define V_ROW_BYTES (128)
#define V_RULE (0)
#define V_SIGNED (1)
#define V_STORED (1)
#define V_ZERO (0)
constant u32 kc_bits_k_levels[1] = {0x00000000u};
KC_FN f32 k_levels(i32 i) { return kc_as_f32(kc_bits_k_levels[i]); }
constant u32 kc_bits_k_thresholds[1] = {0x00000000u};
KC_FN f32 k_thresholds(i32 i) { return kc_as_f32(kc_bits_k_thresholds[i]); }
constant u32 kc_bits_v_levels[1] = {0x00000000u};
KC_FN f32 v_levels(i32 i) { return kc_as_f32(kc_bits_v_levels[i]); }
constant u32 kc_bits_v_thresholds[1] = {0x00000000u};
KC_FN f32 v_thresholds(i32 i) { return kc_as_f32(kc_bits_v_thresholds[i]); }
typedef struct { i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 n_ids; i32 n_chunks; } kc_gather_values;
static inline void kc_gather_body(device const u8 *k_codes, device const f16 *k_scales, device const u8 *v_codes, device const f16 *v_scales, device const i32 *table, device const i32 *ids, device f16 *k, device f16 *v, device i32 *errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 n_ids, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_gather(
    device const u8 *k_codes [[buffer(0)]],
    device const f16 *k_scales [[buffer(1)]],
    device const u8 *v_codes [[buffer(2)]],
    device const f16 *v_scales [[buffer(3)]],
    device const i32 *table [[buffer(4)]],
    device const i32 *ids [[buffer(5)]],
    device f16 *k [[buffer(6)]],
    device f16 *v [[buffer(7)]],
    device i32 *errors [[buffer(8)]],
    constant kc_gather_values &kc_values [[buffer(9)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_gather_body(k_codes, k_scales, v_codes, v_scales, table, ids, k, v, errors, kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.n_ids, kc_values.n_chunks, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_gather static inline void kc_gather_body(device const u8 *k_codes, device const f16 *k_scales, device const u8 *v_codes, device const f16 *v_scales, device const i32 *table, device const i32 *ids, device f16 *k, device f16 *v, device i32 *errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 n_ids, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
