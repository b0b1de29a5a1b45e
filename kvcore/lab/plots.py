"""The plots of a report, each a function from results to SVG text, drawn by matplotlib.

Figures are made without a display, their ids are seeded and no date is written, so that the same
numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvcore.errors import UnsupportedError, message

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = (
    "#2563a8", "#d97706", "#2f855a", "#c0392b", "#7c4d9e", "#7a7f87",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P")
_STYLE: Any = {
    "svg.hashsalt": "kvcore",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e5e8",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.edgecolor": "#8a8f96",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def drawn(draw: Callable[[Any], None], *, width: float = 8.0, height: float = 4.4) -> str:
    """Return the SVG of what `draw` puts on a figure.

    Raises
    ------
    UnsupportedError
        matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            message(
                "report", "plots need a package", got=error, expected="matplotlib",
                fix="pip install 'kvcore[lab]'",
            )
        ) from error  # fmt: skip
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        out = io.StringIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None, "Creator": "kvcore"})
    text = out.getvalue()
    return text[text.index("<svg") :]


def lines(
    series: Mapping[str, Mapping[float, float]],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = True,
    ticks: Sequence[float] = (),
) -> str:
    """Return one line per series over numbers.

    Parameters
    ----------
    series : mapping of label to (x to y)
    x, y : str
        Names of the axes.
    log_x : bool
        Logarithmic, with 0 drawn at its left end.
    log_y : bool
    ticks : sequence of float
        Of the x axis.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for i, (label, points) in enumerate(series.items()):
            xs = sorted(points)
            axes.plot(
                xs, [points[v] for v in xs], marker=MARKERS[i % len(MARKERS)], markersize=5,
                color=COLOURS[i % len(COLOURS)], label=label,
            )  # fmt: skip
        if log_x:
            axes.set_xscale("symlog", base=2, linthresh=min(t for t in ticks if t > 0))
        if log_y:
            axes.set_yscale("log")
            _plain_log(axes)
        if ticks:
            axes.set_xticks(list(ticks), [f"{t:g}" for t in ticks])
            axes.xaxis.minorticks_off()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        _legend_beside(axes)

    return drawn(draw)


def errors_by_layer(errors: Mapping[str, Sequence[float]], layers: Sequence[str]) -> str:
    """Return the relative RMS error of arms over layers, in per cent, logarithmic."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        formats = list(dict.fromkeys(arm.partition(":")[0] for arm in errors))
        for arm, values in errors.items():
            i = formats.index(arm.partition(":")[0])
            axes.plot(
                range(len(layers)), [100 * v for v in values], label=arm, markersize=5,
                marker=MARKERS[i % len(MARKERS)], color=COLOURS[i % len(COLOURS)],
                linestyle="--" if ":" in arm else "-",
            )  # fmt: skip
        axes.set_yscale("log")
        _plain_log(axes)
        axes.set_xticks(range(len(layers)), layers)
        axes.set_ylabel("relative RMS error, %")
        axes.set_xlabel("layer")
        _legend_beside(axes)

    return drawn(draw)


