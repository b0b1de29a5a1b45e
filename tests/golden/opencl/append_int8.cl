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
__constant u32 kc_bits_k_levels[1] = {0x00000000u};
KC_FN f32 k_levels(i32 i) { return kc_as_f32(kc_bits_k_levels[i]); }
__constant u32 kc_bits_k_thresholds[1] = {0x00000000u};
KC_FN f32 k_thresholds(i32 i) { return kc_as_f32(kc_bits_k_thresholds[i]); }
__constant u32 kc_bits_v_levels[1] = {0x00000000u};
KC_FN f32 v_levels(i32 i) { return kc_as_f32(kc_bits_v_levels[i]); }
__constant u32 kc_bits_v_thresholds[1] = {0x00000000u};
KC_FN f32 v_thresholds(i32 i) { return kc_as_f32(kc_bits_v_thresholds[i]); }
typedef struct { i64 marks_at; i64 positions_at; i64 table_at; i64 commit_at; i64 next_at; i64 starts_at; i64 counts_at; i64 source_at; i64 errors_at; i32 n_sequences; i32 n_tokens; i32 page_size; i32 n_pages_each; i32 n_pages; i32 has_state; i32 draft; i32 has_commit; i32 needs_run; i32 rule; i32 k_ring; i32 v_ring; } kc_plan_values;
static inline void kc_plan_body(__global const i32 *restrict marks, __global const i32 *restrict positions, __global const i32 *restrict table, __global const i32 *restrict commit, __global i32 *restrict next, __global i32 *restrict starts, __global i32 *restrict counts, __global i32 *restrict source, __global i32 *restrict errors, const i32 n_sequences, const i32 n_tokens, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 has_state, const i32 draft, const i32 has_commit, const i32 needs_run, const i32 rule, const i32 k_ring, const i32 v_ring, __local i32 *counted, __local i32 *firsts, __local i32 *lasts, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_plan(
    __global const i32 *restrict marks,
    __global const i32 *restrict positions,
    __global const i32 *restrict table,
    __global const i32 *restrict commit,
    __global i32 *restrict next,
    __global i32 *restrict starts,
    __global i32 *restrict counts,
    __global i32 *restrict source,
    __global i32 *restrict errors,
    const kc_plan_values kc_values)
{
    __local i32 counted[64];
    __local i32 firsts[64];
    __local i32 lasts[64];
    kc_plan_body((KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)marks + kc_values.marks_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)positions + kc_values.positions_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)table + kc_values.table_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)commit + kc_values.commit_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)next + kc_values.next_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)starts + kc_values.starts_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)counts + kc_values.counts_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)source + kc_values.source_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)errors + kc_values.errors_at), kc_values.n_sequences, kc_values.n_tokens, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.has_state, kc_values.draft, kc_values.has_commit, kc_values.needs_run, kc_values.rule, kc_values.k_ring, kc_values.v_ring, counted, firsts, lasts, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_plan static inline void kc_plan_body(__global const i32 *restrict marks, __global const i32 *restrict positions, __global const i32 *restrict table, __global const i32 *restrict commit, __global i32 *restrict next, __global i32 *restrict starts, __global i32 *restrict counts, __global i32 *restrict source, __global i32 *restrict errors, const i32 n_sequences, const i32 n_tokens, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 has_state, const i32 draft, const i32 has_commit, const i32 needs_run, const i32 rule, const i32 k_ring, const i32 v_ring, __local i32 *counted, __local i32 *firsts, __local i32 *lasts, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i64 k_at; i64 v_at; i64 k_slots_at; i64 v_slots_at; i64 centre_at; i64 marks_at; i64 next_at; i64 starts_at; i64 counts_at; i64 source_at; i64 table_at; i64 positions_at; i64 k_codes_at; i64 k_scales_at; i64 v_codes_at; i64 v_scales_at; i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; i32 n_tokens; i32 n_sequences; i32 n_chunks; i32 unbiased; i32 rule; f32 gain; i32 has_state; } kc_rows_values;
