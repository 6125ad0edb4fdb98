"""The pictures of `run.py`; without matplotlib there are none."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
_STYLES = {
    "eager": ("x", "#b0b0b0"),
    "python": ("s", "#b0b0b0"),
    "peer": ("v", "#c8781e"),
    "sweep": ("|", "black"),
    "hand": ("D", "#1f4e9c"),
    "tuned": ("*", "#2a7f3f"),
}


def pyplot() -> Any:
    """Matplotlib without a screen, or None."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    importlib.import_module("matplotlib").use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def save(figure: Any, path: Path) -> None:
    """Writes it, and lets it go."""
    figure.savefig(path, dpi=110)
    pyplot().close(figure)


def plain_ticks(axis: Any) -> None:
    """Numbers as people write them on a logarithmic axis of a decade or two."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def zoo(rows: Sequence[Row], names: Mapping[str, str], head: str, path: Path) -> None:
    """A line a program: how many times as fast as plain `jax.jit` each way is, on a logarithmic axis."""
    plt, rows = pyplot(), [row for row in rows if "failed" not in row]
    if plt is None or not rows:
        return
    figure, axes = plt.subplots(figsize=(11, 2.2 + 0.3 * len(rows)), layout="constrained")
    for name, (marker, colour) in _STYLES.items():
        points = [(r["ways"][name]["speedup"], y) for y, r in enumerate(rows) if "speedup" in r["ways"].get(name, {})]
        if not points:
            continue
        size = {"tuned": 150, "sweep": 190}.get(name, 42)
        axes.scatter(
            [p[0] for p, _ in points], [y for _, y in points], size, colour, marker, label=names[name], zorder=3
        )
        if name == "tuned":
            for (_, low, high), y in points:
                axes.plot([low, high], [y, y], color=colour, linewidth=4, alpha=0.35, zorder=2)
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xscale="log", xlabel="times as fast as plain jax.jit, as written; the bar is the 95 % interval of tuned")
    axes.set_xlim(left=max(0.02, axes.get_xlim()[0]))
    plain_ticks(axes.xaxis)
    axes.set_yticks(range(len(rows)), [f"{r['program']}  {r['ways']['jit']['ms']:.2f} ms" for r in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=True, axis="both", alpha=0.25)
    figure.suptitle(f"The loop zoo\n{head}", fontsize=10)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, frameon=False, fontsize=8)
    save(figure, path)


def growth(curves: Mapping[str, Mapping[str, Row]], head: str, path: Path) -> None:
    """A panel for each axis and figure of `growth.curves`, with its fitted exponent."""
    plt = pyplot()
    if plt is None or not curves:
        return
    figures = list(dict.fromkeys(name for of_axis in curves.values() for name in of_axis))
    shape = (len(curves), len(figures))
    figure, panels = plt.subplots(*shape, figsize=(3.6 * shape[1], 2.5 * shape[0]), layout="constrained", squeeze=False)
    for line, (axis, of_axis) in zip(panels, curves.items(), strict=True):
        for panel, name in zip(line, figures, strict=True):
            if (curve := of_axis.get(name)) is None:
                panel.axis("off")
                continue
            panel.plot(curve["sizes"], curve["seconds"], "o-", color="#2a7f3f")
            panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="s")
            if curve["sizes"][-1] < 10 * curve["sizes"][0]:
                plain_ticks(panel.xaxis)
            low, high = min(curve["seconds"]), max(curve["seconds"])
            if high < 10 * low:  # less than a decade would be shown without a number on the axis
                middle = (low * high) ** 0.5
                panel.set_ylim(middle / 4, middle * 4)
                plain_ticks(panel.yaxis)
            panel.set_title(f"{name}: exponent {curve['exponent']:.2f}", fontsize=9)
            panel.grid(visible=True, which="major", alpha=0.25)
    figure.suptitle(f"What grows with what\n{head}", fontsize=10)
    save(figure, path)


def limit(rows: Sequence[Row], head: str, path: Path) -> None:
    """Bars: time of the tuned function and of plain jit over the reference's."""
    plt = pyplot()
    rows = [row for row in rows if "tuned_over_reference" in row]
    if plt is None or not rows:
        return
    figure, axes = plt.subplots(figsize=(9, 1.8 + 0.55 * len(rows)), layout="constrained")
    for offset, (key, label, colour) in enumerate(
        (("jit_over_reference", "plain jax.jit", "#b0b0b0"), ("tuned_over_reference", "tuned", "#2a7f3f"))
    ):
        places = [y + 0.36 * offset - 0.18 for y in range(len(rows))]
        bars = axes.barh(places, [row[key][0] for row in rows], 0.34, color=colour, label=label)
        axes.bar_label(bars, [f" {row[key][0]:.2f}" for row in rows], fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{row['loop']}\n({row['reference']})" for row in rows], fontsize=8)
    axes.set(xscale="log", ylim=(len(rows) - 0.4, -0.6), xlabel="times as long as the reference")
    plain_ticks(axes.xaxis)
    axes.margins(x=0.12)
    axes.legend(loc="best")
    figure.suptitle(f"How far from the limit\n{head}", fontsize=10)
    save(figure, path)
