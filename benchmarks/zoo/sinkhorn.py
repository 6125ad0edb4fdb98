"""Entropic optimal transport by Sinkhorn iterations: matching, domain adaptation, single-cell data.

Loops: `lax.map` over problems (32, small 8) of 50 iterations. Body: two log-sum-exps over a table of
64 x 64 costs. No problem waits for another, but a batch of all would not stay in the cache.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

ITERATIONS, EPSILON = 50, 0.1


def transport(log_a: jax.Array, log_b: jax.Array, cost: jax.Array) -> Any:
    table = -cost / EPSILON

    def step(_: Any, potentials: Any) -> Any:
        _, g = potentials
        f = log_a - logsumexp(table + g[None, :], axis=1)
        return f, log_b - logsumexp(table + f[:, None], axis=0)

    f, g = lax.fori_loop(0, ITERATIONS, step, (jnp.zeros_like(log_a), jnp.zeros_like(log_b)))
    return jnp.sum(jnp.exp(table + f[:, None] + g[None, :]) * cost), f, g


def program(log_a: jax.Array, log_b: jax.Array, costs: jax.Array) -> Any:
    return lax.map(lambda problem: transport(*problem), (log_a, log_b, costs))


def by_hand(log_a: jax.Array, log_b: jax.Array, costs: jax.Array) -> Any:
    return lax.map(lambda problem: transport(*problem), (log_a, log_b, costs), batch_size=8)


def arguments(size: str) -> tuple[Any, ...]:
    count, points = {"small": 8, "large": 32}[size], 64
    keys = jax.random.split(jax.random.key(0), 4)
    xs, ys = jax.random.uniform(keys[0], (count, points, 2)), jax.random.uniform(keys[1], (count, points, 2))
    log_a = jax.nn.log_softmax(jax.random.normal(keys[2], (count, points)))
    log_b = jax.nn.log_softmax(jax.random.normal(keys[3], (count, points)))
    return log_a, log_b, ((xs[:, :, None] - ys[:, None]) ** 2).sum(-1)
