/* What an append of one sequence and store reads and writes. */
typedef struct {
    KC_GLOBAL const f32 *fresh;  /* [B, T, H, D], new cells */
    KC_GLOBAL const f16 *slots;  /* exact cells of before */
    KC_GLOBAL const f16 *centre; /* [B, H, Dk] */
    KC_GLOBAL const i32 *source; /* [B, T], tokens of a sequence that are no padding */
    i32 b, start, n_tokens, n_heads, n_slots, sinks, ring;
} From;

typedef struct {
    KC_GLOBAL const i32 *pages;
    i32 page_size;
    KC_GLOBAL u8 *codes;
    KC_GLOBAL f16 *scales;
} Into;

KC_FN From from_where(KC_GLOBAL const f32 *fresh, KC_GLOBAL const f16 *slots,
                      KC_GLOBAL const f16 *centre, KC_GLOBAL const i32 *source, const i32 b,
                      const i32 start, const i32 n_tokens, const i32 n_heads, const i32 n_slots,
                      const i32 sinks, const i32 ring)
{
    From from;
    from.fresh = fresh;
    from.slots = slots;
    from.centre = centre;
    from.source = source;
    from.b = b;
    from.start = start;
    from.n_tokens = n_tokens;
    from.n_heads = n_heads;
    from.n_slots = n_slots;
    from.sinks = sinks;
    from.ring = ring;
    return from;
}

KC_FN Into into_where(KC_GLOBAL const i32 *pages, const i32 page_size, KC_GLOBAL u8 *codes,
                      KC_GLOBAL f16 *scales)
{
    Into into;
    into.pages = pages;
    into.page_size = page_size;
    into.codes = codes;
    into.scales = scales;
    return into;
}

/* The float32 of a new cell, or of an old one from its exact slot. */
KC_FN f32 cell_value(const i32 s, const From from, const i32 cell, const i32 head, const i32 d)
{
    if (cell >= from.start) {
        const i32 t = from.source[from.b * from.n_tokens + cell - from.start];
        const i64 token = (i64)from.b * from.n_tokens + t;
        return from.fresh[(token * from.n_heads + head) * DIM(s) + d];
    }
    const i64 slot = (i64)from.b * from.n_slots + exact_slot(cell, from.sinks, from.ring);
    return kc_h2f(from.slots[(slot * from.n_heads + head) * DIM(s) + d]);
}

/* What the bulk encodes of a cell: a store whose cells wait starts from the float16 value. */
KC_FN f32 encoded_value(const i32 s, const From from, const i32 cell, const i32 head, const i32 d)
{
    f32 x = cell_value(s, from, cell, head, d);
    if ((DEFERRED && PER_CHANNEL(s)) || (s == 0 && CENTRE))
        x = kc_h2f(to_f16(x));
    if (s == 0 && CENTRE)
        x = x - kc_h2f(from.centre[((i64)from.b * from.n_heads + head) * K_DIM + d]);
    return x;
}
