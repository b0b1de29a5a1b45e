/* CUDA C words in C++ for OpenCL; a warp is a sub-group of 32. */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#ifndef SHIM_CONTRACT
#pragma OPENCL FP_CONTRACT OFF
#endif
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ __local
struct shim_dim3 {
    uint x, y, z;
};
#define SHIM_DIM3(f) (shim_dim3{(uint)f(0), (uint)f(1), (uint)f(2)})
#define threadIdx SHIM_DIM3(get_local_id)
#define blockIdx SHIM_DIM3(get_group_id)
#define blockDim SHIM_DIM3(get_local_size)
#define gridDim SHIM_DIM3(get_num_groups)
inline void __syncthreads() { work_group_barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); }
inline void __syncwarp() { sub_group_barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); }
template <class T> inline T __shfl_xor_sync(uint, T v, int m)
{
    return sub_group_shuffle_xor(v, (uint)m);
}
template <class T> inline T __shfl_sync(uint, T v, int i) { return sub_group_shuffle(v, (uint)i); }
template <class T> inline T __shfl_down_sync(uint, T v, uint d)
{
    return sub_group_shuffle_down(v, d);
}
inline float shim_h2f(ushort h) { return (float)as_half(h); }
inline ushort shim_f2h(float f) { return as_ushort(convert_half_rte(f)); }
inline uint __float_as_uint(float f) { return as_uint(f); }
inline float __uint_as_float(uint u) { return as_float(u); }
inline float rintf(float x) { return rint(x); }
inline float __fmaf_rn(float a, float b, float c) { return fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrt(x); }
inline int __dp4a(int a, int b, int c)
{
    const char4 x = as_char4(a), y = as_char4(b);
    return c + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
