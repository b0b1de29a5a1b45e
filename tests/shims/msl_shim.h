/* MSL words in C++ for OpenCL: device, threadgroup, thread are the real address spaces. */
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#ifndef SHIM_CONTRACT
#pragma OPENCL FP_CONTRACT OFF
#endif
#define device __global
#define threadgroup __local
#define thread __private
enum class mem_flags { mem_none = 0, mem_threadgroup = 1, mem_device = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
inline uint shim_fence(mem_flags f)
{
    return (((int)f & 1) ? CLK_LOCAL_MEM_FENCE : 0) | (((int)f & 2) ? CLK_GLOBAL_MEM_FENCE : 0);
}
inline void threadgroup_barrier(mem_flags f)
{
    if (f == mem_flags::mem_device)
        work_group_barrier(CLK_GLOBAL_MEM_FENCE);
    else if (f == mem_flags::mem_threadgroup)
        work_group_barrier(CLK_LOCAL_MEM_FENCE);
    else
        work_group_barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}
inline void simdgroup_barrier(mem_flags) { sub_group_barrier(CLK_LOCAL_MEM_FENCE); }
template <class T, class U> inline T as_type(U u)
{
    static_assert(sizeof(T) == sizeof(U), "as_type between sizes");
    return __builtin_bit_cast(T, u);
}
#define SHIM_SIMD(T)                                                                             \
    inline T simd_sum(T v) { return sub_group_reduce_add(v); }                                   \
    inline T simd_max(T v) { return sub_group_reduce_max(v); }                                   \
    inline T simd_min(T v) { return sub_group_reduce_min(v); }                                   \
    inline T simd_shuffle(T v, ushort i) { return sub_group_shuffle(v, (uint)i); }               \
    inline T simd_shuffle_xor(T v, ushort m) { return sub_group_shuffle_xor(v, (uint)m); }       \
    inline T simd_shuffle_down(T v, ushort d) { return sub_group_shuffle_down(v, (uint)d); }     \
    inline T simd_shuffle_up(T v, ushort d) { return sub_group_shuffle_up(v, (uint)d); }         \
    inline T simd_broadcast(T v, ushort i) { return sub_group_shuffle(v, (uint)i); }             \
    inline T simd_prefix_exclusive_sum(T v) { return sub_group_scan_exclusive_add(v); }
SHIM_SIMD(float)
SHIM_SIMD(int)
SHIM_SIMD(uint)
namespace metal {
namespace precise {
inline float sqrt(float x) { return ::sqrt(x); }
inline float exp(float x) { return ::exp(x); }
inline float log(float x) { return ::log(x); }
inline float divide(float a, float b) { return a / b; }
} // namespace precise
} // namespace metal
#define double MSL_HAS_NO_DOUBLE
