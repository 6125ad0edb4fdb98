"""Fitting a GARCH(1,1) model of volatility: econometrics, risk.

Loops: steps of gradient descent (50) over returns (2,000, small 500), forward and, by `jax.grad`,
backward. Body: a scalar variance that depends on the last one, its logarithm and a division in the
likelihood. The variance is a linear recurrence; squares, logarithms and divisions need no carry.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

STEPS = 50


def natural(params: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.exp(params[0]), 0.3 * jax.nn.sigmoid(params[1]), 0.7 * jax.nn.sigmoid(params[2])


def descend(loss: Any, params: jax.Array) -> Any:
    def update(params: jax.Array, _: None) -> Any:
        value, grads = jax.value_and_grad(loss)(params)
        return params - 0.5 * grads, value

    return lax.scan(update, params, None, length=STEPS)


def program(params: jax.Array, returns: jax.Array) -> Any:
    def loss(params: jax.Array) -> jax.Array:
        omega, alpha, beta = natural(params)

        def step(carry: Any, r: jax.Array) -> Any:
            variance, total = carry
            total = total + 0.5 * (jnp.log(variance) + r**2 / variance)
            return (omega + alpha * r**2 + beta * variance, total), None

        (_, total), _ = lax.scan(step, (jnp.float32(1.0), jnp.float32(0.0)), returns)
        return total / len(returns)

    return descend(loss, params)


def by_hand(params: jax.Array, returns: jax.Array) -> Any:
    squares = returns**2

    def loss(params: jax.Array) -> jax.Array:
        omega, alpha, beta = natural(params)
        shocks = omega + alpha * squares
        _, variances = lax.scan(lambda v, s: (s + beta * v, v), jnp.float32(1.0), shocks, unroll=8)
        return 0.5 * jnp.mean(jnp.log(variances) + squares / variances)

    return descend(loss, params)


def arguments(size: str) -> tuple[Any, ...]:
    count = {"small": 500, "large": 2000}[size]
    swings = 1 + 0.5 * jnp.sin(jnp.arange(count) / 40)
    return jnp.zeros(3), swings * jax.random.normal(jax.random.key(0), (count,))
