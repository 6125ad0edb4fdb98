"""The same question put to a peer: tune_jax 0.8.3, which tunes parameters that the user writes into a function.

Optional: without `pip install tune_jax==0.8.3` its column is left out of the results, with a word.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from typing import Any

from autoloop._loops import Loop
from autoloop._plan import Choice, Plan
from autoloop._program import Program

#: What it may choose for the loop with most work of its own: the factors that the form `unroll` tries.
FACTORS = (1, 2, 4, 8, 16)


def missing() -> str:
    """Why the column is left out, or ""."""
    if importlib.util.find_spec("tune_jax") is None:
        return "tune_jax is not installed (pip install tune_jax==0.8.3): its column is left out"
    return ""


def version() -> str:
    """Which one is installed."""
    return importlib.metadata.version("tune_jax")


def busiest(program: Program) -> Loop:
    """The loop that does most by itself, which is where a user would write `unroll`."""

    def own(loop: Loop) -> float:
        inside = (o.work for o in program.loops if o.path[:-1] == loop.path)
        return loop.work - sum(inside)

    return max(program.loops, key=own)


def unrolled(path: tuple[int, ...], factor: int) -> Plan:
    """The plan that stands for `lax.scan(..., unroll=factor)` in one loop."""
    return Plan((Choice(path, "unroll", factor),)) if factor > 1 else Plan()


def tune(tuned: Any, loop: Loop, args: tuple[Any, ...], allowed: Sequence[int] = FACTORS) -> str:
    """The plan that tune_jax chooses among factors for one loop of a function decorated with autoloop."""
    tune_jax: Any = importlib.import_module("tune_jax")

    def function(*args: Any, unroll: int = 1) -> Any:
        return tuned.using(unrolled(loop.path, unroll))(*args)

    factors = tuple(factor for factor in allowed if factor <= loop.length)
    found: Any = tune_jax.tune(function, hyperparams={"unroll": factors})
    found(*args)
    chosen: dict[str, int] = found.optimal_hyperparams
    return str(unrolled(loop.path, chosen["unroll"]))


def wrapped(function: Any) -> Any:
    """A function of one argument as tune_jax gives it back, with one parameter that it has chosen."""
    tune_jax: Any = importlib.import_module("tune_jax")

    def with_parameter(argument: Any, unroll: int = 1) -> Any:
        return function(argument)

    return tune_jax.tune(with_parameter, hyperparams={"unroll": (1, 2)})
