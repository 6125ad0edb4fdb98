"""A scalar recurrence for many parameters: ecology, epidemics, bifurcation diagrams, calibration grids.

Loops: `lax.map` over parameter sets (1,000, small 100) of 200 steps. Body: one logistic growth step
with harvest, and a discounted sum of what is harvested. No parameter set waits for another.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

STEPS = 200


def grow(rate: jax.Array, share: jax.Array, unroll: int = 1) -> Any:
    def step(carry: Any, _: None) -> Any:
        stock, value = carry
        taken = share * stock
        stock = stock + rate * stock * (1 - stock) - taken
        return (stock, 0.99 * value + taken), None

    begin = (jnp.float32(0.1), jnp.float32(0.0))
    return lax.scan(step, begin, None, length=STEPS, unroll=unroll)[0]


def program(rates: jax.Array, shares: jax.Array) -> Any:
    return lax.map(lambda pair: grow(*pair), (rates, shares))


def by_hand(rates: jax.Array, shares: jax.Array) -> Any:
    return jax.vmap(lambda rate, share: grow(rate, share, unroll=2))(rates, shares)


def arguments(size: str) -> tuple[Any, ...]:
    count = {"small": 100, "large": 1000}[size]
    return jnp.linspace(0.2, 1.8, count), jnp.linspace(0.0, 0.15, count)
