#line 1 "generated:kvcore/ops/append.c"
#define CENTER_CELLS (0)
#define CENTRE (0)
#define DEFERRED (0)
#define HAS_EAGER (0)
#define HAS_GROUPS (0)
#define HAS_ROWS (1)
#define HAS_STATE (1)
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
typedef struct { i32 n_sequences; i32 n_tokens; i32 page_size; i32 n_pages_each; i32 n_pages; i32 has_state; i32 draft; i32 has_commit; i32 needs_run; i32 rule; i32 k_ring; i32 v_ring; } kc_plan_values;
static inline void kc_plan_body(device const i32 *marks, device const i32 *positions, device const i32 *table, device const i32 *commit, device i32 *next, device i32 *starts, device i32 *counts, device i32 *source, device i32 *errors, const i32 n_sequences, const i32 n_tokens, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 has_state, const i32 draft, const i32 has_commit, const i32 needs_run, const i32 rule, const i32 k_ring, const i32 v_ring, threadgroup i32 *counted, threadgroup i32 *firsts, threadgroup i32 *lasts, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_plan(
    device const i32 *marks [[buffer(0)]],
    device const i32 *positions [[buffer(1)]],
    device const i32 *table [[buffer(2)]],
    device const i32 *commit [[buffer(3)]],
    device i32 *next [[buffer(4)]],
    device i32 *starts [[buffer(5)]],
    device i32 *counts [[buffer(6)]],
    device i32 *source [[buffer(7)]],
    device i32 *errors [[buffer(8)]],
    constant kc_plan_values &kc_values [[buffer(9)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    threadgroup i32 counted[64];
    threadgroup i32 firsts[64];
    threadgroup i32 lasts[64];
    kc_plan_body(marks, positions, table, commit, next, starts, counts, source, errors, kc_values.n_sequences, kc_values.n_tokens, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.has_state, kc_values.draft, kc_values.has_commit, kc_values.needs_run, kc_values.rule, kc_values.k_ring, kc_values.v_ring, counted, firsts, lasts, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_plan static inline void kc_plan_body(device const i32 *marks, device const i32 *positions, device const i32 *table, device const i32 *commit, device i32 *next, device i32 *starts, device i32 *counts, device i32 *source, device i32 *errors, const i32 n_sequences, const i32 n_tokens, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 has_state, const i32 draft, const i32 has_commit, const i32 needs_run, const i32 rule, const i32 k_ring, const i32 v_ring, threadgroup i32 *counted, threadgroup i32 *firsts, threadgroup i32 *lasts, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; i32 n_tokens; i32 n_sequences; i32 n_chunks; i32 unbiased; i32 rule; f32 gain; i32 has_state; } kc_rows_values;
static inline void kc_rows_body(device const f32 *k, device const f32 *v, device const f16 *k_slots, device const f16 *v_slots, device const f16 *centre, device const i32 *marks, device const i32 *next, device const i32 *starts, device const i32 *counts, device const i32 *source, device const i32 *table, device const i32 *positions, device u8 *k_codes, device f16 *k_scales, device u8 *v_codes, device f16 *v_scales, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_sequences, const i32 n_chunks, const i32 unbiased, const i32 rule, const f32 gain, const i32 has_state, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_rows(
    device const f32 *k [[buffer(0)]],
    device const f32 *v [[buffer(1)]],
    device const f16 *k_slots [[buffer(2)]],
    device const f16 *v_slots [[buffer(3)]],
    device const f16 *centre [[buffer(4)]],
    device const i32 *marks [[buffer(5)]],
    device const i32 *next [[buffer(6)]],
    device const i32 *starts [[buffer(7)]],
    device const i32 *counts [[buffer(8)]],
    device const i32 *source [[buffer(9)]],
    device const i32 *table [[buffer(10)]],
    device const i32 *positions [[buffer(11)]],
    device u8 *k_codes [[buffer(12)]],
    device f16 *k_scales [[buffer(13)]],
    device u8 *v_codes [[buffer(14)]],
    device f16 *v_scales [[buffer(15)]],
    constant kc_rows_values &kc_values [[buffer(16)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_rows_body(k, v, k_slots, v_slots, centre, marks, next, starts, counts, source, table, positions, k_codes, k_scales, v_codes, v_scales, kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, kc_values.n_tokens, kc_values.n_sequences, kc_values.n_chunks, kc_values.unbiased, kc_values.rule, kc_values.gain, kc_values.has_state, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_rows static inline void kc_rows_body(device const f32 *k, device const f32 *v, device const f16 *k_slots, device const f16 *v_slots, device const f16 *centre, device const i32 *marks, device const i32 *next, device const i32 *starts, device const i32 *counts, device const i32 *source, device const i32 *table, device const i32 *positions, device u8 *k_codes, device f16 *k_scales, device u8 *v_codes, device f16 *v_scales, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_sequences, const i32 n_chunks, const i32 unbiased, const i32 rule, const f32 gain, const i32 has_state, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_heads; i32 n_tokens; i32 n_chunks; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; } kc_exact_values;
static inline void kc_exact_body(device const f32 *k, device const f32 *v, device f16 *k_slots, device f16 *v_slots, device i32 *marks, device const i32 *next, device const i32 *starts, device const i32 *counts, device const i32 *source, const i32 n_heads, const i32 n_tokens, const i32 n_chunks, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_exact(
    device const f32 *k [[buffer(0)]],
    device const f32 *v [[buffer(1)]],
    device f16 *k_slots [[buffer(2)]],
    device f16 *v_slots [[buffer(3)]],
    device i32 *marks [[buffer(4)]],
    device const i32 *next [[buffer(5)]],
    device const i32 *starts [[buffer(6)]],
    device const i32 *counts [[buffer(7)]],
    device const i32 *source [[buffer(8)]],
    constant kc_exact_values &kc_values [[buffer(9)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_exact_body(k, v, k_slots, v_slots, marks, next, starts, counts, source, kc_values.n_heads, kc_values.n_tokens, kc_values.n_chunks, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_exact static inline void kc_exact_body(device const f32 *k, device const f32 *v, device f16 *k_slots, device f16 *v_slots, device i32 *marks, device const i32 *next, device const i32 *starts, device const i32 *counts, device const i32 *source, const i32 n_heads, const i32 n_tokens, const i32 n_chunks, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
