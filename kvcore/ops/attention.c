/* attention: each group of lanes takes HEADS query heads of one KV head over SPLIT cells; a second
   kernel merges the splits in order. Which lane sums what is fixed, so the bits are too. A turn
   takes the listed positions [first, stop) of some queries: a streamed pool holds only their cells
   then. Turns are cut between tiles and a split goes on from its sums, so turns leave no trace. */
#include "codec.h"
#include "cells.h"

#define MASKED 0
#define OWN 1
#define EXACT 2
#define BULK 3
#define LOWEST (-3.0e38f)

/* One value of a cell, from the place that was found for it. */
KC_FN f32 read_value(const i32 s, const i32 where, const i64 row, const i64 line, const i32 head,
                     const i32 d, const i32 n_heads, KC_GLOBAL const f32 *own,
                     KC_GLOBAL const f16 *slots, KC_GLOBAL const u8 *codes,
                     KC_GLOBAL const f16 *scales)
{
    if (where == OWN)
        return own[(row * n_heads + head) * DIM(s) + d];
    if (where == EXACT)
        return kc_h2f(slots[(row * n_heads + head) * DIM(s) + d]);
    if (where == BULK)
        return bulk_value(s, codes, scales, row, line, d);
    return 0.0f;
}

/* softcap * tanh(s / softcap), a NaN passing through. */
KC_FN f32 capped(const f32 s, const f32 softcap)
{
    const f32 x = kc_div(s, softcap);
    const f32 e = kc_exp(-2.0f * kc_abs(x));
    const f32 y = softcap * kc_div(1.0f - e, 1.0f + e);
    return x < 0.0f ? -y : (x >= 0.0f ? y : x);
}

/* Which query head and dimension a lane's i-th sum belongs to. */
#if V_DIM % 64
#define ROW_OF(i) (((i) * 64 + lane) / V_DIM)
#define DIM_OF(i) (((i) * 64 + lane) % V_DIM)
#else
#define ROW_OF(i) ((i) * 64 / V_DIM)
#define DIM_OF(i) ((i) * 64 % V_DIM + lane)
#endif

