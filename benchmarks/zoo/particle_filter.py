"""A particle filter for stochastic volatility, over a grid of parameters: econometrics, tracking.

Loops: `lax.map` over persistences (8, small 3) of time (100, small 50), and inside each step the
binary search of `jnp.interp`. Body: split the key in the carry, move 256 particles, weigh them, resample.
Every grid point starts from the same key, so that likelihoods can be compared: the random numbers
depend on neither loop. Resampling interpolates between sorted particles (S. Malik and M. K. Pitt,
"Particle filters for continuous likelihood evaluation and maximisation", J. Econometrics 165, 2011):
the likelihood is then continuous, and a difference in the last bit stays one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from zoo._keys import split_chain

PARTICLES = 256


def step(x: jax.Array, noise: jax.Array, offset: jax.Array, y: jax.Array, phi: jax.Array) -> Any:
    x = phi * x + 0.3 * noise
    log_weights = -0.5 * (x + y**2 * jnp.exp(-x))
    top = log_weights.max()
    weights = jnp.exp(log_weights - top)
    total = weights.sum()
    mean = weights @ x / total
    x, weights = lax.sort_key_val(x, weights / total)
    positions = (jnp.arange(PARTICLES) + offset) / PARTICLES
    x = jnp.interp(positions, jnp.cumsum(weights) - 0.5 * weights, x)
    return x, (top + jnp.log(total / PARTICLES), mean)


def program(key: jax.Array, phis: jax.Array, ys: jax.Array) -> Any:
    def likelihood(phi: jax.Array) -> Any:
        def advance(carry: Any, y: jax.Array) -> Any:
            x, key = carry
            key, for_noise, for_offset = jax.random.split(key, 3)
            noise, offset = jax.random.normal(for_noise, x.shape), jax.random.uniform(for_offset)
            x, found = step(x, noise, offset, y, phi)
            return (x, key), found

        _, (logs, means) = lax.scan(advance, (jnp.zeros(PARTICLES), key), ys)
        return logs.sum(), means

    return lax.map(likelihood, phis)


def by_hand(key: jax.Array, phis: jax.Array, ys: jax.Array) -> Any:
    _, subs = split_chain(key, len(ys), 3)
    noise = jax.vmap(lambda sub: jax.random.normal(sub, (PARTICLES,)))(subs[:, 0])
    offsets = jax.vmap(jax.random.uniform)(subs[:, 1])

    def likelihood(phi: jax.Array) -> Any:
        def advance(x: jax.Array, data: Any) -> Any:
            return step(x, *data, phi)

        _, (logs, means) = lax.scan(advance, jnp.zeros(PARTICLES), (noise, offsets, ys))
        return logs.sum(), means

    return jax.vmap(likelihood)(phis)


def arguments(size: str) -> tuple[Any, ...]:
    points, steps = {"small": (3, 50), "large": (8, 100)}[size]
    key, for_y = jax.random.split(jax.random.key(0))
    ys = jnp.exp(0.5 * jnp.sin(jnp.arange(steps) / 10)) * jax.random.normal(for_y, (steps,))
    return key, jnp.linspace(0.8, 0.98, points), ys
