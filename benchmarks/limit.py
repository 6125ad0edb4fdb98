"""How far is a tuned function from what the machine can do? What `run.py --suite limit` runs for each loop.

Three loops of tiny bodies beside the same loop compiled by numba, on one core, each a plain nest of Python's
`for`; three that are bound by matrix products beside those products alone, chained as in the loop, with
nothing between them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import common
import contenders
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo import automaton

from autoloop import autoloop
from autoloop._agree import Tolerance, disagreement, to_host
from autoloop._report import align

#: What is timed, and what it is held against: (function, arguments, reference or None, what the reference is).
Loop = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any] | None, str]
_TUNING, _RACE, _ROUNDS = 0.4, 0.25, 31
_CHAIN = 8


def recurrence(x: Any, outer: Any) -> Any:
    """A scalar recurrence, 200 steps in each block."""

    def block(c: Any, scale: Any) -> Any:
        return lax.scan(lambda c, _: (c * 0.999 + 0.001 * x * scale, None), c, None, length=200)[0], c

    return lax.scan(block, jnp.float32(0.0), outer)


def garch(params: Any, returns: Any) -> Any:
    """The likelihoods of a GARCH model for several parameters, over one series."""

    def likelihood(p: Any) -> Any:
        def step(carry: Any, r: Any) -> Any:
            variance, total = carry
            total = total + jnp.log(variance) + r * r / variance
            return (p[0] + p[1] * r * r + p[2] * variance, total), None

        return lax.scan(step, (jnp.float32(1.0), jnp.float32(0.0)), returns)[0][1]

    return lax.map(likelihood, params)


def residual(weights: Any, x: Any) -> Any:
    """Layers of a residual network."""
    return lax.scan(lambda h, w: (h + jax.nn.relu(h @ w), None), x, weights)[0]


def rnn(w: Any, xs: Any) -> Any:
    """A recurrent network over time."""
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros_like(xs[0]), xs)[0]


def iteration(a: Any, x: Any) -> Any:
    """Blocks of subspace iteration, normalized after each product."""

    def step(x: Any, _: Any) -> Any:
        y = a @ x
        return y / jnp.linalg.norm(y, axis=0), None

    return lax.scan(lambda x, _: (lax.scan(step, x, None, length=10)[0], None), x, None, length=10)[0]


# ---------------------------------------------------------------- numba


def _numba_recurrence(x: Any, outer: Any) -> Any:
    c, rate, gain, seen = np.float32(0.0), np.float32(0.999), np.float32(0.001), np.empty(outer.size, np.float32)
    for i in range(outer.size):
        seen[i] = c
        for _ in range(200):
            c = c * rate + gain * x * outer[i]
    return c, seen


def _numba_garch(params: Any, returns: Any) -> Any:
    found = np.empty(params.shape[0], np.float32)
    for i in range(params.shape[0]):
        variance, total = np.float32(1.0), np.float32(0.0)
        for r in returns:
            total += np.log(variance) + r * r / variance
            variance = params[i, 0] + params[i, 1] * r * r + params[i, 2] * variance
        found[i] = total
    return found


def _numba_automaton(board: Any, censuses: Any) -> Any:
    rows, columns = board.shape
    old = np.zeros((rows + 2, columns + 2), np.int32)  # with a border, so that no cell asks where it is
    new, found = old.copy(), np.empty(censuses.size, np.int32)
    old[1:-1, 1:-1] = board
    for number in range(censuses.size):
        for _ in range(25):
            old[0], old[-1] = old[-2], old[1]
            old[:, 0], old[:, -1] = old[:, -2], old[:, 1]
            for i in range(1, rows + 1):
                for j in range(1, columns + 1):
                    count = old[i - 1, j - 1] + old[i - 1, j] + old[i - 1, j + 1] + old[i, j - 1] + old[i, j + 1]
                    count += old[i + 1, j - 1] + old[i + 1, j] + old[i + 1, j + 1]
                    new[i, j] = (count == 3) | ((count == 2) & (old[i, j] == 1))
            old, new = new, old
        found[number] = censuses[number] * old[1:-1, 1:-1].sum()
    return old[1:-1, 1:-1].copy(), found


def missing() -> str:
    """Why the comparison with numba is left out, or ""."""
    return "" if importlib.util.find_spec("numba") else "numba is not installed (pip install numba): left out"


def in_numba(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any] | None:
    """The call of a function compiled by numba, on one core, on the same values."""
    if missing():
        return None
    compiled = importlib.import_module("numba").njit(function)
    values = [np.asarray(a)[()] for a in args]
    return lambda: compiled(*values)


# ---------------------------------------------------------------- matrix products alone


def products(left: Any, right: Any, count: int, of: str) -> Callable[[], Any]:
    """The call of `count` products, each of the last one's result, as one program without a loop.

    Where there are more than a few, a few are chained, and called as often as it takes.
    """
    length = max(n for n in range(1, _CHAIN + 1) if count % n == 0)

    def chain(state: Any, other: Any) -> Any:
        for i in range(length):
            matrix = other[i] if other.ndim == 3 else other
            state = state @ matrix if of == "right" else matrix @ state
        return state

    jitted = jax.jit(chain)
    state, other = (left, right) if of == "right" else (right, left)

    def call() -> Any:
        found = state
        for _ in range(count // length):
            found = jitted(state, other)
        return jax.block_until_ready(found)

    return call


def _tiny(name: str, size: str) -> Loop:
    key, large = jax.random.key(0), size == "large"
    if name == "automaton":
        args: tuple[Any, ...] = automaton.arguments(size)
        function: Any = automaton.program
    elif name == "garch":
        params = jnp.linspace(jnp.array([0.05, 0.05, 0.7]), jnp.array([0.1, 0.1, 0.8]), 16)
        function, args = garch, (params, jax.random.normal(key, (2000 if large else 200,)))
    else:
        function, args = recurrence, (jnp.float32(1.5), jnp.ones(500 if large else 50))
    by_numba = {"automaton": _numba_automaton, "garch": _numba_garch}.get(name, _numba_recurrence)
    return function, args, in_numba(by_numba, args), "numba, one core"


def _products(name: str, size: str) -> Loop:
    key, wide = jax.random.key(0), 256 if size == "large" else 64
    square = jax.random.normal(key, (wide, wide)) / (2 * wide**0.5)
    state = jax.random.normal(key, (64, wide))
    if name == "residual":
        stack = jnp.stack([square] * 16)
        return residual, (stack, state), products(state, stack, 16, "right"), "16 products alone"
    if name == "rnn":
        xs = jax.random.normal(key, (64, 64, wide))
        return rnn, (square, xs), products(state, square, 64, "right"), "64 products alone"
    return iteration, (square, state.T), products(square, state.T, 100, "left"), "100 products alone"


LOOPS: Mapping[str, Callable[[str, str], Loop]] = {
    "recurrence": _tiny,
    "garch": _tiny,
    "automaton": _tiny,
    "residual": _products,
    "rnn": _products,
    "iteration": _products,
}


def measure(name: str, allowed_s: float, size: str = "large") -> dict[str, Any]:
    """The row of one loop, in this process, on an empty store."""
    function, args, reference, what = LOOPS[name](name, size)
    tuned = autoloop(budget_s=_TUNING * allowed_s, progress=False)(function)
    calls = {"jit": common.blocked(jax.jit(function), args), "tuned": common.blocked(tuned, args)}
    if reference is not None:
        calls["reference"] = reference
    outputs = {key: call() for key, call in calls.items()}
    if "numba" in what and reference is not None:
        check(outputs["jit"], outputs["reference"])
    expected = {key: contenders.timed(call)[1] for key, call in calls.items()}
    times = common.bounded_rounds(calls, expected, _RACE * allowed_s / len(calls), _ROUNDS)
    ratios = {f"{n}_over_reference": common.paired(times, "reference", n) for n in ("jit", "tuned") if reference}
    row = {"loop": name, "size": size, "reference": what, "plan": str(tuned.plan(*args))}
    ms = {key: 1e3 * common.median_s(seconds) for key, seconds in times.items()}
    return {**row, "ms": ms, "note": "" if reference else missing(), **ratios}


def check(written: Any, by_numba: Any) -> None:
    """Compares with numba's outputs; sums of thousands of numbers in float32 differ in their last digits.

    Raises:
        RuntimeError: they do not agree.
    """
    found = [jnp.asarray(x) for x in jax.tree.leaves(by_numba)]
    if reason := disagreement(to_host(jax.tree.leaves(written)), found, Tolerance(rtol=1e-3))[1]:
        raise RuntimeError(f"the loop in numba does not agree: {reason}")


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a loop."""
    lines = [
        ("loop", "reference ms", "jit ms", "tuned ms", "jit / ref", "tuned / ref", "interval", "reference", "plan")
    ]
    for row in rows:
        if "failed" in row:
            lines.append((row["loop"], *["-"] * 7, f"failed: {row['failed'][:100]}"))
            continue
        ms = [f"{row['ms'][k]:.3f}" if k in row["ms"] else "-" for k in ("reference", "jit", "tuned")]
        if "tuned_over_reference" not in row:
            lines.append((row["loop"], *ms, "-", "-", "-", row["note"], row["plan"]))
            continue
        mid, low, high = row["tuned_over_reference"]
        ratios = (f"{row['jit_over_reference'][0]:.2f}", f"{mid:.2f}", f"{low:.2f} to {high:.2f}")
        lines.append((row["loop"], *ms, *ratios, row["reference"], row["plan"]))
    return align(lines)
