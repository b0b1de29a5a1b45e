/* OpenCL C 1.2. No optional extension: vload_half and vstore_half are core. */
#pragma OPENCL FP_CONTRACT OFF
#define KC_FN static inline
#define KC_GLOBAL __global
#define KC_LOCAL __local
#define KC_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define KC_SIMD 0
/* Intel's CPU compiler reassociates the sum of a vectorized loop, whatever the flags say. */
#define KC_ORDERED _Pragma("clang loop vectorize(disable) interleave(disable)")
typedef char i8;
typedef uchar u8;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef float f32;
typedef ushort f16;
KC_FN u32 kc_as_u32(f32 x) { return as_uint(x); }
KC_FN f32 kc_as_f32(u32 u) { return as_float(u); }
KC_FN f32 kc_rint(f32 x) { return rint(x); }
KC_FN f32 kc_fma(f32 a, f32 b, f32 c) { return fma(a, b, c); }
KC_FN f32 kc_h2f(f16 h) { return vload_half(0, (const __private half *)&h); }
KC_FN f16 kc_hardware_f2h(f32 x)
{
    f16 h;
    vstore_half_rte(x, 0, (__private half *)&h);
    return h;
}
#ifndef KC_SOFT_DIV
KC_FN f32 kc_div(f32 a, f32 b) { return a / b; }
KC_FN f32 kc_sqrt(f32 x) { return sqrt(x); }
#endif
