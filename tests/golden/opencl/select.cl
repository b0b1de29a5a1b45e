#line 1 "generated:kvcore/ops/select.c"
typedef struct { i64 keys_at; i64 dead_at; i64 q_at; i64 lengths_at; i64 out_at; i64 errors_at; i32 n_blocks; i32 n_keys; i32 n_heads; i32 dim; i32 block_cells; i32 n_chunks; } kc_scores_values;
static inline void kc_scores_body(__global const f32 *restrict keys, __global const f32 *restrict dead, __global const f32 *restrict q, __global const i32 *restrict lengths, __global f32 *restrict out, __global i32 *restrict errors, const i32 n_blocks, const i32 n_keys, const i32 n_heads, const i32 dim, const i32 block_cells, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_scores(
    __global const f32 *restrict keys,
    __global const f32 *restrict dead,
    __global const f32 *restrict q,
    __global const i32 *restrict lengths,
    __global f32 *restrict out,
    __global i32 *restrict errors,
    const kc_scores_values kc_values)
{
    kc_scores_body((KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)keys + kc_values.keys_at), (KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)dead + kc_values.dead_at), (KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)q + kc_values.q_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)lengths + kc_values.lengths_at), (KC_GLOBAL f32 *)((KC_GLOBAL u8 *)out + kc_values.out_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)errors + kc_values.errors_at), kc_values.n_blocks, kc_values.n_keys, kc_values.n_heads, kc_values.dim, kc_values.block_cells, kc_values.n_chunks, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_scores static inline void kc_scores_body(__global const f32 *restrict keys, __global const f32 *restrict dead, __global const f32 *restrict q, __global const i32 *restrict lengths, __global f32 *restrict out, __global i32 *restrict errors, const i32 n_blocks, const i32 n_keys, const i32 n_heads, const i32 dim, const i32 block_cells, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i64 out_at; i64 lengths_at; i64 chosen_at; i32 n_blocks; i32 n_keys; i32 width; i32 block_cells; } kc_choose_values;
static inline void kc_choose_body(__global const f32 *restrict out, __global const i32 *restrict lengths, __global i32 *restrict chosen, const i32 n_blocks, const i32 n_keys, const i32 width, const i32 block_cells, __local i32 *above, __local i32 *ties, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_choose(
    __global const f32 *restrict out,
    __global const i32 *restrict lengths,
    __global i32 *restrict chosen,
    const kc_choose_values kc_values)
{
    __local i32 above[64];
    __local i32 ties[64];
    kc_choose_body((KC_GLOBAL const f32 *)((KC_GLOBAL const u8 *)out + kc_values.out_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)lengths + kc_values.lengths_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)chosen + kc_values.chosen_at), kc_values.n_blocks, kc_values.n_keys, kc_values.width, kc_values.block_cells, above, ties, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_choose static inline void kc_choose_body(__global const f32 *restrict out, __global const i32 *restrict lengths, __global i32 *restrict chosen, const i32 n_blocks, const i32 n_keys, const i32 width, const i32 block_cells, __local i32 *above, __local i32 *ties, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
