"""The launches of one append."""

from __future__ import annotations

from typing import Any

from kvcore import operands
from kvcore.layout import N_MARKS
from kvcore.pool import Pool, State
from kvcore.portable import programs
from kvcore.portable.engine import Engine, chunks_of, rings_of
from kvcore.spec import GROUP_CELLS, MAX_DRAFT, Codec

_RULES = {"old": 0, "n": 1, "shrink": 2}


class Append:
    """One append: what its entries have in common, then one launch each.

    Parameters
    ----------
    engine : Engine
    pool : Pool
    call : AppendCall
        Checked operands.
    state : State or None
    draft : bool
    scratch : Scratch or None
    """

    def __init__(
        self,
        engine: Engine,
        pool: Pool,
        call: operands.AppendCall,
        state: State | None,
        draft: bool,
        scratch: Any,
    ) -> None:
        self.engine, self.pool, self.call, self.state = engine, pool, call, state
        self.draft = draft
        self.batch, self.steps = (int(n) for n in call.k.shape[:2])
        self.layout = layout = pool.layout
        self.sl = None if state is None else state.layout
        self.entries = programs.append_entries(layout, self.sl)
        self.program = engine.program(programs.append_recipe, layout, self.sl)
        self.rings = rings_of(state)
        self.exact = engine.state(state)
        self.table, self.positions = engine.ints(call.table), engine.ints(call.positions)
        batch, steps = self.batch, max(self.steps, 1)
        sizes = {
            "next": (batch, N_MARKS),
            "starts": (batch,),
            "counts": (batch, 2),
            "source": (2, batch, steps),
        }
        self.maps = [engine.work(scratch, name, size, "i4") for name, size in sizes.items()]
        self.geometry = [layout.n_kv_heads, layout.page_size, call.table.shape[1], pool.n_pages]

    def run(self) -> None:
        """Launch the entries in order."""
        launches = {
            "plan": self._plan,
            "fix_centre": self._fix_centre,
            "rows": self._rows,
            "groups": self._groups,
            "eager": self._eager,
            "exact": self._exact,
        }
        for entry in self.entries:
            launches[entry]()

    def _codecs(self) -> list[tuple[Codec, int]]:
        layout = self.layout
        return [(layout.k, layout.head_dim_k), (layout.v, layout.head_dim_v)]

    def _plan(self) -> None:
        engine, call, layout = self.engine, self.call, self.layout
        commit = None if call.commit is None else engine.ints(call.commit).buffer
        stateful = self.state is not None
        engine.launch(
            self.program, "plan", (self.batch, 1, 1),
            [self.exact[0], self.positions.buffer, self.table.buffer, commit,
             *(m.buffer for m in self.maps), engine.errors.buffer,
             self.batch, self.steps, *self.geometry[1:], int(stateful), int(self.draft),
             int(commit is not None), int(stateful or layout.per_channel), _RULES[layout.rule],
             self.rings[1], self.rings[2]],
        )  # fmt: skip

    def _fix_centre(self) -> None:
        layout = self.layout
        marks, k_slots, _, centre = self.exact
        after, starts, _, source = (m.buffer for m in self.maps)
        self.engine.launch(
            self.program, "fix_centre",
            (chunks_of(layout.n_kv_heads * layout.head_dim_k), self.batch, 1),
            [self.call.k.buffer, k_slots, centre, marks, after, starts, source,
             layout.n_kv_heads, self.steps, self.rings[0], self.rings[1], self.rings[3]],
        )  # fmt: skip

    def _rows(self) -> None:
        # cells that waited for the centre are written with those that fix it
        waiting = self.sl.center_cells + MAX_DRAFT if self.sl and self.sl.center_cells else 0
        groups = [
            -(-d // (c.scale.group if c.scale else GROUP_CELLS))
            for c, d in self._codecs()
            if c.per_row
        ]
        items = self.layout.n_kv_heads * max(groups)
        self._store("rows", self.steps + waiting, items, positions=True)

    def _column_items(self) -> int:
        return self.layout.n_kv_heads * max(
            c.row_bytes(d) for c, d in self._codecs() if c.per_channel
        )

    def _groups(self) -> None:
        centre = self.sl.center_cells if self.sl else 0
        # open drafts and open cells may complete with this call
        opened = max(GROUP_CELLS, centre) + MAX_DRAFT
        self._store("groups", 1 + -(-(self.steps + opened) // GROUP_CELLS), self._column_items())

    def _eager(self) -> None:
        self._store("eager", self.steps // GROUP_CELLS + 2, self._column_items())

    def _store(self, entry: str, count: int, items: int, positions: bool = False) -> None:
        engine, layout, call = self.engine, self.layout, self.call
        marks, k_slots, v_slots, centre = self.exact
        chunks = chunks_of(items)
        gain = layout.k_gain
        args = [
            call.k.buffer, call.v.buffer, k_slots, v_slots, centre, marks,
            *(m.buffer for m in self.maps), self.table.buffer,
            *([self.positions.buffer] if positions else []), *engine.planes(self.pool),
            *self.geometry, *self.rings,
            self.steps, self.batch, chunks, int(gain == "unbiased"), _RULES[layout.rule],
            1.0 if gain == "unbiased" else float(gain),
            *([int(self.state is not None)] if positions else []),
        ]  # fmt: skip
        engine.launch(self.program, entry, (chunks * count, 1, 2 * self.batch), args)

    def _exact(self) -> None:
        layout = self.layout
        marks, k_slots, v_slots, _ = self.exact
        chunks = chunks_of(layout.n_kv_heads * max(layout.head_dim_k, layout.head_dim_v))
        self.engine.launch(
            self.program, "exact", (chunks * max(self.steps, 1), 1, 2 * self.batch),
            [self.call.k.buffer, self.call.v.buffer, k_slots, v_slots, marks,
             *(m.buffer for m in self.maps), layout.n_kv_heads, self.steps, chunks, *self.rings],
        )  # fmt: skip
