"""A reaction-diffusion system (Gray-Scott) on a square, with saved frames: physics, pattern formation.

Loops: frames (20, small 5) over 25 steps. Body: a five-point Laplacian of two fields of 64 x 64 (small
32 x 32) by rolls, the reaction, an explicit Euler step. Every step waits for the last one; what a step reads
and writes is several times what it computes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

STEPS, FEED, KILL = 25, 0.037, 0.06


def laplacian(u: jax.Array) -> jax.Array:
    return sum(jnp.roll(u, shift, axis) for shift in (-1, 1) for axis in (0, 1)) - 4 * u


def program(u: jax.Array, v: jax.Array, rates: jax.Array) -> Any:
    """`rates`: of diffusion, one a frame."""

    def frame(state: Any, rate: jax.Array) -> Any:
        def step(state: Any, _: None) -> Any:
            u, v = state
            reaction = u * v * v
            u = u + rate * laplacian(u) - reaction + FEED * (1 - u)
            return (u, v + 0.5 * rate * laplacian(v) + reaction - (FEED + KILL) * v), None

        state, _ = lax.scan(step, state, None, length=STEPS)
        return state, state[1]

    return lax.scan(frame, (u, v), rates)


#: Padded copies, both fields in one array, slices joined and unrolled steps were all slower, unrolled ones
#: by factors of ten to thousands: each step is computed again for every cell that reads it.
by_hand = program


def arguments(size: str) -> tuple[Any, ...]:
    frames, side = {"small": (5, 32), "large": (20, 64)}[size]
    middle = slice(side // 2 - 4, side // 2 + 4)
    noise = 0.02 * jax.random.normal(jax.random.key(0), (side, side))
    u = jnp.ones((side, side)).at[middle, middle].set(0.5) + noise
    v = jnp.zeros((side, side)).at[middle, middle].set(0.25)
    return u, v, jnp.linspace(0.16, 0.2, frames)
