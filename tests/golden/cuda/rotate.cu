#line 1 "generated:kvcore/ops/rotate.c"
#define BLOCK (128)
#define LANES (64)
#define SCALE kc_as_f32(0x3db504f3u)
typedef struct { i32 n_blocks; i32 n_columns; } kc_rotate_values;
static __device__ __forceinline__ void kc_rotate_body(const f32 *x, f32 *y, const i32 n_blocks, const i32 n_columns, f32 *values, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_rotate(
    const f32 *x,
    f32 *y,
    const kc_rotate_values kc_values)
{
    __shared__ f32 values[128];
    kc_rotate_body(x, y, kc_values.n_blocks, kc_values.n_columns, values, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_rotate static __device__ __forceinline__ void kc_rotate_body(const f32 *x, f32 *y, const i32 n_blocks, const i32 n_columns, f32 *values, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
