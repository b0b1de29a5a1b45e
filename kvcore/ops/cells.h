/* From a cell to its place: pages, units, exact slots and marks. */
#define N_MARKS 8
#define COMMITTED 0
#define LENGTH 1
#define FRONTIER(s) (2 + (s))
#define RING_LO(s) (4 + (s))
#define CENTRED 6
#define FLAG 7
#define EVERYTHING 0x7fffffff

#define NO_PAGE (-1)
#define BAD_PAGE (-2) /* beyond the pool */

/* The page of a cell, or why it has none. */
KC_FN i32 page_of(KC_GLOBAL const i32 *pages, const i32 n_pages_each, const i32 n_pages,
                  const i32 page_size, const i32 cell)
{
    if (cell < 0 || cell / page_size >= n_pages_each)
        return NO_PAGE;
    const i32 page = pages[cell / page_size];
    return page < 0 ? NO_PAGE : (page < n_pages ? page : BAD_PAGE);
}

/* Row of a cell in the codes plane: (page * H + head) * P + slot. */
KC_FN i64 code_row(const i32 page, const i32 head, const i32 cell, const i32 n_heads,
                   const i32 page_size)
{
    return ((i64)page * n_heads + head) * page_size + cell % page_size;
}

/* Row of a cell's per-channel scales: (unit * H + head) * lines + line. */
KC_FN i64 channel_row(const i32 page, const i32 head, const i32 cell, const i32 n_heads,
                      const i32 page_size)
{
    const i32 unit_pages = page_size < GROUP_CELLS ? GROUP_CELLS / page_size : 1;
    const i32 lines = page_size < GROUP_CELLS ? 1 : page_size / GROUP_CELLS;
    return ((i64)(page / unit_pages) * n_heads + head) * lines + cell % page_size / GROUP_CELLS;
}

/* The slot that keeps a cell exactly: sinks first, then the ring. */
KC_FN i32 exact_slot(const i32 cell, const i32 sinks, const i32 ring)
{
    return cell < sinks ? cell : sinks + cell % ring;
}

/* Whether a query of `length` cells reads a cell of store s from its exact slot. */
KC_FN i32 reads_exact(const i32 s, KC_GLOBAL const i32 *marks, const i32 cell, const i32 length,
                      const i32 sinks, const i32 window, const i32 ring)
{
    if (ring == 0)
        return 0;
    if (cell < sinks)
        return 1;
    return (cell >= length - window || cell >= marks[FRONTIER(s)]) && cell >= marks[RING_LO(s)];
}
