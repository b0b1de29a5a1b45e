#line 1 "generated:kvcore/ops/attention.c"
#define CENTRE (1)
#define GROUP_HEADS (4)
#define HEADS (4)
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
#define N_ACC (8)
#define N_CHUNKS (1)
#define SPLIT (256)
#define TILE (32)
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
__constant u32 kc_bits_k_levels[4] = {0xbfc1555du, 0xbee7d2c9u, 0x3ee7d2c9u, 0x3fc1555du};
KC_FN f32 k_levels(i32 i) { return kc_as_f32(kc_bits_k_levels[i]); }
__constant u32 kc_bits_k_thresholds[3] = {0xbf7b4a0fu, 0x00000000u, 0x3f7b4a0fu};
KC_FN f32 k_thresholds(i32 i) { return kc_as_f32(kc_bits_k_thresholds[i]); }
__constant u32 kc_bits_v_levels[1] = {0x00000000u};
KC_FN f32 v_levels(i32 i) { return kc_as_f32(kc_bits_v_levels[i]); }
__constant u32 kc_bits_v_thresholds[1] = {0x00000000u};
KC_FN f32 v_thresholds(i32 i) { return kc_as_f32(kc_bits_v_thresholds[i]); }
typedef struct { i64 q_at; i64 k_codes_at; i64 k_scales_at; i64 v_codes_at; i64 v_scales_at; i64 table_at; i64 lengths_at; i64 ids_at; i64 marks_at; i64 k_slots_at; i64 v_slots_at; i64 centre_at; i64 own_k_at; i64 own_v_at; i64 partial_at; i64 sums_at; i64 errors_at; i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; i32 n_tokens; i32 n_splits; i32 n_ids; i32 per_query; i32 has_ids; i32 ids_per_query; i32 has_state; i32 has_own; i32 window; i32 limit; i32 first_row; i32 first; i32 stop; f32 scale; f32 softcap; } kc_split_values;
static inline void kc_split_body(__global const f32 *restrict q, __global const u8 *restrict k_codes, __global const f16 *restrict k_scales, __global const u8 *restrict v_codes, __global const f16 *restrict v_scales, __global const i32 *restrict table, __global const i32 *restrict lengths, __global const i32 *restrict ids, __global const i32 *restrict marks, __global const f16 *restrict k_slots, __global const f16 *restrict v_slots, __global const f16 *restrict centre, __global const f32 *restrict own_k, __global const f32 *restrict own_v, __global f32 *restrict partial, __global f32 *restrict sums, __global i32 *restrict errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_splits, const i32 n_ids, const i32 per_query, const i32 has_ids, const i32 ids_per_query, const i32 has_state, const i32 has_own, const i32 window, const i32 limit, const i32 first_row, const i32 first, const i32 stop, const f32 scale, const f32 softcap, __local i64 *place, __local f32 *tile, __local f32 *weights, __local f32 *shrinks, __local f32 *tops, __local f32 *totals, __local i32 *where, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_split(
    __global const f32 *restrict q,
    __global const u8 *restrict k_codes,
    __global const f16 *restrict k_scales,
    __global const u8 *restrict v_codes,
    __global const f16 *restrict v_scales,
    __global const i32 *restrict table,
    __global const i32 *restrict lengths,
    __global const i32 *restrict ids,
    __global const i32 *restrict marks,
    __global const f16 *restrict k_slots,
    __global const f16 *restrict v_slots,
    __global const f16 *restrict centre,
    __global const f32 *restrict own_k,
    __global const f32 *restrict own_v,
    __global f32 *restrict partial,
    __global f32 *restrict sums,
    __global i32 *restrict errors,
    const kc_split_values kc_values)
{
    __local i64 place[128];
    __local f32 tile[4224];
    __local f32 weights[128];
    __local f32 shrinks[4];
    __local f32 tops[4];
    __local f32 totals[4];
    __local i32 where[64];
    kc_split_body((KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)q + kc_values.q_at), (KC_GLOBAL const u8 *)((KC_GLOBAL const u8 *)k_codes + kc_values.k_codes_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)k_scales + kc_values.k_scales_at), (KC_GLOBAL const u8 *)((KC_GLOBAL const u8 *)v_codes + kc_values.v_codes_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)v_scales + kc_values.v_scales_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)table + kc_values.table_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)lengths + kc_values.lengths_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)ids + kc_values.ids_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)marks + kc_values.marks_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)k_slots + kc_values.k_slots_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)v_slots + kc_values.v_slots_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)centre + kc_values.centre_at), (KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)own_k + kc_values.own_k_at), (KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)own_v + kc_values.own_v_at), (KC_GLOBAL f32 *)((KC_GLOBAL u8 *)partial + kc_values.partial_at), (KC_GLOBAL f32 *)((KC_GLOBAL u8 *)sums + kc_values.sums_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)errors + kc_values.errors_at), kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, kc_values.n_tokens, kc_values.n_splits, kc_values.n_ids, kc_values.per_query, kc_values.has_ids, kc_values.ids_per_query, kc_values.has_state, kc_values.has_own, kc_values.window, kc_values.limit, kc_values.first_row, kc_values.first, kc_values.stop, kc_values.scale, kc_values.softcap, place, tile, weights, shrinks, tops, totals, where, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_split static inline void kc_split_body(__global const f32 *restrict q, __global const u8 *restrict k_codes, __global const f16 *restrict k_scales, __global const u8 *restrict v_codes, __global const f16 *restrict v_scales, __global const i32 *restrict table, __global const i32 *restrict lengths, __global const i32 *restrict ids, __global const i32 *restrict marks, __global const f16 *restrict k_slots, __global const f16 *restrict v_slots, __global const f16 *restrict centre, __global const f32 *restrict own_k, __global const f32 *restrict own_v, __global f32 *restrict partial, __global f32 *restrict sums, __global i32 *restrict errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_splits, const i32 n_ids, const i32 per_query, const i32 has_ids, const i32 ids_per_query, const i32 has_state, const i32 has_own, const i32 window, const i32 limit, const i32 first_row, const i32 first, const i32 stop, const f32 scale, const f32 softcap, __local i64 *place, __local f32 *tile, __local f32 *weights, __local f32 *shrinks, __local f32 *tops, __local f32 *totals, __local i32 *where, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i64 partial_at; i64 sums_at; i64 out_at; i64 lse_at; i32 n_splits; i32 n_queries; } kc_merge_values;
static inline void kc_merge_body(__global const f32 *restrict partial, __global const f32 *restrict sums, __global f32 *restrict out, __global f32 *restrict lse, const i32 n_splits, const i32 n_queries, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_merge(
    __global const f32 *restrict partial,
    __global const f32 *restrict sums,
    __global f32 *restrict out,
    __global f32 *restrict lse,
    const kc_merge_values kc_values)
{
    kc_merge_body((KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)partial + kc_values.partial_at), (KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)sums + kc_values.sums_at), (KC_GLOBAL f32 *)((KC_GLOBAL u8 *)out + kc_values.out_at), (KC_GLOBAL f32 *)((KC_GLOBAL u8 *)lse + kc_values.lse_at), kc_values.n_splits, kc_values.n_queries, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_merge static inline void kc_merge_body(__global const f32 *restrict partial, __global const f32 *restrict sums, __global f32 *restrict out, __global f32 *restrict lse, const i32 n_splits, const i32 n_queries, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
