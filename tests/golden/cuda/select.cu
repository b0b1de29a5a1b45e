#line 1 "generated:kvcore/ops/select.c"
typedef struct { i32 n_blocks; i32 n_keys; i32 n_heads; i32 dim; i32 block_cells; i32 n_chunks; } kc_scores_values;
static __device__ __forceinline__ void kc_scores_body(const f32 *__restrict__ keys, const f32 *__restrict__ dead, const f32 *__restrict__ q, const i32 *__restrict__ lengths, f32 *__restrict__ out, i32 *__restrict__ errors, const i32 n_blocks, const i32 n_keys, const i32 n_heads, const i32 dim, const i32 block_cells, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_scores(
    const f32 *__restrict__ keys,
    const f32 *__restrict__ dead,
    const f32 *__restrict__ q,
    const i32 *__restrict__ lengths,
    f32 *__restrict__ out,
    i32 *__restrict__ errors,
    const kc_scores_values kc_values)
{
    kc_scores_body(keys, dead, q, lengths, out, errors, kc_values.n_blocks, kc_values.n_keys, kc_values.n_heads, kc_values.dim, kc_values.block_cells, kc_values.n_chunks, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_scores static __device__ __forceinline__ void kc_scores_body(const f32 *__restrict__ keys, const f32 *__restrict__ dead, const f32 *__restrict__ q, const i32 *__restrict__ lengths, f32 *__restrict__ out, i32 *__restrict__ errors, const i32 n_blocks, const i32 n_keys, const i32 n_heads, const i32 dim, const i32 block_cells, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
typedef struct { i32 n_blocks; i32 n_keys; i32 width; i32 block_cells; } kc_choose_values;
static __device__ __forceinline__ void kc_choose_body(const f32 *__restrict__ out, const i32 *__restrict__ lengths, i32 *__restrict__ chosen, const i32 n_blocks, const i32 n_keys, const i32 width, const i32 block_cells, i32 *above, i32 *ties, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_choose(
    const f32 *__restrict__ out,
    const i32 *__restrict__ lengths,
    i32 *__restrict__ chosen,
    const kc_choose_values kc_values)
{
    __shared__ i32 above[64];
    __shared__ i32 ties[64];
    kc_choose_body(out, lengths, chosen, kc_values.n_blocks, kc_values.n_keys, kc_values.width, kc_values.block_cells, above, ties, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_choose static __device__ __forceinline__ void kc_choose_body(const f32 *__restrict__ out, const i32 *__restrict__ lengths, i32 *__restrict__ chosen, const i32 n_blocks, const i32 n_keys, const i32 width, const i32 block_cells, i32 *above, i32 *ties, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
