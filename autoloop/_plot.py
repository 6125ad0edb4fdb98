"""A record as a picture: what building costs against what a call takes, and the times with intervals."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

from autoloop import _report
from autoloop._records import AS_WRITTEN, Record, Trial

#: Plans beyond these are left out: nobody reads more bars.
_MOST = 30
_WINNER, _WRITTEN, _OTHER = "#2a7f3f", "#1f4e9c", "#9a9a9a"
#: A bar longer than this many times the time as written is cut; its figure stands beside it.
_CUT = 4.0
#: Of a plan's text this many characters are shown.
_LABEL = 46
#: Size in points of the numbers beside the dots of the scatter, and of one of their digits.
_NUMBER_PT, _DIGIT_PT = 8.0, 5.0
#: How far a dot and the winner's star reach, in points.
_DOT_PT, _STAR_PT = 3.0, 9.0
#: Where a number may stand beside its dot: angles in degrees, then distances in points.
_ANGLES, _DISTANCES_PT = (0, 180, 90, 270, 45, 135, 225, 315), (9.0, 15.0, 22.0, 30.0)
#: A number farther than this from its dot is joined to it by a line.
_FAR_PT = 14.0

Point = tuple[float, float]


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise ImportError(
            "plot() draws with matplotlib, which is not installed: pip install 'autoloop[plot]'; "
            "print(report) shows the same figures as text"
        ) from None


def _colour(trial: Trial, record: Record) -> str:
    if trial.plan == record.winner:
        return _WINNER
    return _WRITTEN if trial.plan == AS_WRITTEN else _OTHER


def _short(plan: str) -> str:
    return plan if len(plan) <= _LABEL else plan[: _LABEL - 3] + "..."


def place(points: Sequence[Point], texts: Sequence[str], reaches: Sequence[float] = ()) -> list[Point]:
    """Offsets of texts from their points, in points, so that texts cover neither each other nor the marks.

    A mark reaches 3 points from its point unless `reaches` says otherwise.

    Greedy: each text in turn takes the nearest free place of a few; the last one tried if none is free.
    """
    wide = reaches or [_DOT_PT] * len(points)
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(points, wide, strict=True)]
    found = []
    for (x, y), text in zip(points, texts, strict=True):
        width, offset = _DIGIT_PT * len(text), (0.0, 0.0)
        for distance in _DISTANCES_PT:
            free = False
            for angle in _ANGLES:
                radians = math.radians(angle)
                offset = (math.cos(radians) * (distance + width / 2 - 2.5), math.sin(radians) * distance)
                box = _box(x + offset[0], y + offset[1], width)
                if free := not any(_overlap(box, other) for other in taken):
                    break
            if free:
                break
        taken.append(_box(x + offset[0], y + offset[1], width))
        found.append(offset)
    return found


def _box(x: float, y: float, width: float) -> tuple[float, float, float, float]:
    return (x - width / 2, y - _NUMBER_PT / 2, x + width / 2, y + _NUMBER_PT / 2)


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _scatter(axes: Any, trials: Sequence[Trial], record: Record) -> None:
    """Building against running, both on logarithmic axes; numbers as beside the bars."""
    x, y = [max(t.build_s, 1e-3) for t in trials], [1e3 * (t.run_s or 0.0) for t in trials]
    axes.set(xscale="log", yscale="log", xlabel="tracing and compiling, s", ylabel="one call, ms")
    for trial, build, run in zip(trials, x, y, strict=True):
        chosen = trial.plan == record.winner
        written = trial.plan == AS_WRITTEN
        size, marker = (220, "*") if chosen else (36, "o")
        label = "chosen" if chosen else "as written" if written else None
        look = {"color": _colour(trial, record), "edgecolor": "white" if written else None, "linewidth": 0.8}
        # As written stands above the star of a winner that builds and runs much the same.
        axes.scatter([build], [run], s=size, marker=marker, label=label, zorder=2 + chosen + 2 * written, **look)
    axes.margins(0.12)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(importlib.import_module("matplotlib.ticker").LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.set_title("cheap to build: left; fast: low")
    axes.figure.canvas.draw()  # the layout decides where points are, and so where their numbers fit
    scale = 72 / axes.figure.dpi
    places = [tuple(scale * v for v in axes.transData.transform(point)) for point in zip(x, y, strict=True)]
    reaches = [_STAR_PT if t.plan == record.winner else _DOT_PT for t in trials]
    numbers = [str(number) for number in range(1, len(trials) + 1)]
    for number, point, offset in zip(numbers, zip(x, y, strict=True), place(places, numbers, reaches), strict=True):
        far = math.hypot(*offset) > _FAR_PT
        line = {"arrowstyle": "-", "color": "#777777", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0} if far else None
        where = {"textcoords": "offset points", "ha": "center", "va": "center"}
        axes.annotate(number, point, offset, fontsize=_NUMBER_PT, zorder=6, arrowprops=line, **where)


def _bars(axes: Any, trials: Sequence[Trial], record: Record) -> None:
    """One bar a plan, the fastest on top, with its interval and its figure."""
    base = next((t.run_s for t in trials if t.plan == AS_WRITTEN), trials[0].run_s) or 0.0
    end = 1e3 * min(max(t.run_high_s or t.run_s or 0.0 for t in trials), _CUT * base or math.inf)
    for row, trial in enumerate(trials):
        run, low, high = (1e3 * (v or trial.run_s or 0.0) for v in (trial.run_s, trial.run_low_s, trial.run_high_s))
        axes.barh(row, min(run, end), color=_colour(trial, record), height=0.7)
        if low < end:
            reach = [[min(run, end) - low], [max(0.0, min(high, end) - run)]]
            axes.errorbar(min(run, end), row, xerr=reach, color="black", capsize=2, linewidth=1)
        axes.text(1.02 * end, row, f"{run:.4g}{' (cut)' if run > end else ''}", va="center", fontsize=8)
    axes.set_yticks(range(len(trials)), [f"{_short(t.plan)}  {i}" for i, t in enumerate(trials, 1)], fontsize=8)
    axes.set(xlim=(0, 1.2 * end), ylim=(len(trials) - 0.4, -0.6), xlabel="one call, ms, with its 95 % interval")


def plot(record: Record, path: str | None = None) -> Any:
    """Draws a record: build time against run time, and run times with intervals.

    Args:
        record: of a tuning.
        path: a file to write the picture to (its ending says in which format), None for none.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: no plan of the record was timed.
    """
    ran = [t for t in _report.ranked(record.trials) if t.ok and t.run_s is not None]
    if not ran:
        raise ValueError(f"nothing to draw: no plan was timed ({record.verdict})")
    pyplot = _matplotlib()
    shown = _shown(ran, record)
    height = max(4.2, 1.6 + 0.24 * len(shown))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, height), layout="constrained", width_ratios=(1, 1))
    left_out = f"; the {len(ran) - len(shown)} slowest are left out" if len(shown) < len(ran) else ""
    figure.suptitle(f"{record.function}: {len(ran)} plans{left_out}")
    _bars(right, shown, record)
    _scatter(left, shown, record)
    left.legend(loc="best")
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _shown(ran: Sequence[Trial], record: Record) -> list[Trial]:
    """The fastest, and in any case the winner and as written."""
    must = {AS_WRITTEN, record.winner}
    room = _MOST - sum(1 for t in ran[_MOST - 2 :] if t.plan in must)
    return [t for i, t in enumerate(ran) if i < room or t.plan in must]
