"""Hamiltonian Monte Carlo on a logistic regression: Bayesian inference in any probabilistic library.

Loops: samples (100) over 10 leapfrog steps. Body: a gradient over the data (1,024 rows of 16, small
128 rows of 8); around it the key in the carry is split, a momentum drawn, and the proposal accepted
or not. The random numbers need no carry; the inner loop is short.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from zoo._keys import split_chain

SAMPLES, LEAPS = 100, 10


def potential(q: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.sum(jax.nn.softplus(-labels * (x @ q))) + 0.5 * q @ q


def sample(q: jax.Array, p: jax.Array, uniform: jax.Array, data: Any, unroll: int) -> Any:
    x, labels = data
    eps = 0.5 / x.shape[0] ** 0.5
    slope = jax.grad(potential)

    def leap(state: Any, _: None) -> Any:
        q, p = state
        p = p - 0.5 * eps * slope(q, x, labels)
        q = q + eps * p
        return (q, p - 0.5 * eps * slope(q, x, labels)), None

    (new, moved), _ = lax.scan(leap, (q, p), None, length=LEAPS, unroll=unroll)
    before = potential(q, x, labels) + 0.5 * p @ p
    after = potential(new, x, labels) + 0.5 * moved @ moved
    q = jnp.where(jnp.log(uniform) < before - after, new, q)
    return q, q


def program(key: jax.Array, q: jax.Array, x: jax.Array, labels: jax.Array) -> Any:
    def step(carry: Any, _: None) -> Any:
        q, key = carry
        key, for_p, for_u = jax.random.split(key, 3)
        p, uniform = jax.random.normal(for_p, q.shape), jax.random.uniform(for_u)
        q, kept = sample(q, p, uniform, (x, labels), unroll=1)
        return (q, key), kept

    return lax.scan(step, (q, key), None, length=SAMPLES)[1]


def by_hand(key: jax.Array, q: jax.Array, x: jax.Array, labels: jax.Array) -> Any:
    _, subs = split_chain(key, SAMPLES, 3)
    p = jax.vmap(lambda sub: jax.random.normal(sub, q.shape))(subs[:, 0])
    uniform = jax.vmap(jax.random.uniform)(subs[:, 1])
    return lax.scan(lambda q, drawn: sample(q, *drawn, (x, labels), unroll=LEAPS), q, (p, uniform))[1]


def arguments(size: str) -> tuple[Any, ...]:
    rows, wide = {"small": (128, 8), "large": (1024, 16)}[size]
    keys = jax.random.split(jax.random.key(0), 4)
    x, truth = jax.random.normal(keys[0], (rows, wide)), jax.random.normal(keys[1], (wide,))
    labels = jnp.sign(x @ truth + jax.random.normal(keys[2], (rows,)))
    return keys[3], jnp.zeros(wide), x, labels