def frontier(points: Mapping[str, tuple[float, float]], exact: tuple[str, float]) -> str:
    """Return KL against bytes per cell, one labelled point per arm.

    Parameters
    ----------
    points : mapping of arm to (bytes per cell, mean KL)
        Arms with a colon are hollow: a format without its recipe, or another paper's.
    exact : (name, bytes)
        The exact run, whose KL is 0: drawn at the foot of the plot.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        low = min(kl for _, kl in points.values())
        floor, top = low / 4, max(kl for _, kl in points.values()) * 2
        axes.set_ylim(floor / 1.6, top)
        for name, (size, kl) in points.items():
            marked = name in ("q4_0", "q2k")
            colour = {"q4_0": ORANGE, "q2k": RED}.get(name, GREY if ":" in name else BLUE)
            axes.plot(
                size, kl, "o", markersize=9 if marked else 6, color=colour,
                markerfacecolor="white" if ":" in name else colour,
            )  # fmt: skip
        axes.plot(exact[1], floor, "v", markersize=9, color=GREEN, clip_on=False)
        labels = {**points, f"{exact[0]}: exactly 0": (exact[1], floor)}
        _label(axes, labels, span=math.log(top / floor))
        sizes = sorted({size for size, _ in points.values()} | {exact[1]})
        axes.set_xlim(sizes[0] / 1.12, sizes[-1] * 1.75)
        ticks = [s for i, s in enumerate(sizes) if i == 0 or s > 1.09 * sizes[i - 1]]
        axes.set_xticks(ticks, [f"{s:g}" for s in ticks])
        axes.minorticks_off()
        axes.set_xlabel("bytes per cell and layer, K and V with scales")
        axes.set_ylabel("mean decode KL against float16, nats")

    return drawn(draw, width=9.5, height=6.2)


def _legend_beside(axes: Any) -> None:
    """Put the legend right of the axes, where no line can run under it."""
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _plain_log(axes: Any) -> None:
    """Label a logarithmic y axis with plain numbers, the more the fewer decades there are."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.get_ylim()
    few, some = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0)
    subs = few if high / low < 12 else some if high / low < 300 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _label(axes: Any, points: Mapping[str, tuple[float, float]], span: float) -> None:
    """Write names right of their points, moved up where two of one column would overlap."""
    step = span / 34
    placed: list[tuple[float, float, int]] = []
    for name, (size, kl) in sorted(points.items(), key=lambda p: (p[1][0], p[1][1])):
        height = math.log(kl)
        # Names start right of their points; one of n letters is about 0.03 n octaves long.
        near = [h for s, h, n in placed if 0 <= math.log2(size / s) < 0.05 + 0.03 * n]
        reach = 0.05 + 0.03 * len(name)
        near += [math.log(k) for s, k in points.values() if 0 < math.log2(s / size) < reach]
        while any(abs(h - height) < step * 0.98 for h in near):
            height += step / 4
        placed.append((size, height, len(name)))
        axes.annotate(
            name, (size, kl), xytext=(size * 1.035, math.exp(height)), fontsize=8,
            va="center", color="#30343a", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#b5bac0", "lw": 0.6, "shrinkB": 3},
        )  # fmt: skip


def grouped_bars(values: Mapping[str, Sequence[float]], groups: Sequence[str], *, y: str) -> str:
    """Return bars side by side: one colour per key, one cluster per group."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        width = 0.8 / len(values)
        for i, (name, heights) in enumerate(values.items()):
            at = [j - 0.4 + width * (i + 0.5) for j in range(len(groups))]
            axes.bar(at, heights, width * 0.92, color=COLOURS[i % len(COLOURS)], label=name)
        axes.set_xticks(range(len(groups)), groups)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel(y)
        axes.legend(ncols=len(values), loc="upper center", bbox_to_anchor=(0.5, 1.14))

    return drawn(draw)


def heat_map(channels: Mapping[str, Sequence[Sequence[float]]], layers: Sequence[str]) -> str:
    """Return each channel's RMS over its layer's median: a panel per store, a row per layer."""

    def draw(figure: Any) -> None:
        from matplotlib.colors import LogNorm

        panels = figure.subplots(len(channels), 1, squeeze=False)[:, 0]
        image = None
        for axes, (name, rows) in zip(panels, channels.items(), strict=True):
            image = axes.imshow(
                rows, aspect="auto", interpolation="nearest", cmap="RdBu_r",
                norm=LogNorm(1 / 16, 16),
            )  # fmt: skip
            axes.grid(visible=False)
            axes.set_yticks(range(len(layers)), layers, fontsize=8)
            axes.set_title(name, loc="left", fontsize=10)
        panels[-1].set_xlabel("channel, head after head")
        bar = figure.colorbar(image, ax=list(panels), shrink=0.7, extend="both")
        bar.set_label("channel RMS / median of the layer")
        bar.set_ticks([1 / 16, 1 / 4, 1, 4, 16], labels=["1/16", "1/4", "1", "4", "16"])

    return drawn(draw, width=9.0, height=1.0 + 1.6 * len(channels))


def memory(totals: Mapping[str, Mapping[float, float]]) -> str:
    """Return bytes over all layers against the context, by format."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for i, (name, points) in enumerate(totals.items()):
            xs = sorted(points)
            axes.plot(
                xs, [points[v] / 2**20 for v in xs], marker=MARKERS[i % len(MARKERS)],
                markersize=4, color=COLOURS[i % len(COLOURS)], label=name,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        ticks = sorted(next(iter(totals.values())))
        axes.set_xticks(ticks, [_cells(t) for t in ticks])
        axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
        axes.minorticks_off()
        axes.set_xlabel("context in cells")
        axes.set_ylabel("MiB, all layers")
        _legend_beside(axes)

    return drawn(draw)


def _cells(n: float) -> str:
    return f"{n / 1024:g}K" if n >= 1024 else f"{n:g}"
