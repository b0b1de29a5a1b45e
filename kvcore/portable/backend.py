"""Every op through the portable bodies, on one device."""

from __future__ import annotations

import itertools
import threading
from typing import Any, ClassVar

import numpy as np

from kvcore import operands
from kvcore.backend import Backend
from kvcore.compiler.device import Device, Program
from kvcore.errors import RangeError, ShapeError, message
from kvcore.layout import N_MARKS
from kvcore.numerics import Array
from kvcore.ops.move import check_move
from kvcore.ops.resolve import check_resolve
from kvcore.ops.restore import check_restore
from kvcore.ops.ring_table import check_ring
from kvcore.ops.rotate import check_rotate
from kvcore.ops.select import check_select
from kvcore.pool import Pool, State
from kvcore.portable import programs
from kvcore.portable.arrays import DeviceArray, PortableArrays
from kvcore.portable.programs import LANES, SPLIT
from kvcore.registry import implements
from kvcore.residency import PLACED, Residency
from kvcore.spec import GROUP_CELLS

_RULES = {"old": 0, "n": 1, "shrink": 2}


def _chunks(n: int, lanes: int = LANES) -> int:
    return -(-n // lanes)


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
        self._device = device
        self._programs: dict[Any, Program] = {}
        self._lock = threading.Lock()
        self.arrays = PortableArrays(device, self._cast)
        self._errors = self.allocate((1,), "i4")

    @property
    def device(self) -> str:
        """Name of the device in use."""
        return self._device.name

    def kernel_name(self, op: str, spec: Any) -> str:
        """Return the portable body that runs for an op."""
        return f"kvcore/ops/{op}.c [{self.target}]"

    # -- memory ---------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Return a zeroed array on the device."""
        out = self.arrays.empty(shape, dtype)
        if out.nbytes:
            self._device.fill(out.buffer, 0, out.nbytes)
        return out

    def to_host(self, array: Any) -> Array:
        """Return a NumPy copy of an array of this device."""
        if isinstance(array, np.ndarray):
            return array
        if isinstance(array, DeviceArray):
            return array.to_numpy()
        tensor = self._device.from_external(array)
        whole = DeviceArray(self._device, tensor.buffer, tensor.shape, array.dtype)
        if not tensor.contiguous:
            return np.asarray(array.get() if hasattr(array, "get") else array)
        return whole.to_numpy()

    def write(self, array: Any, values: Array) -> None:
        """Overwrite all of a device array with host values."""
        target = array if isinstance(array, DeviceArray) else self._adopt(array)
        data = np.ascontiguousarray(np.broadcast_to(values, target.shape), target.dtype)
        self._device.upload(target.buffer, data)

    def part(self, array: Any, start: int, stop: int) -> DeviceArray:
        """Return rows [start, stop) of a device array, sharing its memory."""
        whole = array if isinstance(array, DeviceArray) else self._adopt(array)
        first, last, _ = slice(start, stop).indices(whole.shape[0])
        row = whole.nbytes // max(whole.shape[0], 1)
        window = whole.buffer.view(first * row, (last - first) * row)
        return DeviceArray(self._device, window, (last - first, *whole.shape[1:]), whole.dtype)

    def _adopt(self, array: Any) -> DeviceArray:
        tensor = self._device.from_external(array)
        return DeviceArray(self._device, tensor.buffer, tensor.shape, array.dtype)

    def _buffer(self, array: Any) -> Any:
        """Return the buffer of a plane or state array, whoever made it."""
        if isinstance(array, DeviceArray):
            return array.buffer
        return self._device.from_external(array).buffer

    def _give(self, array: DeviceArray) -> Any:
        return self._device.to_external(array.tensor()) if self.gives_external else array

    def synchronize(self) -> None:
        """Wait for the device.

        Raises
        ------
        RangeError
            If a device-held position, id, page or length of an earlier call was out of range;
            that row was skipped.
        """
        self._device.synchronize()
        if int(self._errors.to_numpy()[0]):
            self.write(self._errors, np.zeros(1, np.int32))
            raise RangeError(
                "[synchronize] a device-held operand of an earlier call was unusable (a position, "
                "id, page or length out of range): got a bad row, expected none; it was skipped"
            )

    # -- programs -------------------------------------------------------------------------

    def _program(self, recipe: Any, *key: Any) -> Program:
        name = (recipe, *key)
        program = self._programs.get(name)
        if program is None:
            with self._lock:
                program = self._programs.get(name)
                if program is None:
                    program = self._device.build(recipe(*key).render(self.target))
                    self._programs[name] = program
        return program

    def _cast(self, entry: str, n: int, args: list[Any]) -> None:
        program = self._program(programs.cast_recipe)
        self._device.launch(program, entry, (_chunks(n), 1, 1), args)

    def _planes(self, pool: Pool) -> list[Any]:
        names = ("k_codes", "k_scales", "v_codes", "v_scales")
        return [self._buffer(pool.planes[n]) if n in pool.planes else None for n in names]

    def _ints(self, values: Any) -> DeviceArray:
        if isinstance(values, DeviceArray):
            return values
        return self.arrays.upload(np.ascontiguousarray(values, np.int32))

    # -- ops ------------------------------------------------------------------------------

    @implements("rotate", version=1)
    def rotate(self, x: Any, out: Any = None) -> Any:
        """See :mod:`kvcore.ops.rotate`."""
        a = self.arrays.asarray(x, "float", "rotate", "x")
        block = check_rotate(a.shape)
        y = self._out(out, a.shape, "rotate")
        n = a.size // block
        program = self._program(programs.rotate_recipe, block)
        self._device.launch(program, "rotate", (n, 1, 1), [a.buffer, y.buffer, n, max(n, 1)])
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
        batch, steps = call.k.shape[:2]
        if batch:
            _Append(self, pool, call, state, bool(draft), int(steps), scratch).run()

    @implements("gather", version=1)
    def gather(self, pool: Pool, table: Any, ids: Any) -> tuple[Any, Any]:
        """See :mod:`kvcore.ops.gather`."""
        call = operands.gather(self.arrays, pool, table, ids)
        layout = pool.layout
        batch, n = call.ids.shape
        h, p = layout.n_kv_heads, layout.page_size
        outs = [
            self.arrays.empty((batch, n, h, d), np.float16)
            for d in (layout.head_dim_k, layout.head_dim_v)
        ]
        chunks = _chunks(h * max(layout.head_dim_k, layout.head_dim_v))
        cells, pages = self._ints(call.ids), self._ints(call.table)
        program = self._program(programs.gather_recipe, layout)
        self._device.launch(
            program, "gather", (chunks * n, 1, 2 * batch),
            [*self._planes(pool), pages.buffer, cells.buffer, outs[0].buffer, outs[1].buffer,
             self._errors.buffer, h, p, call.table.shape[1], n, chunks],
        )  # fmt: skip
        given = [o if call.batched else o.reshape(o.shape[1:]) for o in outs]
        return self._give(given[0]), self._give(given[1])

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
        found = self._out(out, shape if call.rank == 4 else shape[1:], "attention")
        lse = self._attend(pool, call, state, found, scratch)
        if call.rank == 3:
            lse = lse.reshape(lse.shape[1:])
        given = self._give(found) if out is None else out
        return (given, self._give(lse)) if return_lse else given

    def _out(self, out: Any, shape: tuple[int, ...], op: str) -> DeviceArray:
        """Return the array to write: a fresh one, or the caller's if it fits."""
        if out is None:
            return self.arrays.empty(shape, np.float32)
        if isinstance(out, np.ndarray) or np.dtype(out.dtype) != np.float32:
            got = f"{type(out).__name__} {out.dtype}"
            raise ShapeError(message(op, "out is not usable", got=got, expected="f32 on device"))
        target = out if isinstance(out, DeviceArray) else self._adopt(out)
        if target.shape != tuple(shape):
            raise ShapeError(message(op, "out is not usable", got=target.shape, expected=shape))
        return target

    def _work(self, scratch: Any, name: str, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Return memory for one call: the scratch's if there is one."""
        if scratch is None:
            return self.arrays.empty(shape, dtype)
        kept = scratch.take(name, int(np.prod(shape, dtype=np.int64)), dtype)
        return DeviceArray(self._device, kept.buffer, shape, dtype)

    def _attend(
        self,
        pool: Pool,
        call: operands.AttentionCall,
        state: State | None,
        out: DeviceArray,
        scratch: Any,
    ) -> DeviceArray:
        """Write the output; return the LSE, [B, T, Q]."""
        layout = pool.layout
        batch, steps, heads = call.q.shape[:3]
        group_heads = heads // layout.n_kv_heads
        centred = state is not None and state.layout.centred
        shape = programs.attention_shape(layout, group_heads)
        program = self._program(programs.attention_recipe, layout, centred, group_heads)
        splits = max(1, -(-self._listed(pool, call) // SPLIT))
        rows = batch * steps
        lse = self._work(scratch, "lse", (batch, steps, heads), "f4")
        wide = (rows, splits, heads, layout.head_dim_v)
        partial = self._work(scratch, "partial", wide, "f4")
        sums = self._work(scratch, "sums", (rows, splits, heads, 2), "f4")
        ids = None if call.ids is None else self._ints(call.ids)
        pages, sizes = self._ints(call.table), self._ints(call.lengths)
        own = [None if a is None else a.buffer for a in (call.k, call.v)]
        args = [
            call.q.buffer, *self._planes(pool), pages.buffer, sizes.buffer,
            None if ids is None else ids.buffer, *self._state_buffers(state), *own,
            partial.buffer, sums.buffer, self._errors.buffer,
            layout.n_kv_heads, layout.page_size, call.table.shape[1], *_rings(state),
            steps, splits, 0 if ids is None else ids.shape[-1], int(len(sizes.shape) == 2),
            int(ids is not None), int(ids is not None and len(ids.shape) == 3),
            int(state is not None), int(call.k is not None),
            0 if state is None else state.layout.window, call.window, call.scale, call.softcap,
        ]  # fmt: skip
        groups = (rows * layout.n_kv_heads * shape.chunks, splits, 1)
        self._device.launch(program, "split", groups, args)
        self._device.launch(
            program, "merge", (rows * heads, 1, 1),
            [partial.buffer, sums.buffer, out.buffer, lse.buffer, splits, heads],
        )  # fmt: skip
        return lse

    def _listed(self, pool: Pool, call: operands.AttentionCall) -> int:
        """Return the most cells that a query goes through, as far as the host knows."""
        if call.ids is not None:
            return int(call.ids.shape[-1])
        if operands.is_host(call.lengths):
            return int(call.lengths.max(initial=0))
        return int(call.table.shape[1]) * pool.layout.page_size

    def _state_buffers(self, state: State | None) -> list[Any]:
        if state is None:
            return [None] * 4
        return [self._buffer(a) for a in (state.marks, state.k, state.v, state.centre)]

    @implements("restore", version=1)
    def restore(self, overlay: State, pool: Pool, table: Any, n_cells: Any) -> None:
        """See :mod:`kvcore.ops.restore`."""
        marks = self.to_host(overlay.marks)
        t, n = check_restore(pool, overlay, table, n_cells, marks)
        sl, layout = overlay.layout, pool.layout
        if not sl.overlay:
            return
        chunks = _chunks(layout.n_kv_heads * max(layout.head_dim_k, layout.head_dim_v))
        pages, lengths = self._ints(t), self._ints(n)
        own, k_slots, v_slots, centre = self._state_buffers(overlay)
        program = self._program(programs.restore_recipe, layout, sl.centred)
        self._device.launch(
            program, "restore", (chunks * (sl.sinks + sl.window), 1, 2 * overlay.batch),
            [*self._planes(pool), pages.buffer, own, lengths.buffer, centre, k_slots, v_slots,
             self._errors.buffer, layout.n_kv_heads, layout.page_size, t.shape[1],
             *_rings(overlay), sl.window, chunks],
        )  # fmt: skip
        self._device.launch(
            program, "reach", (_chunks(overlay.batch), 1, 1),
            [own, lengths.buffer, overlay.batch, sl.window, sl.ring("k"), sl.ring("v")],
        )  # fmt: skip

    @implements("ring_table", version=1)
    def ring_table(self, n_blocks: int, n_slots: int, unit: int = 1) -> Any:
        """See :mod:`kvcore.ops.ring_table`."""
        blocks, slots, unit = check_ring(n_blocks, n_slots, unit)
        out = self.arrays.empty((blocks,), np.int32)
        program = self._program(programs.plain_recipe, "ring_table")
        self._device.launch(
            program, "ring_table", (_chunks(blocks), 1, 1), [out.buffer, blocks, slots, unit]
        )
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
            self._move_plane(src.planes[plane.name], dst.planes[plane.name], plane.nbytes, *units)

    def _move_plane(self, origin: Any, target: Any, nbytes: int, a: Array, b: Array) -> None:
        """Copy units a -> b of one plane; either side may be a NumPy array."""
        on_host = [isinstance(x, np.ndarray) for x in (origin, target)]
        if not any(on_host):
            chunks = _chunks(-(-nbytes // 4))
            lists = [self._ints(x) for x in (a, b)]
            program = self._program(programs.plain_recipe, "move")
            self._device.launch(
                program, "move", (chunks * len(a), 1, 1),
                [self._buffer(origin), self._buffer(target), lists[0].buffer, lists[1].buffer,
                 nbytes, chunks],
            )  # fmt: skip
            return
        for first, last in _runs(a, b):
            here, there, n = int(a[first]), int(b[first]), last - first
            if on_host[0]:
                data = _rows(origin, nbytes)[here : here + n]
                if on_host[1]:
                    _rows(target, nbytes)[there : there + n] = data
                else:
                    self._device.upload(self._buffer(target), data, there * nbytes)
            else:
                raw = self._device.download(self._buffer(origin), n * nbytes, here * nbytes)
                _rows(target, nbytes)[there : there + n] = raw.reshape(n, nbytes)

    @implements("resolve", version=1)
    def resolve(self, residency: Residency, ids: Any) -> Any:
        """See :mod:`kvcore.ops.resolve`."""
        cells = check_resolve(residency, ids)
        n_units, n_slots = residency.table.shape[0], residency.slot_unit.shape[0]
        most = max(1, min(n_units, cells.size))
        missing = self.arrays.empty((most,), np.int32)
        moves = self.arrays.empty((min(most, n_slots), 2), np.int32)
        given = self._ints(cells)
        maps = [
            self._buffer(getattr(residency, name))
            for name in ("table", "slot_unit", "slot_stamp", "slot_ref", "ctl")
        ]
        program = self._program(programs.plain_recipe, "resolve")
        self._device.launch(
            program, "resolve", (1, 1, 1),
            [*maps, given.buffer, missing.buffer, moves.buffer, self._errors.buffer,
             cells.shape[0], cells.shape[1], n_units, n_slots, residency.unit_cells],
        )  # fmt: skip
        placed = int(self.to_host(residency.ctl)[PLACED])
        return moves.to_numpy()[:placed]

    @implements("select", version=1)
    def select(
        self, keys: Any, dead: Any, q: Any, lengths: Any, width: int, block: int = 4
    ) -> tuple[Any, Any]:
        """See :mod:`kvcore.ops.select`."""
        k, d, x, n = check_select(self.arrays, keys, dead, q, lengths, width, block)
        known = operands.is_host(n)
        longest = int(n.max(initial=0)) if known else int(k.shape[0]) * block + block - 1
        n_blocks = -(-longest // block)
        steps, heads, dim = x.shape
        scores = self.arrays.empty((steps, n_blocks), np.float32)
        chosen = self.arrays.empty((steps, width), np.int32)
        sizes = self._ints(n)
        chunks = _chunks(n_blocks)
        program = self._program(programs.plain_recipe, "select")
        self._device.launch(
            program, "scores", (chunks * steps, 1, 1),
            [k.buffer, d.buffer, x.buffer, sizes.buffer, scores.buffer, n_blocks, heads, dim,
             block, max(chunks, 1)],
        )  # fmt: skip
        self._device.launch(
            program, "choose", (steps, 1, 1),
            [scores.buffer, sizes.buffer, chosen.buffer, n_blocks, width, block],
        )  # fmt: skip
        return self._give(chosen), self._give(scores)


def _rings(state: State | None) -> list[int]:
    """Return sinks, k_ring, v_ring, n_k_slots, n_v_slots."""
    if state is None:
        return [0] * 5
    sl = state.layout
    return [sl.sinks, sl.ring("k"), sl.ring("v"), sl.slots("k"), sl.slots("v")]


def _rows(array: Array, nbytes: int) -> Array:
    return array.reshape(-1).view(np.uint8).reshape(-1, nbytes)


def _runs(a: Array, b: Array) -> list[tuple[int, int]]:
    """Return [first, last) of every stretch in which both lists count up by one."""
    breaks = np.flatnonzero((np.diff(a) != 1) | (np.diff(b) != 1)) + 1
    edges = [0, *breaks.tolist(), len(a)]
    return list(itertools.pairwise(edges))


class _Append:
    """The launches of one append."""

    def __init__(
        self,
        be: PortableBackend,
        pool: Pool,
        call: operands.AppendCall,
        state: State | None,
        draft: bool,
        steps: int,
        scratch: Any,
    ) -> None:
        self.be, self.pool, self.call, self.state = be, pool, call, state
        self.draft, self.steps = draft, steps
        self.batch = int(call.k.shape[0])
        self.layout = pool.layout
        self.sl = None if state is None else state.layout
        self.program = be._program(programs.append_recipe, pool.layout, self.sl)
        self.table, self.positions = be._ints(call.table), be._ints(call.positions)
        self.next = be._work(scratch, "next", (self.batch, N_MARKS), "i4")
        self.starts = be._work(scratch, "starts", (self.batch,), "i4")
        self.counts = be._work(scratch, "counts", (self.batch,), "i4")
        self.source = be._work(scratch, "source", (2, self.batch, max(steps, 1)), "i4")

    def run(self) -> None:
        self._plan()
        layout, sl = self.layout, self.sl
        if sl is not None and sl.center_cells:
            self._fix_centre()
        stores = (layout.k, layout.v)
        if any(c.per_row for c in stores):
            waiting = sl.center_cells + 17 if sl is not None and sl.center_cells else 0
            cells = self._row_cells(waiting)
            self._store("rows", cells, self._row_items(), positions=True)
        if layout.per_channel:
            bytes_ = [c.row_bytes(d) for c, d in self._codecs() if c.per_channel]
            items = layout.n_kv_heads * max(bytes_)
            if sl is not None and sl.deferred:
                # 17 open drafts and 31 open cells may complete with this call
                open_cells = max(GROUP_CELLS, sl.center_cells) + 17
                self._store("groups", 1 + -(-(self.steps + open_cells) // GROUP_CELLS), items)
            else:
                self._store("eager", self.steps // GROUP_CELLS + 2, items)
        if sl is not None:
            self._exact()

    def _codecs(self) -> list[tuple[Any, int]]:
        layout = self.layout
        return [(layout.k, layout.head_dim_k), (layout.v, layout.head_dim_v)]

    def _row_cells(self, waiting: int) -> int:
        return self.steps + waiting

    def _row_items(self) -> int:
        groups = [
            -(-d // (c.scale.group if c.scale else 32)) for c, d in self._codecs() if c.per_row
        ]
        return self.layout.n_kv_heads * max(groups)

    def _plan(self) -> None:
        be, call, layout = self.be, self.call, self.layout
        commit = None if call.commit is None else be._ints(call.commit)
        self._commit = commit
        rings = _rings(self.state)
        be._device.launch(
            self.program, "plan", (_chunks(self.batch), 1, 1),
            [None if self.state is None else be._buffer(self.state.marks), self.positions.buffer,
             self.table.buffer, None if commit is None else commit.buffer, self.next.buffer,
             self.starts.buffer, self.counts.buffer, self.source.buffer, be._errors.buffer,
             self.batch, self.steps, layout.page_size, call.table.shape[1],
             int(self.state is not None), int(self.draft), int(commit is not None),
             int(self.state is not None or layout.per_channel), rings[1], rings[2]],
        )  # fmt: skip

    def _fix_centre(self) -> None:
        be, layout = self.be, self.layout
        marks, k_slots, _, centre = be._state_buffers(self.state)
        rings = _rings(self.state)
        be._device.launch(
            self.program, "fix_centre",
            (_chunks(layout.n_kv_heads * layout.head_dim_k), self.batch, 1),
            [self.call.k.buffer, k_slots, centre, marks, self.next.buffer, self.starts.buffer,
             self.source.buffer, layout.n_kv_heads, self.steps, rings[0], rings[1], rings[3]],
        )  # fmt: skip

    def _store(self, entry: str, count: int, items: int, positions: bool = False) -> None:
        be, layout, call = self.be, self.layout, self.call
        marks, k_slots, v_slots, centre = be._state_buffers(self.state)
        chunks = _chunks(items)
        gain = layout.k_gain
        args = [
            call.k.buffer, call.v.buffer, k_slots, v_slots, centre, marks, self.next.buffer,
            self.starts.buffer, self.counts.buffer, self.source.buffer, self.table.buffer,
            *([self.positions.buffer] if positions else []), *be._planes(self.pool),
            layout.n_kv_heads, layout.page_size, call.table.shape[1], *_rings(self.state),
            self.steps, self.batch, chunks, int(gain == "unbiased"), _RULES[layout.rule],
            1.0 if gain == "unbiased" else float(gain),
            *([int(self.state is not None)] if positions else []),
        ]  # fmt: skip
        be._device.launch(self.program, entry, (chunks * count, 1, 2 * self.batch), args)

    def _exact(self) -> None:
        be, layout = self.be, self.layout
        marks, k_slots, v_slots, _ = be._state_buffers(self.state)
        chunks = _chunks(max(layout.n_kv_heads * max(layout.head_dim_k, layout.head_dim_v), 1))
        be._device.launch(
            self.program, "exact", (chunks * max(self.steps, 1), 1, 2 * self.batch),
            [self.call.k.buffer, self.call.v.buffer, k_slots, v_slots, marks, self.next.buffer,
             self.starts.buffer, self.counts.buffer, self.source.buffer, layout.n_kv_heads,
             self.steps, chunks, *_rings(self.state)],
        )  # fmt: skip