static inline void kc_rows_body(__global const f32 *restrict k, __global const f32 *restrict v, __global const f16 *restrict k_slots, __global const f16 *restrict v_slots, __global const f16 *restrict centre, __global const i32 *restrict marks, __global const i32 *restrict next, __global const i32 *restrict starts, __global const i32 *restrict counts, __global const i32 *restrict source, __global const i32 *restrict table, __global const i32 *restrict positions, __global u8 *restrict k_codes, __global f16 *restrict k_scales, __global u8 *restrict v_codes, __global f16 *restrict v_scales, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_sequences, const i32 n_chunks, const i32 unbiased, const i32 rule, const f32 gain, const i32 has_state, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_rows(
    __global const f32 *restrict k,
    __global const f32 *restrict v,
    __global const f16 *restrict k_slots,
    __global const f16 *restrict v_slots,
    __global const f16 *restrict centre,
    __global const i32 *restrict marks,
    __global const i32 *restrict next,
    __global const i32 *restrict starts,
    __global const i32 *restrict counts,
    __global const i32 *restrict source,
    __global const i32 *restrict table,
    __global const i32 *restrict positions,
    __global u8 *restrict k_codes,
    __global f16 *restrict k_scales,
    __global u8 *restrict v_codes,
    __global f16 *restrict v_scales,
    const kc_rows_values kc_values)
{
    kc_rows_body((KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)k + kc_values.k_at), (KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)v + kc_values.v_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)k_slots + kc_values.k_slots_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)v_slots + kc_values.v_slots_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)centre + kc_values.centre_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)marks + kc_values.marks_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)next + kc_values.next_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)starts + kc_values.starts_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)counts + kc_values.counts_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)source + kc_values.source_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)table + kc_values.table_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)positions + kc_values.positions_at), (KC_GLOBAL u8 *)((KC_GLOBAL u8 *)k_codes + kc_values.k_codes_at), (KC_GLOBAL f16 *)((KC_GLOBAL u8 *)k_scales + kc_values.k_scales_at), (KC_GLOBAL u8 *)((KC_GLOBAL u8 *)v_codes + kc_values.v_codes_at), (KC_GLOBAL f16 *)((KC_GLOBAL u8 *)v_scales + kc_values.v_scales_at), kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, kc_values.n_tokens, kc_values.n_sequences, kc_values.n_chunks, kc_values.unbiased, kc_values.rule, kc_values.gain, kc_values.has_state, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_rows static inline void kc_rows_body(__global const f32 *restrict k, __global const f32 *restrict v, __global const f16 *restrict k_slots, __global const f16 *restrict v_slots, __global const f16 *restrict centre, __global const i32 *restrict marks, __global const i32 *restrict next, __global const i32 *restrict starts, __global const i32 *restrict counts, __global const i32 *restrict source, __global const i32 *restrict table, __global const i32 *restrict positions, __global u8 *restrict k_codes, __global f16 *restrict k_scales, __global u8 *restrict v_codes, __global f16 *restrict v_scales, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 n_tokens, const i32 n_sequences, const i32 n_chunks, const i32 unbiased, const i32 rule, const f32 gain, const i32 has_state, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i64 k_at; i64 v_at; i64 k_slots_at; i64 v_slots_at; i64 marks_at; i64 next_at; i64 starts_at; i64 counts_at; i64 source_at; i32 n_heads; i32 n_tokens; i32 n_chunks; i32 sinks; i32 k_ring; i32 v_ring; i32 n_k_slots; i32 n_v_slots; } kc_exact_values;
static inline void kc_exact_body(__global const f32 *restrict k, __global const f32 *restrict v, __global f16 *restrict k_slots, __global f16 *restrict v_slots, __global i32 *restrict marks, __global const i32 *restrict next, __global const i32 *restrict starts, __global const i32 *restrict counts, __global const i32 *restrict source, const i32 n_heads, const i32 n_tokens, const i32 n_chunks, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_exact(
    __global const f32 *restrict k,
    __global const f32 *restrict v,
    __global f16 *restrict k_slots,
    __global f16 *restrict v_slots,
    __global i32 *restrict marks,
    __global const i32 *restrict next,
    __global const i32 *restrict starts,
    __global const i32 *restrict counts,
    __global const i32 *restrict source,
    const kc_exact_values kc_values)
{
    kc_exact_body((KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)k + kc_values.k_at), (KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)v + kc_values.v_at), (KC_GLOBAL f16 *)((KC_GLOBAL u8 *)k_slots + kc_values.k_slots_at), (KC_GLOBAL f16 *)((KC_GLOBAL u8 *)v_slots + kc_values.v_slots_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)marks + kc_values.marks_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)next + kc_values.next_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)starts + kc_values.starts_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)counts + kc_values.counts_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)source + kc_values.source_at), kc_values.n_heads, kc_values.n_tokens, kc_values.n_chunks, kc_values.sinks, kc_values.k_ring, kc_values.v_ring, kc_values.n_k_slots, kc_values.n_v_slots, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_exact static inline void kc_exact_body(__global const f32 *restrict k, __global const f32 *restrict v, __global f16 *restrict k_slots, __global f16 *restrict v_slots, __global i32 *restrict marks, __global const i32 *restrict next, __global const i32 *restrict starts, __global const i32 *restrict counts, __global const i32 *restrict source, const i32 n_heads, const i32 n_tokens, const i32 n_chunks, const i32 sinks, const i32 k_ring, const i32 v_ring, const i32 n_k_slots, const i32 n_v_slots, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
