"""Annealed Langevin dynamics: samplers, score-based models, molecular dynamics.

Loops: blocks, one temperature each (10, small 3), over 1,000 steps. Body: split the key in the carry,
draw a normal vector of 16, take a step down a double well. Only the position is a true recurrence;
the keys are one of their own, the random numbers none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from zoo._keys import split_chain

STEPS, DT = 1000, 0.01


def move(x: jax.Array, noise: jax.Array, temperature: jax.Array) -> jax.Array:
    return x + DT * (x - x**3) + jnp.sqrt(2 * DT * temperature) * noise


def program(key: jax.Array, x: jax.Array, temperatures: jax.Array) -> Any:
    def block(carry: Any, temperature: jax.Array) -> Any:
        def step(carry: Any, _: None) -> Any:
            x, key = carry
            key, sub = jax.random.split(key)
            return (move(x, jax.random.normal(sub, x.shape), temperature), key), None

        carry, _ = lax.scan(step, carry, None, length=STEPS)
        return carry, carry[0]

    return lax.scan(block, (x, key), temperatures)


def by_hand(key: jax.Array, x: jax.Array, temperatures: jax.Array) -> Any:
    key, subs = split_chain(key, len(temperatures) * STEPS)
    noise = jax.vmap(lambda sub: jax.random.normal(sub, x.shape))(subs)

    def block(x: jax.Array, inputs: Any) -> Any:
        noise, temperature = inputs
        x, _ = lax.scan(lambda x, n: (move(x, n, temperature), None), x, noise)
        return x, x

    x, samples = lax.scan(block, x, (noise.reshape(-1, STEPS, *x.shape), temperatures))
    return (x, key), samples


def arguments(size: str) -> tuple[Any, ...]:
    blocks = {"small": 3, "large": 10}[size]
    return jax.random.key(0), jnp.zeros(16), jnp.linspace(1.0, 0.1, blocks)
