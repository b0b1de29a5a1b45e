/* ring_table: one lane a block. */
KC_ENTRY(ring_table)
{
    const i32 b = gx * 64 + lane;
    if (b < n_blocks)
        slots[b] = b / unit % (n_slots / unit) * unit + b % unit;
}