KC_ENTRY(split)
{
    const i32 chunk = gx % N_CHUNKS, head = gx / N_CHUNKS % n_heads;
    const i32 query_row = first_row + gx / (N_CHUNKS * n_heads), part = first / SPLIT + gy;
    const i32 t = query_row % n_tokens, b = query_row / n_tokens;
    const i32 n_queries = n_heads * GROUP_HEADS;
    const i32 first_query = head * GROUP_HEADS + chunk * HEADS;
    const i32 left = GROUP_HEADS - chunk * HEADS;
    const i32 mine = left < HEADS ? left : HEADS;
    KC_GLOBAL const i32 *row = marks + b * N_MARKS;
    KC_GLOBAL const i32 *pages = table + (i64)b * n_pages_each;
    const i32 last = per_query ? lengths[b * n_tokens + n_tokens - 1] : lengths[b];
    i32 length = per_query ? lengths[b * n_tokens + t] : lengths[b] - (n_tokens - 1 - t);
    const i32 most = n_pages_each * page_size;
    if (last < 0 || length > most || (per_query && length < 0)) {
        errors[0] = 1;
        length = 0; /* a bad query sees nothing */
    }
    length = length < 0 ? 0 : length;
    const i32 own_start = has_own ? last - n_tokens : 0x7fffffff;
    const i32 low = limit > 0 && length > limit ? length - limit : 0;
    const i32 n_listed = has_ids ? n_ids : length;
    const i32 until = n_listed < stop ? n_listed : stop;
    const i32 end = (part + 1) * SPLIT < until ? (part + 1) * SPLIT : until;
    const i64 at = (((i64)b * n_tokens + t) * n_splits + part) * n_queries + first_query;
    const i32 resumed = first > part * SPLIT; /* an earlier turn left its sums */
    f32 acc[N_ACC];
    KC_UNROLL
    for (i32 i = 0; i < N_ACC; i++)
        acc[i] = resumed && ROW_OF(i) < mine ? partial[at * V_DIM + i * 64 + lane] : 0.0f;
    if (lane < mine) {
        tops[lane] = resumed ? sums[(at + lane) * 2] : LOWEST;
        totals[lane] = resumed ? sums[(at + lane) * 2 + 1] : 0.0f;
    }
    for (i32 base = resumed ? first : part * SPLIT; base < end; base += TILE) {
        KC_BARRIER();
        if (lane < TILE) {
            i32 cell = base + lane < end ? base + lane : -1;
            if (has_ids && cell >= 0)
                cell = ids[((i64)b * (ids_per_query ? n_tokens : 1) + (ids_per_query ? t : 0)) *
                               n_ids + cell];
            if (cell < -1 || cell >= length) {
                if (base + lane < end)
                    errors[0] = 1;
                cell = -1;
            }
            i32 k_where = MASKED, v_where = MASKED;
            i64 k_row = 0, v_row = 0, k_line = 0, v_line = 0;
            if (cell >= low && cell >= 0) {
                const i32 page = page_of(pages, n_pages_each, n_pages, page_size, cell);
                if (page == BAD_PAGE)
                    errors[0] = 1;
                if (page >= 0) {
                    k_where = BULK;
                    v_where = BULK;
                    k_row = code_row(page, head, cell, n_heads, page_size);
                    v_row = k_row;
                    k_line = channel_row(page, head, cell, n_heads, page_size);
                    v_line = k_line;
                }
                if (has_state && reads_exact(0, row, cell, length, sinks, window, k_ring)) {
                    k_where = EXACT;
                    k_row = (i64)b * n_k_slots + exact_slot(cell, sinks, k_ring);
                }
                if (has_state && reads_exact(1, row, cell, length, sinks, window, v_ring)) {
                    v_where = EXACT;
                    v_row = (i64)b * n_v_slots + exact_slot(cell, sinks, v_ring);
                }
                if (cell >= own_start) {
                    k_where = OWN;
                    v_where = OWN;
                    k_row = (i64)b * n_tokens + cell - own_start;
                    v_row = k_row;
                }
            }
            const i32 seen = k_where != MASKED && v_where != MASKED;
            where[lane] = seen ? k_where : MASKED;
            where[TILE + lane] = seen ? v_where : MASKED;
            place[lane] = k_row;
            place[TILE + lane] = v_row;
            place[2 * TILE + lane] = k_line;
            place[3 * TILE + lane] = v_line;
        }
        KC_BARRIER();
        for (i32 c = 0; c < TILE; c++) {
            for (i32 d = lane; d < K_DIM; d += 64) {
                f32 x = read_value(0, where[c], place[c], place[2 * TILE + c], head, d, n_heads,
                                   own_k, k_slots, k_codes, k_scales);
                if (CENTRE && where[c] == BULK)
                    x = x + kc_h2f(centre[((i64)b * n_heads + head) * K_DIM + d]);
                tile[d * (TILE + 1) + c] = x; /* by dimension, padded: lanes take cells next */
            }
        }
        KC_BARRIER();
        for (i32 i = lane; i < mine * TILE; i += 64) {
            const i32 r = i / TILE, c = i % TILE;
            KC_GLOBAL const f32 *query =
                q + (((i64)b * n_tokens + t) * n_queries + first_query + r) * K_DIM;
            f32 dot = 0.0f;
            KC_ORDERED
            for (i32 d = 0; d < K_DIM; d++)
                dot = dot + query[d] * tile[d * (TILE + 1) + c];
            f32 s = softcap > 0.0f ? capped(dot * scale, softcap) : dot * scale;
            s = s < LOWEST ? LOWEST : (s > -LOWEST ? -LOWEST : s); /* a NaN passes */
            weights[i] = where[c] != MASKED ? s : LOWEST;
        }
        KC_BARRIER();
        if (lane < mine) {
            f32 top = tops[lane];
            for (i32 c = 0; c < TILE; c++)
                top = kc_max(top, weights[lane * TILE + c]);
            shrinks[lane] = kc_exp(tops[lane] - top);
            tops[lane] = top;
        }
        KC_BARRIER();
        for (i32 i = lane; i < mine * TILE; i += 64)
            weights[i] = where[i % TILE] != MASKED ? kc_exp(weights[i] - tops[i / TILE]) : 0.0f;
        for (i32 c = 0; c < TILE; c++)
            for (i32 d = lane; d < V_DIM; d += 64)
                tile[c * V_DIM + d] =
                    read_value(1, where[TILE + c], place[TILE + c], place[3 * TILE + c], head, d,
                               n_heads, own_v, v_slots, v_codes, v_scales);
        KC_BARRIER();
        if (lane < mine) {
            f32 total = 0.0f;
            KC_ORDERED
            for (i32 c = 0; c < TILE; c++)
                total = total + weights[lane * TILE + c];
            totals[lane] = totals[lane] * shrinks[lane] + total;
        }
        KC_UNROLL
        for (i32 i = 0; i < N_ACC; i++) {
            if (ROW_OF(i) < mine) {
                f32 sum = acc[i] * shrinks[ROW_OF(i)];
                KC_ORDERED
                for (i32 c = 0; c < TILE; c++)
                    if (where[c] != MASKED)
                        sum = sum + weights[ROW_OF(i) * TILE + c] * tile[c * V_DIM + DIM_OF(i)];
                acc[i] = sum;
            }
        }
    }
    KC_UNROLL
    for (i32 i = 0; i < N_ACC; i++) {
        if (ROW_OF(i) < mine)
            partial[at * V_DIM + i * 64 + lane] = acc[i];
    }
    if (lane < mine) {
        sums[(at + lane) * 2] = tops[lane];
        sums[(at + lane) * 2 + 1] = totals[lane];
    }
}

/* One group of lanes a query head: splits in ascending order; nothing seen gives 0 and -inf. */
KC_ENTRY(merge)
{
    const i32 head = gx % n_queries, query = gx / n_queries;
    f32 top = LOWEST;
    for (i32 p = 0; p < n_splits; p++) {
        const i64 at = ((i64)query * n_splits + p) * n_queries + head;
        if (sums[at * 2 + 1] != 0.0f)
            top = kc_max(top, sums[at * 2]);
    }
    f32 total = 0.0f;
    KC_ORDERED
    for (i32 p = 0; p < n_splits; p++) {
        const i64 at = ((i64)query * n_splits + p) * n_queries + head;
        if (sums[at * 2 + 1] != 0.0f)
            total = total + sums[at * 2 + 1] * kc_exp(sums[at * 2] - top);
    }
    const i64 to = (i64)query * n_queries + head;
    for (i32 d = lane; d < V_DIM; d += 64) {
        f32 sum = 0.0f;
        KC_ORDERED
        for (i32 p = 0; p < n_splits; p++) {
            const i64 at = ((i64)query * n_splits + p) * n_queries + head;
            if (sums[at * 2 + 1] != 0.0f)
                sum = sum + partial[at * V_DIM + d] * kc_exp(sums[at * 2] - top);
        }
        out[to * V_DIM + d] = total != 0.0f ? kc_div(sum, total) : 0.0f;
    }
    if (lane == 0)
        lse[to] = total != 0.0f ? top + kc_log(total) : kc_as_f32(0xff800000u);
}
