/* Line 5 does not compile, on any target. */
KC_ENTRY(broken)
{
    if (lane == 0)
        y[0] = not_declared_anywhere;
}
