"""A program that is called once: outer 20,000, inner 100, about a minute or more on 2 cores.

One body has no better form than as written: it is bound by its matrix product. The other has one: it
only passes over memory, and `unroll` makes one pass of several.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoloop import autoloop

BODIES = ("products", "passes")
OUTER, INNER = 20_000, 100


def program(weights: Any, state: Any, body: str, outer: int) -> Any:
    """The nest; `body` and `outer` are static."""

    def step(h: Any, _: Any) -> Any:
        return (jnp.tanh(h @ weights) * 0.9, None) if body == "products" else (h * 0.999 + 0.001, None)

    def block(h: Any, _: Any) -> Any:
        h, _ = lax.scan(step, h, None, length=INNER)
        return h, h.sum()

    return lax.scan(block, state, None, length=outer)


def arguments(body: str) -> tuple[Any, Any]:
    """Weights and state."""
    return jnp.eye(96) * 0.5, jnp.ones((96, 96)) if body == "products" else jnp.ones(1 << 18)


def first_call(which: str, body: str, outer: int, budget_s: float) -> dict[str, Any]:
    """Seconds of a first call, plain or decorated."""
    args = arguments(body)
    static = {"static_argnames": ("body", "outer")}
    call: Any = jax.jit(program, **static) if which == "plain" else autoloop(budget_s=budget_s, **static)(program)
    start = time.perf_counter()
    jax.block_until_ready(call(*args, body=body, outer=outer))
    found: dict[str, Any] = {"seconds": time.perf_counter() - start}
    if which != "plain":
        record = call.report(*args, body=body, outer=outer)
        trials = [(t.plan, t.status, t.ratio, round(t.build_s, 2), round(t.spent_s, 2)) for t in record.trials]
        found |= {"plan": record.winner, "tuning_s": record.spent_s, "notes": list(record.notes), "trials": trials}
    return found
