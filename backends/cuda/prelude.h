/* CUDA C, with no header: NVRTC alone compiles it, so CI needs neither a toolkit nor a driver. */
#define KC_FN static __device__ __forceinline__
#define KC_GLOBAL
#define KC_LOCAL
#define KC_BARRIER() __syncthreads()
#define KC_SIMD 32
#define KC_UNROLL _Pragma("unroll")
#define kc_simd_xor(v, mask) __shfl_xor_sync(0xffffffffu, (v), (mask))
typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef float f32;
typedef unsigned short f16;
KC_FN u32 kc_as_u32(f32 x) { return __float_as_uint(x); }
KC_FN f32 kc_as_f32(u32 u) { return __uint_as_float(u); }
KC_FN f32 kc_rint(f32 x) { return rintf(x); }
KC_FN f32 kc_fma(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
KC_FN f32 kc_div(f32 a, f32 b) { return __fdiv_rn(a, b); }
KC_FN f32 kc_sqrt(f32 x) { return __fsqrt_rn(x); }
KC_FN f32 kc_h2f(f16 h)
{
    f32 x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
KC_FN f16 kc_hardware_f2h(f32 x)
{
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
