"""Gravity among bodies by leapfrog: astronomy, molecular dynamics, particle methods.

Loops: saved frames (10) over 10 steps over the bodies that attract (128, small 32). Body: the
acceleration of all bodies towards one, added to a running sum. The sum is a reduction.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

FRAMES, STEPS, DT, SOFTENING = 10, 10, 1e-3, 0.05


def leapfrog(pull: Any, x: jax.Array, v: jax.Array) -> Any:
    def step(state: Any, _: None) -> Any:
        x, v = state
        x = x + 0.5 * DT * v
        v = v + DT * pull(x)
        return (x + 0.5 * DT * v, v), None

    def frame(state: Any, _: None) -> Any:
        state, _ = lax.scan(step, state, None, length=STEPS)
        return state, state[0]

    return lax.scan(frame, (x, v), None, length=FRAMES)


def program(x: jax.Array, v: jax.Array, masses: jax.Array) -> Any:
    def pull(x: jax.Array) -> jax.Array:
        def towards(j: Any, total: jax.Array) -> jax.Array:
            apart = x[j] - x
            inverse = lax.rsqrt((apart**2).sum(-1, keepdims=True) + SOFTENING**2)
            return total + masses[j] * apart * inverse**3

        return lax.fori_loop(0, len(masses), towards, jnp.zeros_like(x))

    return leapfrog(pull, x, v)


def by_hand(x: jax.Array, v: jax.Array, masses: jax.Array) -> Any:
    """Coordinates along the first axis, where vector units work on whole rows; four bodies a step."""

    def pull(x: jax.Array) -> jax.Array:
        def towards(j: Any, total: jax.Array) -> jax.Array:
            apart = x[:, j, None] - x
            inverse = lax.rsqrt((apart**2).sum(0) + SOFTENING**2)
            return total + masses[j] * apart * inverse**3

        return lax.fori_loop(0, len(masses), towards, jnp.zeros_like(x), unroll=4)

    (x, v), frames = leapfrog(pull, x.T, v.T)
    return (x.T, v.T), frames.transpose(0, 2, 1)


def arguments(size: str) -> tuple[Any, ...]:
    count = {"small": 32, "large": 128}[size]
    keys = jax.random.split(jax.random.key(0), 3)
    x, v = jax.random.normal(keys[0], (count, 3)), 0.3 * jax.random.normal(keys[1], (count, 3))
    return x, v, jax.random.uniform(keys[2], (count,), minval=0.5, maxval=1.5) / count
