#line 1 "generated:kvcore/ops/select.c"
typedef struct { i32 n_blocks; i32 n_keys; i32 n_heads; i32 dim; i32 block_cells; i32 n_chunks; } kc_scores_values;
static inline void kc_scores_body(device const f32 *keys, device const f32 *dead, device const f32 *q, device const i32 *lengths, device f32 *out, device i32 *errors, const i32 n_blocks, const i32 n_keys, const i32 n_heads, const i32 dim, const i32 block_cells, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_scores(
    device const f32 *keys [[buffer(0)]],
    device const f32 *dead [[buffer(1)]],
    device const f32 *q [[buffer(2)]],
    device const i32 *lengths [[buffer(3)]],
    device f32 *out [[buffer(4)]],
    device i32 *errors [[buffer(5)]],
    constant kc_scores_values &kc_values [[buffer(6)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    kc_scores_body(keys, dead, q, lengths, out, errors, kc_values.n_blocks, kc_values.n_keys, kc_values.n_heads, kc_values.dim, kc_values.block_cells, kc_values.n_chunks, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_scores static inline void kc_scores_body(device const f32 *keys, device const f32 *dead, device const f32 *q, device const i32 *lengths, device f32 *out, device i32 *errors, const i32 n_blocks, const i32 n_keys, const i32 n_heads, const i32 dim, const i32 block_cells, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_blocks; i32 n_keys; i32 width; i32 block_cells; } kc_choose_values;
static inline void kc_choose_body(device const f32 *out, device const i32 *lengths, device i32 *chosen, const i32 n_blocks, const i32 n_keys, const i32 width, const i32 block_cells, threadgroup i32 *above, threadgroup i32 *ties, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
[[max_total_threads_per_threadgroup(64)]]
kernel void kc_choose(
    device const f32 *out [[buffer(0)]],
    device const i32 *lengths [[buffer(1)]],
    device i32 *chosen [[buffer(2)]],
    constant kc_choose_values &kc_values [[buffer(3)]],
    uint3 kc_lane [[thread_position_in_threadgroup]],
    uint3 kc_group [[threadgroup_position_in_grid]])
{
    threadgroup i32 above[64];
    threadgroup i32 ties[64];
    kc_choose_body(out, lengths, chosen, kc_values.n_blocks, kc_values.n_keys, kc_values.width, kc_values.block_cells, above, ties, (i32)kc_lane.x, (i32)kc_group.x, (i32)kc_group.y, (i32)kc_group.z);
}
#define KC_ENTRY_choose static inline void kc_choose_body(device const f32 *out, device const i32 *lengths, device i32 *chosen, const i32 n_blocks, const i32 n_keys, const i32 width, const i32 block_cells, threadgroup i32 *above, threadgroup i32 *ties, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
