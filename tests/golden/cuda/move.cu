#line 1 "generated:kvcore/ops/move.c"
typedef struct { i64 unit_bytes; i32 n_chunks; } kc_move_values;
static __device__ __forceinline__ void kc_move_body(const u8 *__restrict__ origin, u8 *__restrict__ target, const i32 *__restrict__ from_units, const i32 *__restrict__ to_units, const i64 unit_bytes, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_move(
    const u8 *__restrict__ origin,
    u8 *__restrict__ target,
    const i32 *__restrict__ from_units,
    const i32 *__restrict__ to_units,
    const kc_move_values kc_values)
{
    kc_move_body(origin, target, from_units, to_units, kc_values.unit_bytes, kc_values.n_chunks, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_move static __device__ __forceinline__ void kc_move_body(const u8 *__restrict__ origin, u8 *__restrict__ target, const i32 *__restrict__ from_units, const i32 *__restrict__ to_units, const i64 unit_bytes, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
