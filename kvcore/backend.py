"""What a backend is: a class with one marked method per op, and a few ways to handle arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvcore import marks
from kvcore.cache_spec import CacheSpec
from kvcore.errors import FormatError, ShapeError, UnsupportedError, message
from kvcore.layout import Layout, StateLayout
from kvcore.numerics import Array
from kvcore.operands import HOST, Arrays
from kvcore.pool import Pool, State
from kvcore.registry import gaps_of
from kvcore.residency import Residency
from kvcore.scratch import Scratch
from kvcore.turns import PartlyResident


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """Whether a backend can run here.

    Attributes
    ----------
    available : bool
    device : str
        The device's name, or "".
    kind : {"gpu", "cpu", ""}
    version : str
        Of the runtime under it.
    reason : str
        Why it is not available, or what was found.
    """

    available: bool
    device: str = ""
    kind: str = ""
    version: str = ""
    reason: str = ""


class Backend:
    """Base of every backend: memory handling with NumPy, and what is built on the ops.

    A backend with its own memory overrides ``arrays``, ``allocate``, ``to_host`` and ``write``.
    Ops are methods marked with :func:`kvcore.registry.implements`.
    """

    name: ClassVar[str] = ""
    arrays: Arrays = HOST

    if TYPE_CHECKING:  # every backend has the declared ops: the link check sees to it
        rotate: Callable[..., Any]
        append: Callable[..., None]
        gather: Callable[..., tuple[Any, Any]]
        attention: Callable[..., Any]
        restore: Callable[..., None]
        ring_table: Callable[..., Any]
        move: Callable[..., None]
        resolve: Callable[..., Any]
        select: Callable[..., tuple[Any, Any]]

        @classmethod
        def probe(cls) -> Availability:
            """Return whether the backend can run here; never raises."""

    @property
    def device(self) -> str:
        """Name of the device in use."""
        return self.probe().device

    # -- memory ---------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a zeroed array of this backend."""
        return np.zeros(shape, dtype)

    def allocate_host(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return a zeroed NumPy array in host memory that the device copies from fastest."""
        return np.zeros(shape, dtype)

    def to_host(self, array: Any) -> Array:
        """Return a NumPy copy (or view) of one of this backend's arrays."""
        return np.asarray(array)

    def write(self, array: Any, values: Array) -> None:
        """Overwrite all of one of this backend's arrays with host values."""
        array[...] = values

    def part(self, array: Any, start: int, stop: int) -> Any:
        """Return rows [start, stop) of one of this backend's arrays, sharing its memory."""
        return array[start:stop]

    def join(self, parts: Sequence[Any], shape: tuple[int, ...]) -> Any:
        """Return f32 parts one after the other along the first axis, as an array of `shape`."""
        if len(parts) == 1:
            return parts[0].reshape(shape)
        out = self.allocate(shape, "f4")
        if parts:
            self.write(out, np.concatenate([self.to_host(p) for p in parts]).reshape(shape))
        return out

    def synchronize(self) -> None:
        """Wait for everything that was asked for; raise what device-held bad operands raised."""

    # -- streaming ------------------------------------------------------------------------

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
        """Attend over one cache's cells that are not on the device together.

        Bit for bit what ``attention`` gives over a pool that holds them all. Only a backend with
        memory of its own is asked: one that reads host memory reads it in place.

        Parameters
        ----------
        q : f32[T, Q, Dk]
        source : PartlyResident
        length : int
            Cells of the cache.
        ids, state, return_lse, **options
            As of attention: ids i32[1, N] or i32[1, T, N], scale, softcap, window, k, v.

        Returns
        -------
        out : f32[T, Q, Dv]
        lse : f32[T, Q]
            Only if asked for.

        Raises
        ------
        UnsupportedError
            This backend does not say how.
        """
        raise UnsupportedError(
            message(
                "attend",
                "more cells than are resident",
                got=f"{source.listing.shape[1]} cells over {source.most} resident units",
                expected=f"cells that fit: {self.name} has no attention_in_turns",
                fix="give ids= or window=, or stream with more resident cells",
            )
        )

    # -- objects --------------------------------------------------------------------------

    def pool(self, layout: Layout, n_pages: int, planes: Mapping[str, Any] | None = None) -> Pool:
        """Return a pool of zeroed pages, or wrap the caller's own planes.

        Parameters
        ----------
        layout : Layout
        n_pages : int
            A multiple of ``layout.unit_pages``.
        planes : mapping of str to array, optional
            C-contiguous arrays of this backend, of the shapes ``layout.planes(n_pages)`` says.

        Raises
        ------
        ShapeError
            If `n_pages` is not whole units, or a plane is missing, of the wrong shape or dtype,
            or not contiguous.
        """
        if isinstance(n_pages, bool) or not isinstance(n_pages, int | np.integer) or n_pages < 0:
            raise ShapeError(message("pool", "n_pages", got=n_pages, expected="an integer >= 0"))
        n = int(n_pages)
        if planes is None:
            planes = {p.name: self.allocate(p.shape, p.dtype) for p in layout.planes(n)}
        else:
            _check_planes(layout, n, planes)
        return Pool(layout=layout, n_pages=n, planes=dict(planes), backend=self.name)

    def state(self, layout: StateLayout, batch: int = 1, centre: Any = None) -> State:
        """Return the state of `batch` empty sequences.

        Parameters
        ----------
        layout : StateLayout
        batch : int
        centre : f32[H, Dk], optional
            A calibrated centre, in the stored (rotated) basis; rounded to float16.

        Raises
        ------
        FormatError
            If a centre is given where none is kept, or the other way round.
        """
        given = centre is not None
        if given != (layout.centred and not layout.center_cells):
            raise FormatError(
                message(
                    "state",
                    "centre",
                    got="one" if given else "none",
                    expected="one, if and only if the layout has a calibrated centre",
                )
            )
        h, d = layout.layout.n_kv_heads, layout.layout
        arrays = {
            s: self.allocate((batch, layout.slots(s), h, d.head_dim(s)), "f2") for s in ("k", "v")
        }
        c = self.allocate((batch, h, d.head_dim_k), "f2")
        if given:
            from kvcore.numerics import to_f16

            one = to_f16(np.asarray(centre, np.float32))
            self.write(c, np.broadcast_to(one, (batch, *one.shape)))
        rows = self.allocate((batch, len(marks.fresh(layout))), "i4")
        self.write(rows, np.tile(np.asarray(marks.fresh(layout), np.int32), (batch, 1)))
        return State(layout=layout, batch=batch, centre=c, marks=rows, backend=self.name, **arrays)

    def residency(self, layout: Layout, n_units: int, n_slots: int) -> Residency:
        """Return the map of a streamed pool with nothing resident.

        Parameters
        ----------
        layout : Layout
        n_units : int
            Units of the host pool.
        n_slots : int
            Units of the device pool.
        """

        def full(n: int, value: int) -> Any:
            a = self.allocate((n,), "i4")
            self.write(a, np.full(n, value, np.int32))
            return a

        if n_slots < 1:
            raise ShapeError(message("resolve", "n_slots", got=n_slots, expected=">= 1"))
        return Residency(
            table=full(n_units, -1),
            slot_unit=full(n_slots, -1),
            slot_stamp=full(n_slots, -1),
            slot_ref=full(n_slots, 0),
            ctl=full(16, 0),
            unit_cells=layout.unit_cells,
        )

    def scratch(self) -> Scratch:
        """Return memory that ops keep between calls instead of allocating in each.

        A call with a scratch allocates on the device only if an earlier one of that scratch was
        smaller; give each stream or graph its own.
        """
        return Scratch(self.allocate)

    def cache(self, spec: CacheSpec, capacity: int, fallback: str | None = None) -> Any:
        """Return an empty :class:`kvcore.KVCache` for `capacity` cells on this backend.

        Parameters
        ----------
        spec : CacheSpec
        capacity : int
        fallback : str, optional
            Backend for a spec that this one declares a gap for. Counted.

        Raises
        ------
        UnsupportedError
            If this backend has a declared gap for the spec and no fallback was asked for.
        """
        from kvcore.cache import KVCache

        if fallback is not None and self.refusals(spec):
            from kvcore.dispatch import fall_back

            return fall_back(self.name, fallback, spec).cache(spec, capacity)
        self.require(spec)
        return KVCache(self, spec, capacity)

    def sequences(self, spec: CacheSpec, n_pages: int) -> Any:
        """Return :class:`kvcore.sequences.Sequences` over a new pool of `n_pages` pages.

        Raises
        ------
        UnsupportedError
            If this backend has a declared gap for the spec.
        """
        from kvcore.sequences import Sequences

        self.require(spec)
        return Sequences(self, spec, n_pages)

    def stream(
        self,
        spec: CacheSpec,
        capacity: int,
        resident: int,
        path: str | None = None,
        ring: bool = False,
    ) -> Any:
        """Return a :class:`kvcore.streaming.StreamedCache`: the host holds it, the device a part.

        Parameters
        ----------
        spec : CacheSpec
        capacity : int
            Cells on the host.
        resident : int
            Cells on the device, rounded up to whole units.
        path : str, optional
            Keep the host's part in this file, mapped into memory.
        ring : bool
            The device holds the last units only; cells of others cannot be attended over. A
            window that starts inside a unit needs that unit, too: give `resident` one unit more.

        Raises
        ------
        UnsupportedError
            If this backend has a declared gap for the spec.
        """
        from kvcore.streaming import StreamedCache

        self.require(spec)
        return StreamedCache(self, spec, capacity, resident, path=path, ring=ring)

    def load(self, snapshot: bytes, capacity: int | None = None) -> Any:
        """Return a new cache from the bytes of :meth:`kvcore.KVCache.snapshot`.

        Parameters
        ----------
        snapshot : bytes
        capacity : int, optional
            Cells; by default those of the saved cache, whose pages are taken as cells arrive.
        """
        from kvcore.snapshot import load_new

        return load_new(self, snapshot, capacity)

    # -- what it can do -------------------------------------------------------------------

    def refusals(self, spec: CacheSpec) -> list[str]:
        """Return every reason why this backend cannot serve `spec`; empty if it can."""
        used = {spec.format.k.name, spec.format.v.name, "*"}
        return [
            f"{op} on {self.name}"
            + ("" if codec == "*" else f" with codec {codec}")
            + f": {reason}"
            for (op, codec), reason in sorted(gaps_of(type(self)).items())
            if codec in used
        ]

    def require(self, spec: CacheSpec) -> None:
        """Raise UnsupportedError with every reason and the nearest choice that works."""
        reasons = self.refusals(spec)
        if reasons:
            from kvcore.dispatch import nearest

            lines = "\n".join(f"  - {r}" for r in reasons)
            raise UnsupportedError(
                f"[{self.name}] cannot serve format {spec.format.name}:\n{lines}\n{nearest(spec)}"
            )

    def kernel_name(self, op: str, spec: CacheSpec) -> str:
        """Return which kernel would run for an op: a short name for ``explain``."""
        return f"{self.name}.{op}"


def _check_planes(layout: Layout, n_pages: int, planes: Mapping[str, Any]) -> None:
    wanted = {p.name: p for p in layout.planes(n_pages)}
    if set(planes) != set(wanted):
        raise ShapeError(message("pool", "planes", got=sorted(planes), expected=sorted(wanted)))
    for name, plane in wanted.items():
        a = planes[name]
        if tuple(a.shape) != plane.shape or np.dtype(a.dtype) != np.dtype(plane.dtype):
            raise ShapeError(
                message(
                    "pool",
                    f"plane {name}",
                    got=f"{a.dtype}{tuple(a.shape)}",
                    expected=f"{plane.dtype}{plane.shape}",
                )
            )
        flags = getattr(a, "flags", None)
        if flags is not None and not flags.c_contiguous:
            raise ShapeError(
                f"[pool] plane {name} is not contiguous: got strides {a.strides}, expected a "
                "C-contiguous array; copy it or give a contiguous slice"
            )
