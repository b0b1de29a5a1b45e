#line 1 "generated:kvcore/ops/attention.c"
#define CENTRE (0)
#define GROUP_HEADS (4)
#define HEADS (4)
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
#define N_ACC (8)
#define N_CHUNKS (1)
#define SPLIT (256)
#define TILE (32)
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
typedef struct { i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; i32 n_tokens; i32 n_splits; i32 n_ids; i32 per_query; i32 has_ids; i32 ids_per_query; i32 has_state; i32 has_own; i32 window; i32 limit; i32 first_row; i32 first; i32 stop; f32 scale; f32 softcap; } kc_split_values;
static inline void kc_split_body(device const f32 *q, device const u8 *k_codes, device const f16 *k_scales, device const u8 *v_codes, device const f16 *v_scales, device const i32 *table, device const i32 *lengths, device const i32 *ids, device const i32 *marks, device const f16 *k_slots, device const f16 *v_slots, device const f16 *centre, device const f32 *own_k, device const f32 *own_v, device f32 *partial, device f32 *sums, device i32 *errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_splits, const i32 n_ids, const i32 per_query, const i32 has_ids, const i32 ids_per_query, const i32 has_state, const i32 has_own, const i32 window, const i32 limit, const i32 first_row, const i32 first, const i32 stop, const f32 scale, const f32 softcap, threadgroup i64 *place, threadgroup f32 *tile, threadgroup f32 *weights, threadgroup f32 *shrinks, threadgroup f32 *tops, threadgroup f32 *totals, threadgroup i32 *where, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_split(
    device const f32 *q [[buffer(0)]],
    device const u8 *k_codes [[buffer(1)]],
    device const f16 *k_scales [[buffer(2)]],
    device const u8 *v_codes [[buffer(3)]],
    device const f16 *v_scales [[buffer(4)]],
    device const i32 *table [[buffer(5)]],
    device const i32 *lengths [[buffer(6)]],
    device const i32 *ids [[buffer(7)]],
    device const i32 *marks [[buffer(8)]],
    device const f16 *k_slots [[buffer(9)]],
    device const f16 *v_slots [[buffer(10)]],
    device const f16 *centre [[buffer(11)]],
    device const f32 *own_k [[buffer(12)]],
    device const f32 *own_v [[buffer(13)]],
    device f32 *partial [[buffer(14)]],
    device f32 *sums [[buffer(15)]],
    device i32 *errors [[buffer(16)]],
    constant kc_split_values &kc_values [[buffer(17)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    threadgroup i64 place[128];
    threadgroup f32 tile[4224];
    threadgroup f32 weights[128];
    threadgroup f32 shrinks[4];
    threadgroup f32 tops[4];
    threadgroup f32 totals[4];
    threadgroup i32 where[64];
    kc_split_body(q, k_codes, k_scales, v_codes, v_scales, table, lengths, ids, marks, k_slots, v_slots, centre, own_k, own_v, partial, sums, errors, kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, kc_values.n_tokens, kc_values.n_splits, kc_values.n_ids, kc_values.per_query, kc_values.has_ids, kc_values.ids_per_query, kc_values.has_state, kc_values.has_own, kc_values.window, kc_values.limit, kc_values.first_row, kc_values.first, kc_values.stop, kc_values.scale, kc_values.softcap, place, tile, weights, shrinks, tops, totals, where, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_split static inline void kc_split_body(device const f32 *q, device const u8 *k_codes, device const f16 *k_scales, device const u8 *v_codes, device const f16 *v_scales, device const i32 *table, device const i32 *lengths, device const i32 *ids, device const i32 *marks, device const f16 *k_slots, device const f16 *v_slots, device const f16 *centre, device const f32 *own_k, device const f32 *own_v, device f32 *partial, device f32 *sums, device i32 *errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_splits, const i32 n_ids, const i32 per_query, const i32 has_ids, const i32 ids_per_query, const i32 has_state, const i32 has_own, const i32 window, const i32 limit, const i32 first_row, const i32 first, const i32 stop, const f32 scale, const f32 softcap, threadgroup i64 *place, threadgroup f32 *tile, threadgroup f32 *weights, threadgroup f32 *shrinks, threadgroup f32 *tops, threadgroup f32 *totals, threadgroup i32 *where, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_splits; i32 n_queries; } kc_merge_values;
static inline void kc_merge_body(device const f32 *partial, device const f32 *sums, device f32 *out, device f32 *lse, const i32 n_splits, const i32 n_queries, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_merge(
    device const f32 *partial [[buffer(0)]],
    device const f32 *sums [[buffer(1)]],
    device f32 *out [[buffer(2)]],
    device f32 *lse [[buffer(3)]],
    constant kc_merge_values &kc_values [[buffer(4)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_merge_body(partial, sums, out, lse, kc_values.n_splits, kc_values.n_queries, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_merge static inline void kc_merge_body(device const f32 *partial, device const f32 *sums, device f32 *out, device f32 *lse, const i32 n_splits, const i32 n_queries, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
