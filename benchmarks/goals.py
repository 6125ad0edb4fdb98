"""What the rows of the zoo say together: a table, and figures against the goals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from beside import WHY

from autoloop._report import align

Row = Mapping[str, Any]
#: The goals on CPU.
GAIN, LOWEST, PEER_GAIN, REGRET, REGRET_SHARE, CLOSE = 1.6, 0.97, 1.3, 1.05, 0.9, 0.9
WAYS = {
    "jit": "as written, jax.jit",
    "tuned": "tuned by autoloop",
    "hand": "best by hand",
    "python": "Python loop, jitted step",
    "eager": "Python loop, no jit",
    "peer": "tune_jax, unroll",
    "sweep": "best of the sweep",
}


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def good(rows: Sequence[Row]) -> list[Row]:
    """Those of programs that were measured."""
    return [row for row in rows if "failed" not in row]


def table(rows: Sequence[Row]) -> str:
    """A line a program: how many times as fast as plain `jax.jit` each way is."""
    head = ("program", "jit ms", "tuned", "interval", "hand", "python", "eager", "tune_jax", "sweep", "regret")
    lines = [(*head, "first s", "tuning s", "pays after", "peak MB", "plan")]
    for row in rows:
        if "failed" in row:
            lines.append((row["program"], *["-"] * 13, f"failed: {row['failed'][:100]}"))
            continue
        tuned, jit = row["ways"]["tuned"], row["ways"]["jit"]
        speeds = [_speed(row, name) for name in ("hand", "python", "eager", "peer", "sweep")]
        lines.append(
            (
                row["program"],
                f"{jit['ms']:.3f}",
                _speed(row, "tuned"),
                "{1:.2f} to {2:.2f}".format(*tuned.get("speedup", (1, math.nan, math.nan))),
                *speeds,
                f"{row['regret'][0]:.3f}" if "regret" in row else "-",
                f"{jit['first_s']:.2f}",
                f"{tuned['tuning_s']:.1f}",
                calls(tuned),
                f"{tuned['peak_bytes'] / 1e6:.3g}",
                tuned["plan"],
            )
        )
    return align(lines)


def costs(rows: Sequence[Row]) -> str:
    """A line a way of each program: what it costs to build and to run."""
    lines = [("program", "way", "trace s", "compile s", "first s", "tuning s", "ms", "peak MB", "pays after", "plan")]
    for row in good(rows):
        for name, way in row["ways"].items():
            timed = "ms" in way
            figures = (f"{way[key]:.3f}" for key in ("trace_s", "compile_s", "first_s", "tuning_s"))
            ms, after = (f"{way['ms']:.3f}", calls(way)) if timed else ("-", "-")
            last = way["plan"] if timed else f"{way['plan']} left out: {way['reason'] or 'not raced'}"
            lines.append((row["program"], WAYS[name], *figures, ms, f"{way['peak_bytes'] / 1e6:.3g}", after, last))
    return align([(f"{a}: {b}", *rest) for a, b, *rest in lines])


def calls(way: Row) -> str:
    """After how many calls a way has paid for what it costs more than plain `jax.jit`."""
    count = way.get("breakeven_calls")
    return "-" if count is None else f"{count:,.0f}"


def _speed(row: Row, name: str) -> str:
    way = row["ways"].get(name, {})
    return f"{way['speedup'][0]:.2f}" if "speedup" in way else "-"


def against(rows: Sequence[Row]) -> list[str]:
    """Each goal with the figure, and what misses it."""
    if not (measured := good(rows)):
        return ["no program was measured"]
    lines = [f"{len(measured)} of {len(rows)} programs measured; goals are those for the CPU"]
    lines += _gain(measured) + _peer(measured) + _regret(measured) + _by_hand(measured)
    left_out = {way["reason"] for row in measured for way in row["ways"].values() if "not installed" in way["reason"]}
    return [*lines, *sorted(left_out)]


def _line(met: bool, text: str) -> str:
    return f"{'met   ' if met else 'MISSED'}  {text}"


def _gain(rows: Sequence[Row]) -> list[str]:
    gains = {r["program"]: r["ways"]["tuned"]["speedup"][0] for r in rows if "speedup" in r["ways"]["tuned"]}
    if not gains:
        return []
    found, low = mean(list(gains.values())), min(gains, key=lambda n: gains[n])
    below = [f"{name} {gain:.2f}" for name, gain in gains.items() if gain < LOWEST]
    text = f"jit over tuned, geometric mean {found:.2f} (goal {GAIN}); "
    lowest = f"lowest {gains[low]:.2f}, {low} (goal {LOWEST}){': ' + ', '.join(below) if below else ''}"
    return [_line(found >= GAIN, text.rstrip("; ")), _line(not below, lowest)]


def _peer(rows: Sequence[Row]) -> list[str]:
    ratios = {r["program"]: r["peer_over_tuned"] for r in rows if "peer_over_tuned" in r}
    if not ratios:
        return []
    found = mean([r[0] for r in ratios.values()])
    # Slower for certain: the whole interval, and by more than a tie's margin.
    slower = [f"{name} {r[0]:.2f}" for name, r in ratios.items() if r[2] < 1 and r[0] < LOWEST]
    return [
        _line(found >= PEER_GAIN, f"tune_jax's choice over tuned, geometric mean {found:.2f} (goal {PEER_GAIN})"),
        _line(not slower, f"slower than tune_jax's choice: {', '.join(slower) or 'none'} (goal: none)"),
    ]


def _regret(rows: Sequence[Row]) -> list[str]:
    found = {r["program"]: r["regret"][0] for r in rows if "regret" in r}
    if not found:
        return []
    above = [f"{name} {r:.2f}" for name, r in found.items() if r > REGRET]
    share = 1 - len(above) / len(found)
    text = f"regret at most {REGRET} on {share:.0%} (goal {REGRET_SHARE:.0%})"
    return [_line(share >= REGRET_SHARE, f"{text}{'; above: ' + ', '.join(above) if above else ''}")]


def _by_hand(rows: Sequence[Row]) -> list[str]:
    found = {r["program"]: r["hand_over_tuned"][0] for r in rows if "hand_over_tuned" in r}
    lost = {name: ratio for name, ratio in found.items() if ratio < CLOSE}
    head = f"slower than by hand by more than a tenth: {', '.join(lost) or 'none'} (goal: none, or why)"
    why = [
        f"        {n}: by hand {1 / r:.2f} times as fast: {WHY.get(n, 'not explained yet')}" for n, r in lost.items()
    ]
    return [_line(all(name in WHY for name in lost), head), *why]
