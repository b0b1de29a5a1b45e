"""Every op through the portable bodies, on one device."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kvcore import operands
from kvcore.backend import Backend
from kvcore.compiler.device import Device
from kvcore.errors import RangeError
from kvcore.numerics import Array
from kvcore.ops.move import check_move
from kvcore.ops.resolve import check_resolve
from kvcore.ops.restore import check_restore
from kvcore.ops.ring_table import check_ring
from kvcore.ops.rotate import check_rotate
from kvcore.ops.select import check_select
from kvcore.pool import Pool, State
from kvcore.portable import programs
from kvcore.portable.append import Append
from kvcore.portable.arrays import DeviceArray, PortableArrays
from kvcore.portable.attention import Attention
from kvcore.portable.engine import Engine, chunks_of, rings_of
from kvcore.portable.units import move_plane
from kvcore.registry import implements
from kvcore.residency import PLACED, Residency
from kvcore.turns import PartlyResident


class PortableBackend(Backend):
    """Base of the backends that compile the portable bodies.

    A subclass gives ``target`` and its device. Everything runs asynchronously in the device's
    order; only ``to_host``, ``synchronize`` and ops that return host values wait.

    Parameters
    ----------
    device : Device
    """

    target: ClassVar[str] = ""
    gives_external: ClassVar[bool] = False
    arrays: PortableArrays

    def __init__(self, device: Device) -> None:
        self.engine = Engine(device, self.target)
        self.arrays = self.engine.arrays

    @property
    def device(self) -> str:
        """Name of the device in use."""
        return self.engine.device.name

    def kernel_name(self, op: str, spec: Any) -> str:
        """Return the portable body that runs for an op."""
        return f"kvcore/ops/{op}.c [{self.target}]"

    # -- memory ---------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Return a zeroed array on the device."""
        out = self.engine.arrays.empty(shape, dtype)
        if out.nbytes:
            self.engine.device.fill(out.buffer, 0, out.nbytes)
        return out

    def to_host(self, array: Any) -> Array:
        """Return a NumPy copy of an array of this device."""
        return self.engine.host(array)

    def write(self, array: Any, values: Array) -> None:
        """Overwrite all of a device array with host values."""
        target = self.engine.adopt(array)
        data = np.ascontiguousarray(np.broadcast_to(values, target.shape), target.dtype)
        self.engine.device.upload(target.buffer, data)

    def part(self, array: Any, start: int, stop: int) -> DeviceArray:
        """Return rows [start, stop) of a device array, sharing its memory."""
        whole = self.engine.adopt(array)
        first, last, _ = slice(start, stop).indices(whole.shape[0])
        row = whole.nbytes // max(whole.shape[0], 1)
        window = whole.buffer.view(first * row, (last - first) * row)
        shape = (last - first, *whole.shape[1:])
        return DeviceArray(self.engine.device, window, shape, whole.dtype)

    def _give(self, array: DeviceArray) -> Any:
        return self.engine.device.to_external(array.tensor()) if self.gives_external else array

    def synchronize(self) -> None:
        """Wait for the device.

        Raises
        ------
        RangeError
            If a device-held position, id, page or length of an earlier call was out of range;
            that row was skipped.
        """
        errors = self.engine.errors
        self.engine.device.synchronize()
        if int(errors.to_numpy()[0]):
            self.write(errors, np.zeros(1, np.int32))
            raise RangeError(
                "[synchronize] a device-held operand of an earlier call was unusable (a position, "
                "id, page or length out of range): got a bad row, expected none; it was skipped"
            )

    # -- ops ------------------------------------------------------------------------------

    @implements("rotate", version=1)
    def rotate(self, x: Any, out: Any = None) -> Any:
        """See :mod:`kvcore.ops.rotate`."""
        engine = self.engine
        a = self.arrays.asarray(x, "float", "rotate", "x")
        block = check_rotate(a.shape)
        y = engine.out(out, a.shape, "rotate")
        n = a.size // block
        program = engine.program(programs.rotate_recipe, block)
        engine.launch(program, "rotate", (n, 1, 1), [a.buffer, y.buffer, n, max(n, 1)])
        return self._give(y) if out is None else out

    @implements("append", version=1)
    def append(
        self,
        pool: Pool,
        table: Any,
        positions: Any,
        k: Any,
        v: Any,
        state: State | None = None,
        draft: bool = False,
        commit: Any = None,
        scratch: Any = None,
    ) -> None:
        """See :mod:`kvcore.ops.append`."""
        call = operands.append(self.arrays, pool, table, positions, k, v, state, draft, commit)
        if call.k.shape[0]:
            Append(self.engine, pool, call, state, bool(draft), scratch).run()

    @implements("gather", version=1)
    def gather(self, pool: Pool, table: Any, ids: Any) -> tuple[Any, Any]:
        """See :mod:`kvcore.ops.gather`."""
        engine, layout = self.engine, pool.layout
        call = operands.gather(self.arrays, pool, table, ids)
        batch, n = call.ids.shape
        dims = layout.head_dim_k, layout.head_dim_v
        k, v = (
            self.arrays.empty((batch, n, layout.n_kv_heads, d), np.float16) for d in dims
        )  # fmt: skip
        chunks = chunks_of(layout.n_kv_heads * max(dims))
        cells, pages = engine.ints(call.ids), engine.ints(call.table)
        program = engine.program(programs.gather_recipe, layout)
        engine.launch(
            program, "gather", (chunks * n, 1, 2 * batch),
            [*engine.planes(pool), pages.buffer, cells.buffer, k.buffer, v.buffer,
             engine.errors.buffer, layout.n_kv_heads, layout.page_size, call.table.shape[1],
             pool.n_pages, n, chunks],
        )  # fmt: skip
        if not call.batched:
            k, v = (a.reshape(a.shape[1:]) for a in (k, v))
        return self._give(k), self._give(v)

    @implements("attention", version=1)
    def attention(
        self,
        q: Any,
        pool: Pool,
        table: Any,
        lengths: Any,
        ids: Any = None,
        state: State | None = None,
        scale: Any = None,
        softcap: Any = None,
        window: Any = None,
        k: Any = None,
        v: Any = None,
        return_lse: bool = False,
        out: Any = None,
        scratch: Any = None,
    ) -> Any:
        """See :mod:`kvcore.ops.attention`."""
        call = operands.attention(
            self.arrays, q, pool, table, lengths, ids, state, scale, softcap, window, k, v
        )
        shape = (*call.q.shape[:3], pool.layout.head_dim_v)
        found = self.engine.out(out, shape if call.rank == 4 else shape[1:], "attention")
        sums = Attention(self.engine, pool, call, state, scratch)
        sums.add(pool, call.table, range(sums.rows), 0, sums.listed)
        lse = sums.merge(found)
        if call.rank == 3:
            lse = lse.reshape(lse.shape[1:])
        given = self._give(found) if out is None else out
        return (given, self._give(lse)) if return_lse else given

    def attention_in_turns(
        self,
        q: Any,
        source: PartlyResident,
        length: int,
        ids: Any = None,
        state: State | None = None,
        return_lse: bool = False,
        **options: Any,
    ) -> Any:
        """See :meth:`kvcore.backend.Backend.attention_in_turns`."""
        lengths = np.array([length], np.int32)
        call = operands.attention(
            self.arrays, q, source.pool, source.table[None], lengths, ids, state, **options
        )
        sums = Attention(self.engine, source.pool, call, state, None)
        for turn in source.turns(sums.shape.tile, sums.rows):
            pool, table = source.bring(turn.blocks)
            sums.add(pool, table[None], turn.rows, turn.first, turn.stop)
        found = self.arrays.empty((*call.q.shape[1:3], source.pool.layout.head_dim_v), np.float32)
        lse = sums.merge(found)
        given = self._give(found)
        return (given, self._give(lse.reshape(lse.shape[1:]))) if return_lse else given

    @implements("restore", version=1)
    def restore(self, overlay: State, pool: Pool, table: Any, n_cells: Any) -> None:
        """See :mod:`kvcore.ops.restore`."""
        engine, sl, layout = self.engine, overlay.layout, pool.layout
        t, n = check_restore(pool, overlay, table, n_cells, self.to_host(overlay.marks))
        if not sl.overlay:
            return
        chunks = chunks_of(layout.n_kv_heads * max(layout.head_dim_k, layout.head_dim_v))
        pages, lengths = engine.ints(t), engine.ints(n)
        marks, k_slots, v_slots, centre = engine.state(overlay)
        program = engine.program(programs.restore_recipe, layout, sl.centred)
        engine.launch(
            program, "restore", (chunks * (sl.sinks + sl.window), 1, 2 * overlay.batch),
            [*engine.planes(pool), pages.buffer, marks, lengths.buffer, centre, k_slots, v_slots,
             engine.errors.buffer, layout.n_kv_heads, layout.page_size, t.shape[1], pool.n_pages,
             *rings_of(overlay), sl.window, chunks],
        )  # fmt: skip
        engine.launch(
            program, "reach", (chunks_of(overlay.batch), 1, 1),
            [marks, lengths.buffer, overlay.batch, sl.window, sl.ring("k"), sl.ring("v")],
        )  # fmt: skip

    @implements("ring_table", version=1)
    def ring_table(self, n_blocks: int, n_slots: int, unit: int = 1) -> Any:
        """See :mod:`kvcore.ops.ring_table`."""
        blocks, slots, unit = check_ring(n_blocks, n_slots, unit)
        out = self.arrays.empty((blocks,), np.int32)
        program = self.engine.program(programs.plain_recipe, "ring_table")
        groups = (chunks_of(blocks), 1, 1)
        self.engine.launch(program, "ring_table", groups, [out.buffer, blocks, slots, unit])
        return self._give(out)

    @implements("move", version=1)
    def move(self, src: Pool, src_pages: Any, dst: Pool, dst_pages: Any) -> None:
        """See :mod:`kvcore.ops.move`. Pools may lie on the host: their planes are NumPy then."""
        a, b = check_move(src, src_pages, dst, dst_pages)
        u = src.layout.unit_pages
        units = a[::u] // u, b[::u] // u
        if not units[0].size:
            return
        for plane in src.layout.planes(u):
            planes = src.planes[plane.name], dst.planes[plane.name]
            move_plane(self.engine, *planes, plane.nbytes, *units)

    @implements("resolve", version=1)
    def resolve(self, residency: Residency, ids: Any) -> Any:
        """See :mod:`kvcore.ops.resolve`."""
        engine = self.engine
        cells = check_resolve(residency, ids)
        n_units, n_slots = residency.table.shape[0], residency.slot_unit.shape[0]
        most = max(1, min(n_units, cells.size))
        missing = self.arrays.empty((most,), np.int32)
        moves = self.arrays.empty((min(most, n_slots), 2), np.int32)
        maps = ("table", "slot_unit", "slot_stamp", "slot_ref", "ctl")
        program = engine.program(programs.plain_recipe, "resolve")
        engine.launch(
            program, "resolve", (1, 1, 1),
            [*(engine.buffer(getattr(residency, name)) for name in maps),
             engine.ints(cells).buffer, missing.buffer, moves.buffer, engine.errors.buffer,
             cells.shape[0], cells.shape[1], n_units, n_slots, residency.unit_cells],
        )  # fmt: skip
        placed = int(self.to_host(residency.ctl)[PLACED])
        return moves.to_numpy()[:placed]

    @implements("select", version=1)
    def select(
        self, keys: Any, dead: Any, q: Any, lengths: Any, width: int, block: int = 4
    ) -> tuple[Any, Any]:
        """See :mod:`kvcore.ops.select`."""
        engine = self.engine
        k, d, x, n = check_select(self.arrays, keys, dead, q, lengths, width, block)
        n_keys = int(k.shape[0])
        known = operands.is_host(n)
        longest = int(n.max(initial=0)) if known else n_keys * block + block - 1
        n_blocks = -(-longest // block)
        steps, heads, dim = x.shape
        scores = self.arrays.empty((steps, n_blocks), np.float32)
        chosen = self.arrays.empty((steps, width), np.int32)
        sizes = engine.ints(n)
        chunks = chunks_of(n_blocks)
        program = engine.program(programs.plain_recipe, "select")
        engine.launch(
            program, "scores", (chunks * steps, 1, 1),
            [k.buffer, d.buffer, x.buffer, sizes.buffer, scores.buffer, engine.errors.buffer,
             n_blocks, n_keys, heads, dim, block, max(chunks, 1)],
        )  # fmt: skip
        engine.launch(
            program, "choose", (steps, 1, 1),
            [scores.buffer, sizes.buffer, chosen.buffer, n_blocks, n_keys, width, block],
        )  # fmt: skip
        return self._give(chosen), self._give(scores)
