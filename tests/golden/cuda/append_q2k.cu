#line 1 "generated:kvcore/ops/append.c"
#define CENTER_CELLS (128)
#define CENTRE (1)
#define DEFERRED (1)
#define HAS_EAGER (0)
#define HAS_GROUPS (1)
#define HAS_ROWS (1)
#define HAS_STATE (1)
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
static __device__ const u32 kc_bits_k_levels[4] = {0xbfc1555du, 0xbee7d2c9u, 0x3ee7d2c9u, 0x3fc1555du};
KC_FN f32 k_levels(i32 i) { return kc_as_f32(kc_bits_k_levels[i]); }
static __device__ const u32 kc_bits_k_thresholds[3] = {0xbf7b4a0fu, 0x00000000u, 0x3f7b4a0fu};
KC_FN f32 k_thresholds(i32 i) { return kc_as_f32(kc_bits_k_thresholds[i]); }
static __device__ const u32 kc_bits_v_levels[1] = {0x00000000u};
KC_FN f32 v_levels(i32 i) { return kc_as_f32(kc_bits_v_levels[i]); }
static __device__ const u32 kc_bits_v_thresholds[1] = {0x00000000u};
KC_FN f32 v_thresholds(i32 i) { return kc_as_f32(kc_bits_v_thresholds[i]); }
typedef struct { i32 n_sequences; i32 n_tokens; i32 page_size; i32 n_pages_each; i32 n_pages; i32 has_state; i32 draft; i32 has_commit; i32 needs_run; i32 rule; i32 k_ring; i32 v_ring; } kc_plan_values;
static __device__ __forceinline__ void kc_plan_body(const i32 *__restrict__ marks, const i32 *__restrict__ positions, const i32 *__restrict__ table, const i32 *__restrict__ commit, i32 *__restrict__ next, i32 *__restrict__ starts, i32 *__restrict__ counts, i32 *__restrict__ source, i32 *__restrict__ errors, const i32 n_sequences, const i32 n_tokens, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 has_state, const i32 draft, const i32 has_commit, const i32 needs_run, const i32 rule, const i32 k_ring, const i32 v_ring, i32 *counted, i32 *firsts, i32 *lasts, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_plan(
    const i32 *__restrict__ marks,
    const i32 *__restrict__ positions,
    const i32 *__restrict__ table,
    const i32 *__restrict__ commit,
    i32 *__restrict__ next,
    i32 *__restrict__ starts,
    i32 *__restrict__ counts,
    i32 *__restrict__ source,
    i32 *__restrict__ errors,
    const kc_plan_values kc_values)
{
    __shared__ i32 counted[64];
    __shared__ i32 firsts[64];
    __shared__ i32 lasts[64];
    kc_plan_body(marks, positions, table, commit, next, starts, counts, source, errors, kc_values.n_sequences, kc_values.n_tokens, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.has_state, kc_values.draft, kc_values.has_commit, kc_values.needs_run, kc_values.rule, kc_values.k_ring, kc_values.v_ring, counted, firsts, lasts, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_plan static __device__ __forceinline__ void kc_plan_body(const i32 *__restrict__ marks, const i32 *__restrict__ positions, const i32 *__restrict__ table, const i32 *__restrict__ commit, i32 *__restrict__ next, i32 *__restrict__ starts, i32 *__restrict__ counts, i32 *__restrict__ source, i32 *__restrict__ errors, const i32 n_sequences, const i32 n_tokens, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 has_state, const i32 draft, const i32 has_commit, const i32 needs_run, const i32 rule, const i32 k_ring, const i32 v_ring, i32 *counted, i32 *firsts, i32 *lasts, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_heads; i32 n_tokens; i32 sinks; i32 k_ring; i32 n_k_slots; } kc_fix_centre_values;
static __device__ __forceinline__ void kc_fix_centre_body(const f32 *__restrict__ k, const f16 *__restrict__ k_slots, f16 *__restrict__ centre, const i32 *__restrict__ marks, const i32 *__restrict__ next, const i32 *__restrict__ starts, const i32 *__restrict__ source, const i32 n_heads, const i32 n_tokens, const i32 sinks, const i32 k_ring, const i32 n_k_slots, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_fix_centre(
    const f32 *__restrict__ k,
    const f16 *__restrict__ k_slots,
    f16 *__restrict__ centre,
    const i32 *__restrict__ marks,
    const i32 *__restrict__ next,
    const i32 *__restrict__ starts,
    const i32 *__restrict__ source,
    const kc_fix_centre_values kc_values)
{
    kc_fix_centre_body(k, k_slots, centre, marks, next, starts, source, kc_values.n_heads, kc_values.n_tokens, kc_values.sinks, kc_values.k_ring, kc_values.n_k_slots, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_fix_centre static __device__ __forceinline__ void kc_fix_centre_body(const f32 *__restrict__ k, const f16 *__restrict__ k_slots, f16 *__restrict__ centre, const i32 *__restrict__ marks, const i32 *__restrict__ next, const i32 *__restrict__ starts, const i32 *__restrict__ source, const i32 n_heads, const i32 n_tokens, const i32 sinks, const i32 k_ring, const i32 n_k_slots, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; i32 n_tokens; i32 n_sequences; i32 n_chunks; i32 unbiased; i32 rule; f32 gain; i32 has_state; } kc_rows_values;
static __device__ __forceinline__ void kc_rows_body(const f32 *__restrict__ k, const f32 *__restrict__ v, const f16 *__restrict__ k_slots, const f16 *__restrict__ v_slots, const f16 *__restrict__ centre, const i32 *__restrict__ marks, const i32 *__restrict__ next, const i32 *__restrict__ starts, const i32 *__restrict__ counts, const i32 *__restrict__ source, const i32 *__restrict__ table, const i32 *__restrict__ positions, u8 *__restrict__ k_codes, f16 *__restrict__ k_scales, u8 *__restrict__ v_codes, f16 *__restrict__ v_scales, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_sequences, const i32 n_chunks, const i32 unbiased, const i32 rule, const f32 gain, const i32 has_state, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_rows(
    const f32 *__restrict__ k,
    const f32 *__restrict__ v,
    const f16 *__restrict__ k_slots,
    const f16 *__restrict__ v_slots,
    const f16 *__restrict__ centre,
    const i32 *__restrict__ marks,
    const i32 *__restrict__ next,
    const i32 *__restrict__ starts,
    const i32 *__restrict__ counts,
    const i32 *__restrict__ source,
    const i32 *__restrict__ table,
    const i32 *__restrict__ positions,
    u8 *__restrict__ k_codes,
    f16 *__restrict__ k_scales,
    u8 *__restrict__ v_codes,
    f16 *__restrict__ v_scales,
    const kc_rows_values kc_values)
{
    kc_rows_body(k, v, k_slots, v_slots, centre, marks, next, starts, counts, source, table, positions, k_codes, k_scales, v_codes, v_scales, kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, kc_values.n_tokens, kc_values.n_sequences, kc_values.n_chunks, kc_values.unbiased, kc_values.rule, kc_values.gain, kc_values.has_state, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_rows static __device__ __forceinline__ void kc_rows_body(const f32 *__restrict__ k, const f32 *__restrict__ v, const f16 *__restrict__ k_slots, const f16 *__restrict__ v_slots, const f16 *__restrict__ centre, const i32 *__restrict__ marks, const i32 *__restrict__ next, const i32 *__restrict__ starts, const i32 *__restrict__ counts, const i32 *__restrict__ source, const i32 *__restrict__ table, const i32 *__restrict__ positions, u8 *__restrict__ k_codes, f16 *__restrict__ k_scales, u8 *__restrict__ v_codes, f16 *__restrict__ v_scales, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_sequences, const i32 n_chunks, const i32 unbiased, const i32 rule, const f32 gain, const i32 has_state, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; i32 n_tokens; i32 n_sequences; i32 n_chunks; i32 unbiased; i32 rule; f32 gain; } kc_groups_values;
static __device__ __forceinline__ void kc_groups_body(const f32 *__restrict__ k, const f32 *__restrict__ v, const f16 *__restrict__ k_slots, const f16 *__restrict__ v_slots, const f16 *__restrict__ centre, const i32 *__restrict__ marks, const i32 *__restrict__ next, const i32 *__restrict__ starts, const i32 *__restrict__ counts, const i32 *__restrict__ source, const i32 *__restrict__ table, u8 *__restrict__ k_codes, f16 *__restrict__ k_scales, u8 *__restrict__ v_codes, f16 *__restrict__ v_scales, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_sequences, const i32 n_chunks, const i32 unbiased, const i32 rule, const f32 gain, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_groups(
    const f32 *__restrict__ k,
    const f32 *__restrict__ v,
    const f16 *__restrict__ k_slots,
    const f16 *__restrict__ v_slots,
    const f16 *__restrict__ centre,
    const i32 *__restrict__ marks,
    const i32 *__restrict__ next,
    const i32 *__restrict__ starts,
    const i32 *__restrict__ counts,
    const i32 *__restrict__ source,
    const i32 *__restrict__ table,
    u8 *__restrict__ k_codes,
    f16 *__restrict__ k_scales,
    u8 *__restrict__ v_codes,
    f16 *__restrict__ v_scales,
    const kc_groups_values kc_values)
{
    kc_groups_body(k, v, k_slots, v_slots, centre, marks, next, starts, counts, source, table, k_codes, k_scales, v_codes, v_scales, kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, kc_values.n_tokens, kc_values.n_sequences, kc_values.n_chunks, kc_values.unbiased, kc_values.rule, kc_values.gain, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_groups static __device__ __forceinline__ void kc_groups_body(const f32 *__restrict__ k, const f32 *__restrict__ v, const f16 *__restrict__ k_slots, const f16 *__restrict__ v_slots, const f16 *__restrict__ centre, const i32 *__restrict__ marks, const i32 *__restrict__ next, const i32 *__restrict__ starts, const i32 *__restrict__ counts, const i32 *__restrict__ source, const i32 *__restrict__ table, u8 *__restrict__ k_codes, f16 *__restrict__ k_scales, u8 *__restrict__ v_codes, f16 *__restrict__ v_scales, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_sequences, const i32 n_chunks, const i32 unbiased, const i32 rule, const f32 gain, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_heads; i32 n_tokens; i32 n_chunks; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; } kc_exact_values;
static __device__ __forceinline__ void kc_exact_body(const f32 *__restrict__ k, const f32 *__restrict__ v, f16 *__restrict__ k_slots, f16 *__restrict__ v_slots, i32 *__restrict__ marks, const i32 *__restrict__ next, const i32 *__restrict__ starts, const i32 *__restrict__ counts, const i32 *__restrict__ source, const i32 n_heads, const i32 n_tokens, const i32 n_chunks, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_exact(
    const f32 *__restrict__ k,
    const f32 *__restrict__ v,
    f16 *__restrict__ k_slots,
    f16 *__restrict__ v_slots,
    i32 *__restrict__ marks,
    const i32 *__restrict__ next,
    const i32 *__restrict__ starts,
    const i32 *__restrict__ counts,
    const i32 *__restrict__ source,
    const kc_exact_values kc_values)
{
    kc_exact_body(k, v, k_slots, v_slots, marks, next, starts, counts, source, kc_values.n_heads, kc_values.n_tokens, kc_values.n_chunks, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_exact static __device__ __forceinline__ void kc_exact_body(const f32 *__restrict__ k, const f32 *__restrict__ v, f16 *__restrict__ k_slots, f16 *__restrict__ v_slots, i32 *__restrict__ marks, const i32 *__restrict__ next, const i32 *__restrict__ starts, const i32 *__restrict__ counts, const i32 *__restrict__ source, const i32 n_heads, const i32 n_tokens, const i32 n_chunks, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
