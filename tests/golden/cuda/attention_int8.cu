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
static __device__ const u32 kc_bits_k_levels[1] = {0x00000000u};
KC_FN f32 k_levels(i32 i) { return kc_as_f32(kc_bits_k_levels[i]); }
static __device__ const u32 kc_bits_k_thresholds[1] = {0x00000000u};
KC_FN f32 k_thresholds(i32 i) { return kc_as_f32(kc_bits_k_thresholds[i]); }
static __device__ const u32 kc_bits_v_levels[1] = {0x00000000u};
KC_FN f32 v_levels(i32 i) { return kc_as_f32(kc_bits_v_levels[i]); }
static __device__ const u32 kc_bits_v_thresholds[1] = {0x00000000u};
KC_FN f32 v_thresholds(i32 i) { return kc_as_f32(kc_bits_v_thresholds[i]); }
typedef struct { i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; i32 n_tokens; i32 n_splits; i32 n_ids; i32 per_query; i32 has_ids; i32 ids_per_query; i32 has_state; i32 has_own; i32 window; i32 limit; i32 first_row; i32 first; i32 stop; f32 scale; f32 softcap; } kc_split_values;
static __device__ __forceinline__ void kc_split_body(const f32 *__restrict__ q, const u8 *__restrict__ k_codes, const f16 *__restrict__ k_scales, const u8 *__restrict__ v_codes, const f16 *__restrict__ v_scales, const i32 *__restrict__ table, const i32 *__restrict__ lengths, const i32 *__restrict__ ids, const i32 *__restrict__ marks, const f16 *__restrict__ k_slots, const f16 *__restrict__ v_slots, const f16 *__restrict__ centre, const f32 *__restrict__ own_k, const f32 *__restrict__ own_v, f32 *__restrict__ partial, f32 *__restrict__ sums, i32 *__restrict__ errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_splits, const i32 n_ids, const i32 per_query, const i32 has_ids, const i32 ids_per_query, const i32 has_state, const i32 has_own, const i32 window, const i32 limit, const i32 first_row, const i32 first, const i32 stop, const f32 scale, const f32 softcap, i64 *place, f32 *tile, f32 *weights, f32 *shrinks, f32 *tops, f32 *totals, i32 *where, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_split(
    const f32 *__restrict__ q,
    const u8 *__restrict__ k_codes,
    const f16 *__restrict__ k_scales,
    const u8 *__restrict__ v_codes,
    const f16 *__restrict__ v_scales,
    const i32 *__restrict__ table,
    const i32 *__restrict__ lengths,
    const i32 *__restrict__ ids,
    const i32 *__restrict__ marks,
    const f16 *__restrict__ k_slots,
    const f16 *__restrict__ v_slots,
    const f16 *__restrict__ centre,
    const f32 *__restrict__ own_k,
    const f32 *__restrict__ own_v,
    f32 *__restrict__ partial,
    f32 *__restrict__ sums,
    i32 *__restrict__ errors,
    const kc_split_values kc_values)
{
    __shared__ i64 place[128];
    __shared__ f32 tile[4224];
    __shared__ f32 weights[128];
    __shared__ f32 shrinks[4];
    __shared__ f32 tops[4];
    __shared__ f32 totals[4];
    __shared__ i32 where[64];
    kc_split_body(q, k_codes, k_scales, v_codes, v_scales, table, lengths, ids, marks, k_slots, v_slots, centre, own_k, own_v, partial, sums, errors, kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, kc_values.n_tokens, kc_values.n_splits, kc_values.n_ids, kc_values.per_query, kc_values.has_ids, kc_values.ids_per_query, kc_values.has_state, kc_values.has_own, kc_values.window, kc_values.limit, kc_values.first_row, kc_values.first, kc_values.stop, kc_values.scale, kc_values.softcap, place, tile, weights, shrinks, tops, totals, where, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_split static __device__ __forceinline__ void kc_split_body(const f32 *__restrict__ q, const u8 *__restrict__ k_codes, const f16 *__restrict__ k_scales, const u8 *__restrict__ v_codes, const f16 *__restrict__ v_scales, const i32 *__restrict__ table, const i32 *__restrict__ lengths, const i32 *__restrict__ ids, const i32 *__restrict__ marks, const f16 *__restrict__ k_slots, const f16 *__restrict__ v_slots, const f16 *__restrict__ centre, const f32 *__restrict__ own_k, const f32 *__restrict__ own_v, f32 *__restrict__ partial, f32 *__restrict__ sums, i32 *__restrict__ errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_splits, const i32 n_ids, const i32 per_query, const i32 has_ids, const i32 ids_per_query, const i32 has_state, const i32 has_own, const i32 window, const i32 limit, const i32 first_row, const i32 first, const i32 stop, const f32 scale, const f32 softcap, i64 *place, f32 *tile, f32 *weights, f32 *shrinks, f32 *tops, f32 *totals, i32 *where, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_splits; i32 n_queries; } kc_merge_values;
static __device__ __forceinline__ void kc_merge_body(const f32 *__restrict__ partial, const f32 *__restrict__ sums, f32 *__restrict__ out, f32 *__restrict__ lse, const i32 n_splits, const i32 n_queries, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_merge(
    const f32 *__restrict__ partial,
    const f32 *__restrict__ sums,
    f32 *__restrict__ out,
    f32 *__restrict__ lse,
    const kc_merge_values kc_values)
{
    kc_merge_body(partial, sums, out, lse, kc_values.n_splits, kc_values.n_queries, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_merge static __device__ __forceinline__ void kc_merge_body(const f32 *__restrict__ partial, const f32 *__restrict__ sums, f32 *__restrict__ out, f32 *__restrict__ lse, const i32 n_splits, const i32 n_queries, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
