"""An echo-state network run over a long series: reservoir computing, forecasting.

Loops: blocks (20) over time (100 steps, the state carried on). Body: input projection (64 inputs),
the reservoir of 128 units, readout of 32 outputs, squared error (small: 5 blocks, 64 units). Only
the reservoir is a true recurrence.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LEAK = 0.3


def program(w_in: jax.Array, w: jax.Array, w_out: jax.Array, inputs: jax.Array, targets: jax.Array) -> Any:
    def block(h: jax.Array, data: Any) -> Any:
        def step(carry: Any, data: Any) -> Any:
            h, error = carry
            u, target = data
            h = (1 - LEAK) * h + LEAK * jnp.tanh(w @ h + w_in @ u)
            y = w_out @ h
            return (h, error + jnp.sum((y - target) ** 2)), y

        (h, error), ys = lax.scan(step, (h, jnp.float32(0.0)), data)
        return h, (ys, error)

    return lax.scan(block, jnp.zeros(w.shape[0]), (inputs, targets))


def by_hand(w_in: jax.Array, w: jax.Array, w_out: jax.Array, inputs: jax.Array, targets: jax.Array) -> Any:
    blocks, steps, _ = inputs.shape
    driven = inputs.reshape(blocks * steps, -1) @ w_in.T

    def step(h: jax.Array, u: jax.Array) -> Any:
        h = (1 - LEAK) * h + LEAK * jnp.tanh(w @ h + u)
        return h, h

    h, states = lax.scan(step, jnp.zeros(w.shape[0]), driven)
    ys = (states @ w_out.T).reshape(blocks, steps, -1)
    return h, (ys, ((ys - targets) ** 2).sum((1, 2)))


def arguments(size: str) -> tuple[Any, ...]:
    blocks, units, wide, out = {"small": (5, 64, 32, 16), "large": (20, 128, 64, 32)}[size]
    keys = jax.random.split(jax.random.key(0), 5)
    normal = jax.random.normal
    return (
        normal(keys[0], (units, wide)) / wide**0.5,
        0.9 * normal(keys[1], (units, units)) / units**0.5,
        normal(keys[2], (out, units)) / units**0.5,
        normal(keys[3], (blocks, 100, wide)),
        normal(keys[4], (blocks, 100, out)),
    )
