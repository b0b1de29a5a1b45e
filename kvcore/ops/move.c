/* move: copy units of one plane, four bytes a lane; gy counts units. */
KC_ENTRY(move)
{
    const i64 word = (i64)gx * 64 + lane;
    if (word * 4 >= unit_bytes)
        return;
    const i64 from = (i64)from_units[gy] * unit_bytes + word * 4;
    const i64 to = (i64)to_units[gy] * unit_bytes + word * 4;
    for (i32 i = 0; i < 4 && word * 4 + i < unit_bytes; i++)
        target[to + i] = origin[from + i];
}
