/* move: copy units of one plane, four bytes a lane; gx counts chunks of lanes within units. */
KC_ENTRY(move)
{
    const i64 word = (i64)(gx % n_chunks) * 64 + lane;
    const i32 index = gx / n_chunks;
    if (word * 4 >= unit_bytes)
        return;
    const i64 from = (i64)from_units[index] * unit_bytes + word * 4;
    const i64 to = (i64)to_units[index] * unit_bytes + word * 4;
    for (i32 i = 0; i < 4 && word * 4 + i < unit_bytes; i++)
        target[to + i] = origin[from + i];
}
