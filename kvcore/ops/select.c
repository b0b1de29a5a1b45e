/* select: block scores, then the best blocks' cells in ascending order, ties exact. */

/* Cells of a query; 0 if the keys and the open block cannot be that many. */
KC_FN i32 cells_seen(const i32 length, const i32 n_keys, const i32 block_cells)
{
    return length < 0 || length > n_keys * block_cells + block_cells - 1 ? 0 : length;
}

KC_ENTRY(scores)
{
    const i32 block = gx % n_chunks * 64 + lane, t = gx / n_chunks;
    if (block >= n_blocks)
        return;
    const i32 length = cells_seen(lengths[t], n_keys, block_cells);
    if (length != lengths[t])
        errors[0] = 1;
    const i32 whole = length / block_cells, rest = length % block_cells;
    f32 total = 0.0f;
    if (block > whole || (block == whole && rest == 0)) {
        total = kc_as_f32(0xff800000u);
    } else {
        KC_ORDERED
        for (i32 head = 0; head < n_heads; head++) {
            f32 dot = 0.0f;
            KC_ORDERED
            for (i32 e = 0; e < dim; e++) {
                const f32 key = block < whole ? keys[(i64)block * dim + e] : dead[e];
                dot = dot + key * q[((i64)t * n_heads + head) * dim + e];
            }
            total = total + (dot < 0.0f ? 0.0f : dot);
        }
        if (block == whole)
            total = total + 1e9f;
    }
    out[(i64)t * n_blocks + block] = total;
}

/* Ascending with the score; NaN lowest, -0 like +0. */
KC_FN u32 order_key(const f32 score)
{
    const u32 bits = kc_as_u32(score);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0u;
    if ((bits & 0x7fffffffu) == 0u)
        return 0x80000000u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

KC_FN i32 cells_of(const i32 block, const i32 length, const i32 block_cells)
{
    const i32 left = length - block * block_cells;
    return left < block_cells ? left : block_cells;
}

/* One group a query. Bit by bit, find the largest key that leaves at least `width` cells at or
   above it; then take what lies above, and of the ties the lowest blocks. */
KC_ENTRY(choose)
{
    const i32 t = gx;
    const i32 length = cells_seen(lengths[t], n_keys, block_cells);
    const i32 n = (length + block_cells - 1) / block_cells;
    const i32 each = (n + 63) / 64;
    const i32 from = lane * each;
    const i32 to = from + each < n ? from + each : n;
    KC_GLOBAL const f32 *score = out + (i64)t * n_blocks;
    KC_GLOBAL i32 *mine = chosen + (i64)t * width;
    if (length <= width) {
        for (i32 i = lane; i < width; i += 64)
            mine[i] = i < length ? i : -1;
        return;
    }
    u32 cut = 0u;
    for (i32 bit = 31; bit >= 0; bit--) {
        const u32 trial = cut | (1u << bit);
        i32 cells = 0;
        for (i32 i = from; i < to; i++)
            if (order_key(score[i]) >= trial)
                cells += cells_of(i, length, block_cells);
        KC_BARRIER();
        above[lane] = cells;
        KC_BARRIER();
        i32 total = 0;
        for (i32 i = 0; i < 64; i++)
            total += above[i];
        if (total >= width)
            cut = trial;
    }
    i32 over = 0, level = 0;
    for (i32 i = from; i < to; i++) {
        const u32 key = order_key(score[i]);
        over += key > cut ? cells_of(i, length, block_cells) : 0;
        level += key == cut ? cells_of(i, length, block_cells) : 0;
    }
    KC_BARRIER();
    above[lane] = over;
    ties[lane] = level;
    KC_BARRIER();
    i32 spare = width, at = 0, ties_before = 0;
    for (i32 i = 0; i < 64; i++)
        spare -= above[i];
    for (i32 i = 0; i < lane; i++) {
        at += above[i];
        ties_before += ties[i];
    }
    at += ties_before < spare ? ties_before : spare;
    spare = spare > ties_before ? spare - ties_before : 0;
    for (i32 i = from; i < to; i++) {
        const u32 key = order_key(score[i]);
        i32 take = key >= cut ? cells_of(i, length, block_cells) : 0;
        if (key == cut) {
            take = take < spare ? take : spare;
            spare -= take;
        }
        for (i32 c = 0; c < take; c++)
            mine[at + c] = i * block_cells + c;
        at += take;
    }
}
