"""Metropolis sweeps of a two-dimensional Ising model: statistical physics, image denoising.

Loops: temperatures (10, small 4) over 20 sweeps of a 64 x 64 lattice (small 32 x 32). Body: split
the key in the carry three ways, then two half sweeps of a checkerboard, each with its uniform
numbers. The random numbers need no carry.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from zoo._keys import split_chain

SWEEPS = 20


def half_sweep(spins: jax.Array, uniform: jax.Array, beta: jax.Array, parity: int) -> jax.Array:
    rows, columns = jnp.indices(spins.shape)
    around = sum(jnp.roll(spins, shift, axis) for shift in (-1, 1) for axis in (0, 1))
    flips = (uniform < jnp.exp(-2 * beta * spins * around)) & ((rows + columns) % 2 == parity)
    return jnp.where(flips, -spins, spins)


def program(key: jax.Array, spins: jax.Array, betas: jax.Array) -> Any:
    def temperature(carry: Any, beta: jax.Array) -> Any:
        def sweep(carry: Any, _: None) -> Any:
            spins, key = carry
            key, even, odd = jax.random.split(key, 3)
            spins = half_sweep(spins, jax.random.uniform(even, spins.shape), beta, 0)
            spins = half_sweep(spins, jax.random.uniform(odd, spins.shape), beta, 1)
            return (spins, key), spins.mean()

        return lax.scan(sweep, carry, None, length=SWEEPS)

    (spins, _), magnetization = lax.scan(temperature, (spins, key), betas)
    return spins, magnetization


def by_hand(key: jax.Array, spins: jax.Array, betas: jax.Array) -> Any:
    """Random numbers of a temperature at once: those of all would not stay in the cache."""

    def temperature(carry: Any, beta: jax.Array) -> Any:
        spins, key = carry
        key, subs = split_chain(key, SWEEPS, 3)
        uniform = jax.vmap(jax.vmap(lambda sub: jax.random.uniform(sub, spins.shape)))(subs)

        def sweep(spins: jax.Array, uniform: jax.Array) -> Any:
            spins = half_sweep(half_sweep(spins, uniform[0], beta, 0), uniform[1], beta, 1)
            return spins, spins.mean()

        spins, magnetization = lax.scan(sweep, spins, uniform)
        return (spins, key), magnetization

    (spins, _), magnetization = lax.scan(temperature, (spins, key), betas)
    return spins, magnetization


def arguments(size: str) -> tuple[Any, ...]:
    temperatures, side = {"small": (4, 32), "large": (10, 64)}[size]
    key, start = jax.random.split(jax.random.key(0))
    spins = jnp.where(jax.random.bernoulli(start, 0.5, (side, side)), 1.0, -1.0)
    return key, spins, jnp.linspace(0.3, 0.6, temperatures)
