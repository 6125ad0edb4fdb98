"""Diagonal state-space layers as in S5: long-range sequence models, recurrent-mode inference.

Loops: layers (4, small 2) over time (512, small 128). Body: input product into 64 complex states
(small 32), the diagonal recurrence, output product, a nonlinearity and a residual. Only the diagonal
recurrence needs a carry, and it is linear.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def program(layers: Any, inputs: jax.Array) -> jax.Array:
    def layer(us: jax.Array, params: Any) -> Any:
        decay, b, c, d = params

        def step(x: jax.Array, u: jax.Array) -> Any:
            x = decay * x + b @ u
            y = (c @ x).real + d * u
            return x, u + jax.nn.gelu(y)

        return lax.scan(step, jnp.zeros_like(decay), us)[1], None

    return lax.scan(layer, inputs, layers)[0]


def by_hand(layers: Any, inputs: jax.Array) -> jax.Array:
    """Products outside the recurrence and, as inputs and outputs are real, of real matrices."""

    def layer(us: jax.Array, params: Any) -> Any:
        decay, b, c, d = params

        def step(x: jax.Array, driven: jax.Array) -> Any:
            x = decay * x + driven
            return x, x

        driven = lax.complex(us @ b.real.T, us @ b.imag.T)
        _, xs = lax.scan(step, jnp.zeros_like(decay), driven)
        ys = xs.real @ c.real.T - xs.imag @ c.imag.T
        return us + jax.nn.gelu(ys + d * us), None

    return lax.scan(layer, inputs, layers)[0]


def arguments(size: str) -> tuple[Any, ...]:
    count, steps, wide = {"small": (2, 128, 32), "large": (4, 512, 64)}[size]
    keys = jax.random.split(jax.random.key(0), 6)
    turn = jnp.pi * jnp.arange(wide) / wide
    decay = jnp.exp(-0.1 * jax.random.uniform(keys[0], (count, wide)) + 1j * turn)
    normal = jax.random.normal
    b = (normal(keys[1], (count, wide, wide)) + 1j * normal(keys[2], (count, wide, wide))) / (4 * wide**0.5)
    c = (normal(keys[3], (count, wide, wide)) + 1j * normal(keys[4], (count, wide, wide))) / (4 * wide**0.5)
    layers = (decay, b, c, jnp.ones((count, wide)))
    return layers, normal(keys[5], (steps, wide))
