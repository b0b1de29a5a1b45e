#line 1 "generated:kvcore/ops/gather.c"
#define K_BITS (8)
#define K_CODE_MASK (255)
#define K_DIM (128)
#define K_DIVISOR kc_as_f32(0x42fe0000u)
#define K_GROUP (64)
#define K_HALVES (0)
#define K_HIGH (127)
#define K_KIND (3)
#define K_LOW (-127)
#define K_N_LEVELS (255)
#define K_PER_BYTE (1)
#define K_PER_CHANNEL (0)
#define K_ROUNDING (0)
#define K_ROW_BYTES (128)
#define K_RULE (0)
#define K_SIGNED (1)
#define K_STORED (1)
#define K_ZERO (0)
#define V_BITS (8)
#define V_CODE_MASK (255)
#define V_DIM (128)
#define V_DIVISOR kc_as_f32(0x42fe0000u)
#define V_GROUP (64)
#define V_HALVES (0)
#define V_HIGH (127)
#define V_KIND (3)
#define V_LOW (-127)
#define V_N_LEVELS (255)
#define V_PER_BYTE (1)
#define V_PER_CHANNEL (0)
#define V_ROUNDING (0)
#define V_ROW_BYTES (128)
#define V_RULE (0)
#define V_SIGNED (1)
#define V_STORED (1)
#define V_ZERO (0)
__constant u32 kc_bits_k_levels[1] = {0x00000000u};
KC_FN f32 k_levels(i32 i) { return kc_as_f32(kc_bits_k_levels[i]); }
__constant u32 kc_bits_k_thresholds[1] = {0x00000000u};
KC_FN f32 k_thresholds(i32 i) { return kc_as_f32(kc_bits_k_thresholds[i]); }
__constant u32 kc_bits_v_levels[1] = {0x00000000u};
KC_FN f32 v_levels(i32 i) { return kc_as_f32(kc_bits_v_levels[i]); }
__constant u32 kc_bits_v_thresholds[1] = {0x00000000u};
KC_FN f32 v_thresholds(i32 i) { return kc_as_f32(kc_bits_v_thresholds[i]); }
typedef struct { i64 k_codes_at; i64 k_scales_at; i64 v_codes_at; i64 v_scales_at; i64 table_at; i64 ids_at; i64 k_at; i64 v_at; i64 errors_at; i32 n_heads; i32 page_size; i32 n_pages_each; i32 n_pages; i32 n_ids; i32 n_chunks; } kc_gather_values;
static inline void kc_gather_body(__global const u8 *restrict k_codes, __global const f16 *restrict k_scales, __global const u8 *restrict v_codes, __global const f16 *restrict v_scales, __global const i32 *restrict table, __global const i32 *restrict ids, __global f16 *restrict k, __global f16 *restrict v, __global i32 *restrict errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 n_ids, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz);
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void kc_gather(
    __global const u8 *restrict k_codes,
    __global const f16 *restrict k_scales,
    __global const u8 *restrict v_codes,
    __global const f16 *restrict v_scales,
    __global const i32 *restrict table,
    __global const i32 *restrict ids,
    __global f16 *restrict k,
    __global f16 *restrict v,
    __global i32 *restrict errors,
    const kc_gather_values kc_values)
{
    kc_gather_body((KC_GLOBAL const u8 *)((KC_GLOBAL const u8 *)k_codes + kc_values.k_codes_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)k_scales + kc_values.k_scales_at), (KC_GLOBAL const u8 *)((KC_GLOBAL const u8 *)v_codes + kc_values.v_codes_at), (KC_GLOBAL const f16 *)((KC_GLOBAL const u8 *)v_scales + kc_values.v_scales_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)table + kc_values.table_at), (KC_GLOBAL const i32 *)((KC_GLOBAL const u8 *)ids + kc_values.ids_at), (KC_GLOBAL f16 *)((KC_GLOBAL u8 *)k + kc_values.k_at), (KC_GLOBAL f16 *)((KC_GLOBAL u8 *)v + kc_values.v_at), (KC_GLOBAL i32 *)((KC_GLOBAL u8 *)errors + kc_values.errors_at), kc_values.n_heads, kc_values.page_size, kc_values.n_pages_each, kc_values.n_pages, kc_values.n_ids, kc_values.n_chunks, (i32)get_local_id(0), (i32)get_group_id(0), (i32)get_group_id(1), (i32)get_group_id(2));
}
#define KC_ENTRY_gather static inline void kc_gather_body(__global const u8 *restrict k_codes, __global const f16 *restrict k_scales, __global const u8 *restrict v_codes, __global const f16 *restrict v_scales, __global const i32 *restrict table, __global const i32 *restrict ids, __global f16 *restrict k, __global f16 *restrict v, __global i32 *restrict errors, const i32 n_heads, const i32 page_size, const i32 n_pages_each, const i32 n_pages, const i32 n_ids, const i32 n_chunks, const i32 lane, const i32 gx, const i32 gy, const i32 gz)
