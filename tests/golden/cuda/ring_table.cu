#line 1 "generated:kvcore/ops/ring_table.c"
typedef struct { i32 n_blocks; i32 n_slots; i32 unit; } kc_ring_table_values;
static __device__ __forceinline__ void kc_ring_table_body(i32 *__restrict__ slots, const i32 n_blocks, const i32 n_slots, const i32 unit, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
extern "C" __global__ void __launch_bounds__(64, 4) kc_ring_table(
    i32 *__restrict__ slots,
    const kc_ring_table_values kc_values)
{
    kc_ring_table_body(slots, kc_values.n_blocks, kc_values.n_slots, kc_values.unit, (i32)threadIdx.x, (i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z);
}
#define KC_ENTRY_ring_table static __device__ __forceinline__ void kc_ring_table_body(i32 *__restrict__ slots, const i32 n_blocks, const i32 n_slots, const i32 unit, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
