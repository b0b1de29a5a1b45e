/* resolve: one lane walks ids and clock, so that every device gives the same slots. */
#define EPOCH 0
#define HAND 1
#define PLACED 2
#define OVERFLOW_MARK 3
#define MISSES 4
#define LOOKUPS 6
#define CALLS 8
#define CLAIMED (-2)

/* Add to a 64-bit counter kept in two words. */
KC_FN void count(KC_GLOBAL i32 *ctl, const i32 at, const i32 n)
{
    const u32 low = (u32)ctl[at] + (u32)n;
    if (low < (u32)n)
        ctl[at + 1] = (i32)((u32)ctl[at + 1] + 1u);
    ctl[at] = (i32)low;
}

KC_ENTRY(resolve)
{
    if (lane != 0 || gx != 0)
        return;
    count(ctl, CALLS, 1);
    ctl[EPOCH] = ctl[EPOCH] == 0x7fffffff ? 1 : ctl[EPOCH] + 1;
    const i32 epoch = ctl[EPOCH];
    if (epoch == 1)
        for (i32 i = 0; i < n_slots; i++)
            slot_stamp[i] = -1;
    i32 n_missing = 0, lookups = 0;
    for (i32 q = 0; q < n_queries; q++) {
        i32 last = -1;
        for (i32 i = 0; i < n_ids; i++) {
            const i32 cell = ids[(i64)q * n_ids + i];
            if (cell < 0)
                continue;
            const i32 unit = cell / unit_cells;
            if (unit >= n_units) {
                errors[0] = 1;
                continue;
            }
            if (unit == last)
                continue;
            last = unit;
            lookups += 1;
            const i32 slot = table[unit];
            if (slot >= 0) {
                slot_stamp[slot] = epoch;
                slot_ref[slot] = 1;
            } else if (slot != CLAIMED) {
                table[unit] = CLAIMED;
                missing[n_missing] = unit;
                n_missing += 1;
            }
        }
    }
    count(ctl, LOOKUPS, lookups);
    i32 placed = 0, hand = ctl[HAND];
    for (i64 scanned = 0; placed < n_missing && scanned < 3 * (i64)n_slots; scanned++) {
        const i32 slot = hand;
        hand = hand + 1 == n_slots ? 0 : hand + 1;
        if (slot_stamp[slot] == epoch)
            continue;
        const i32 old = slot_unit[slot];
        if (old >= 0 && slot_ref[slot]) {
            slot_ref[slot] = 0;
            continue;
        }
        if (old >= 0)
            table[old] = -1;
        const i32 unit = missing[placed];
        table[unit] = slot;
        slot_unit[slot] = unit;
        slot_stamp[slot] = epoch;
        slot_ref[slot] = 1;
        moves[2 * placed] = unit;
        moves[2 * placed + 1] = slot;
        placed += 1;
    }
    for (i32 i = placed; i < n_missing; i++)
        table[missing[i]] = -1;
    ctl[HAND] = hand;
    ctl[PLACED] = placed;
    ctl[OVERFLOW_MARK] = placed < n_missing ? 1 : 0;
    count(ctl, MISSES, placed);
}
