"""How do tuning, tracing and dispatch grow with a program? What `run.py --suite growth` runs for each size.

Five axes, each with all else small: loops side by side, depth of nesting, length of the outer loop, arrays
among the arguments, equations in the body. Figures, in seconds: `tuning`, the first call of the decorated
function on an empty store; `build`, plain jax tracing and compiling, for comparison; `trace`, ours with jax's;
`key`, what Python looks at when a signature is new to a process; `dispatch`, a later call above one of
`jax.jit`, where calls are short enough to tell.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import common
import contenders
import jax
import jax.numpy as jnp
from jax import lax

from autoloop import Plan, autoloop
from autoloop._call import Call
from autoloop._function import Function
from autoloop._program import Program
from autoloop._report import align

AXES = ("loops", "depth", "outer", "leaves", "body")
_SIZES = {
    "loops": (1, 3, 10, 25, 50),
    "depth": (1, 2, 3, 4, 5),
    "outer": (10, 100, 1_000, 10_000, 100_000, 1_000_000),
    "leaves": (1, 10, 100, 300, 1_000),
    "body": (10, 30, 100, 300, 1_000, 3_000),
}
#: Sizes that only show that the script runs.
_QUICK = {"loops": (1, 3), "depth": (2,), "outer": (10, 1_000), "leaves": (10,), "body": (10,)}
FIGURES = ("tuning", "build", "trace", "key", "dispatch")
_TUNING = 0.35
#: The difference of two calls longer than this says nothing about dispatch.
_TELLS_S = 3e-4
#: Growth of a figure between two neighbouring sizes that counts as faster than linear.
STEEP = 1.2


def sizes(axis: str, quick: bool = False) -> tuple[int, ...]:
    """The sizes of one axis."""
    return (_QUICK if quick else _SIZES)[axis]


def _step(x: Any, _: Any) -> Any:
    return jnp.tanh(x) * 0.9 + 0.1, None


def _loops(count: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def program(x: Any) -> Any:
        for _ in range(count):
            x, _ys = lax.scan(_step, x, None, length=20)
        return x

    return program, (jnp.ones(8),)


def _depth(count: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def nest(depth: int) -> Callable[..., Any]:
        return _step if depth == 0 else lambda x, _: (lax.scan(nest(depth - 1), x, None, length=4)[0], None)

    return lambda x: nest(count)(x, None)[0], (jnp.ones(8),)


def _outer(count: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def block(x: Any, _: Any) -> Any:
        return lax.scan(_step, x, None, length=5)[0], None

    return lambda x: lax.scan(block, x, None, length=count)[0], (jnp.ones(8),)


def _leaves(count: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def program(leaves: Any) -> Any:
        return lax.scan(lambda x, _: (jnp.tanh(x) * 0.9, None), jnp.stack(leaves), None, length=20)[0]

    return program, ([jnp.ones(8) for _ in range(count)],)


def _body(count: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A small product among every twenty equations, as in real bodies.

    A chain of over 5,000 elementwise equations, which copies of a body of 3,000 make, overflows the stack of
    XLA's CPU compiler (jaxlib 0.10.2), and that ends the process.
    """

    def program(w: Any, x: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            for number in range(count // 2):
                x = w @ x if number % 10 == 0 else x * 0.9
                x = x + 0.1
            return x, None

        return lax.scan(step, x, None, length=20)[0]

    return program, (0.9 * jnp.eye(8), jnp.ones(8))


_PROGRAMS = {"loops": _loops, "depth": _depth, "outer": _outer, "leaves": _leaves, "body": _body}


def measure(name: str, allowed_s: float) -> dict[str, Any]:
    """The row of one size, in this process."""
    axis, _, size = name.partition("=")
    function, args = _PROGRAMS[axis](int(size))
    wrapped = Function(function)
    lowered, trace_s = contenders.timed(lambda: jax.jit(function).lower(*args))
    _, compile_s = contenders.timed(lowered.compile)
    _, ours_s = contenders.timed(lambda: Program.trace(wrapped, Call.of(wrapped, args, {}).key, args, {}))
    keys_s = [contenders.timed(lambda: Call.of(wrapped, args, {}))[1] for _ in range(30)]
    budget_s = _TUNING * allowed_s
    tuned = autoloop(budget_s=budget_s, progress=False)(function)
    _, tuning_s = contenders.timed(common.blocked(tuned, args))
    record = tuned.report(*args)
    assert record is not None
    found = {"tuning": tuning_s, "build": trace_s + compile_s, "trace": ours_s, "key": statistics.median(keys_s)}
    if (above_s := dispatch(function, args)) is not None:
        found["dispatch"] = above_s
    of_record = {"plan": record.winner, "trials": len(record.trials), "complete": record.complete}
    spent = {"spent_s": record.spent_s, "budget_s": budget_s}
    return {"name": name, "axis": axis, "size": int(size), "figures": found, **of_record, **spent}


def dispatch(function: Callable[..., Any], args: tuple[Any, ...]) -> float | None:
    """Seconds of a call of a function with a plan in force above one of `jax.jit`, None where it can't be told."""
    plain, tuned = jax.jit(function), autoloop(function)
    tuned._planned.plans[Call.of(tuned._function, args, {}).key] = Plan()  # whatever a tuning would choose
    calls = {"jit": common.blocked(plain, args), "tuned": common.blocked(tuned, args)}
    for call in calls.values():
        call()
    _, once_s = contenders.timed(calls["jit"])
    if once_s > _TELLS_S:
        return None
    found = common.interleaved(calls, 60, repeat=max(3, math.ceil(common.SPAN_S / once_s)))
    above = statistics.median(t - j for j, t in zip(found["jit"], found["tuned"], strict=True))
    return above if above > 0 else None


def exponent(at: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of the line of least squares through the logarithms: 1 for what grows linearly."""
    xs, ys = [math.log(x) for x in at], [math.log(y) for y in seconds]
    slope: float = statistics.linear_regression(xs, ys).slope
    return slope


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By axis and figure: sizes, seconds, the fitted exponent, and the steepest step between neighbours."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for axis in AXES:
        for figure in FIGURES:
            of_axis = [r for r in rows if r.get("axis") == axis and figure in r.get("figures", {})]
            points = sorted((r["size"], r["figures"][figure]) for r in of_axis)
            if len(points) < 2:
                continue
            at, seconds = [p[0] for p in points], [p[1] for p in points]
            steps = [exponent(at[i : i + 2], seconds[i : i + 2]) for i in range(len(at) - 1)]
            curve = {"sizes": at, "seconds": seconds, "exponent": exponent(at, seconds), "steepest": max(steps)}
            found.setdefault(axis, {})[figure] = curve
    return found


def report(rows: Sequence[Mapping[str, Any]], of: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Figures of each size, fitted exponents, and what grows faster than linearly in the outer length."""
    lines = [("size", *(f"{name} s" for name in FIGURES), "trials", "spent of budget", "plan")]
    for row in rows:
        if "failed" in row:
            lines.append((row["name"], *["-"] * 7, f"failed: {row['failed'][:100]}"))
            continue
        cells = [f"{row['figures'][n]:.3g}" if n in row["figures"] else "-" for n in FIGURES]
        spent = f"{row['spent_s']:.1f} of {row['budget_s']:.1f}"
        lines.append((row["name"], *cells, str(row["trials"]), spent, row["plan"]))
    fits = [("exponent of", *FIGURES, "")]
    for axis, figures in of.items():
        fits.append((axis, *(f"{figures[n]['exponent']:.2f}" if n in figures else "-" for n in FIGURES), ""))
    steep = [n for n, curve in of.get("outer", {}).items() if n != "dispatch" and curve["steepest"] > STEEP]
    text = f"faster than linear in the outer length: {', '.join(steep) or 'nothing'}"
    return "\n\n".join([align(lines), align(fits), text])
