"""The likelihood of a state-space model over many series: panels of sales, sensors, stocks.

Loops: series (200, small 40) with a running sum, over time (100 steps). Body: a Kalman filter step
of four states and one observation (local trend and a cycle), skipped where an observation is
missing, as series of different length are padded. No series waits for another.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def likelihood(model: Any, ys: jax.Array, seen: jax.Array) -> jax.Array:
    f, q, h, r = model

    def step(carry: Any, data: Any) -> Any:
        mean, cov, total = carry
        y, seen = data
        mean, cov = f @ mean, f @ cov @ f.T + q
        error, spread = y - h @ mean, h @ cov @ h + r
        gain = cov @ h / spread
        total = total - jnp.where(seen, 0.5 * (jnp.log(2 * jnp.pi * spread) + error**2 / spread), 0.0)
        mean = jnp.where(seen, mean + gain * error, mean)
        cov = jnp.where(seen, cov - jnp.outer(gain, gain) * spread, cov)
        return (mean, cov, total), None

    begin = (jnp.zeros(4), 10.0 * jnp.eye(4), jnp.float32(0.0))
    return lax.scan(step, begin, (ys, seen))[0][2]


def program(model: Any, ys: jax.Array, seen: jax.Array) -> jax.Array:
    def series(total: jax.Array, data: Any) -> Any:
        return total + likelihood(model, *data), None

    return lax.scan(series, jnp.float32(0.0), (ys, seen))[0]


def by_hand(model: Any, ys: jax.Array, seen: jax.Array) -> jax.Array:
    return jax.vmap(likelihood, in_axes=(None, 0, 0))(model, ys, seen).sum()


def arguments(size: str) -> tuple[Any, ...]:
    count, steps = {"small": (40, 100), "large": (200, 100)}[size]
    cos, sin = 0.98 * jnp.cos(0.5), 0.98 * jnp.sin(0.5)
    f = jnp.eye(4).at[0, 1].set(1.0).at[2:, 2:].set(jnp.array([[cos, sin], [-sin, cos]]))
    model = (f, jnp.diag(jnp.array([0.1, 0.01, 0.1, 0.1])), jnp.array([1.0, 0.0, 1.0, 0.0]), jnp.float32(0.5))
    keys = jax.random.split(jax.random.key(0), 2)
    ys = jnp.cumsum(jax.random.normal(keys[0], (count, steps)), axis=1)
    lengths = jax.random.randint(keys[1], (count, 1), steps // 2, steps)
    return model, ys, jnp.arange(steps) < lengths
