/* Metal Shading Language. Apple GPUs may flush f32 subnormals, so f16 is converted in integers. */
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#define KC_FN static inline
#define KC_GLOBAL device
#define KC_LOCAL threadgroup
#define KC_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device)
#define KC_SIMD 32
#define kc_simd_xor(v, mask) simd_shuffle_xor((v), (ushort)(mask))
#define KC_SOFT_F16
typedef char i8;
typedef uchar u8;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef float f32;
typedef ushort f16;
KC_FN u32 kc_as_u32(f32 x) { return as_type<uint>(x); }
KC_FN f32 kc_as_f32(u32 u) { return as_type<float>(u); }
KC_FN f32 kc_rint(f32 x) { return rint(x); }
KC_FN f32 kc_fma(f32 a, f32 b, f32 c) { return fma(a, b, c); }
KC_FN f32 kc_div(f32 a, f32 b) { return a / b; }
KC_FN f32 kc_sqrt(f32 x) { return metal::precise::sqrt(x); }
