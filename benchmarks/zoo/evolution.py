"""Evolution strategy over rollouts: control without gradients, neuroevolution.

Loops: generations (10, small 4) over a population (64, small 16) by `lax.map`, each a rollout (100 steps,
small 50). Body: a policy 4-16-1 and one step of a cart with a pole; around them perturbations drawn from a
split key, ranks of the returns, and a step along the estimated gradient. No member waits for another.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

SIGMA, RATE, DT = 0.1, 0.05, 0.02
HIDDEN = 16
SIZE = 4 * HIDDEN + HIDDEN


def policy(params: jax.Array, state: jax.Array) -> jax.Array:
    hidden = jnp.tanh(state @ params[: 4 * HIDDEN].reshape(4, HIDDEN))
    return jnp.tanh(hidden @ params[4 * HIDDEN :])


def cart(state: jax.Array, force: jax.Array) -> jax.Array:
    x, speed, angle, turn = state
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = (10 * force + 0.05 * turn**2 * sin) / 1.1
    spin = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    pull = push - 0.05 * spin * cos / 1.1
    return jnp.stack([x + DT * speed, speed + DT * pull, angle + DT * turn, turn + DT * spin])


def fitness(params: jax.Array, start: jax.Array, steps: int) -> jax.Array:
    def step(carry: Any, _: None) -> Any:
        state, total = carry
        state = cart(state, policy(params, state))
        return (state, total + jnp.cos(state[2]) - 0.05 * state[0] ** 2), None

    return lax.scan(step, (start, jnp.float32(0.0)), None, length=steps)[0][1]


def evolve(key: jax.Array, params: jax.Array, starts: jax.Array, horizon: jax.Array, evaluate: Any) -> Any:
    """`starts`: a state a generation; `horizon`: an array as long as a rollout; the population is 64 or 16."""
    half = 32 if horizon.size > 50 else 8

    def generation(carry: Any, start: jax.Array) -> Any:
        params, key = carry
        key, sub = jax.random.split(key)
        noise = jax.random.normal(sub, (half, SIZE))
        noise = jnp.concatenate([noise, -noise])
        returns = evaluate(lambda p: fitness(p, start, horizon.size), params + SIGMA * noise)
        scores = (returns - returns.mean()) / (returns.std() + 1e-3)
        return (params + RATE / SIGMA * scores @ noise / len(noise), key), returns.mean()

    (params, _), history = lax.scan(generation, (params, key), starts)
    return params, history


def program(key: jax.Array, params: jax.Array, starts: jax.Array, horizon: jax.Array) -> Any:
    return evolve(key, params, starts, horizon, lax.map)


def by_hand(key: jax.Array, params: jax.Array, starts: jax.Array, horizon: jax.Array) -> Any:
    return evolve(key, params, starts, horizon, lambda f, xs: jax.vmap(f)(xs))


def arguments(size: str) -> tuple[Any, ...]:
    generations, steps = {"small": (4, 50), "large": (10, 100)}[size]
    keys = jax.random.split(jax.random.key(0), 3)
    starts = 0.1 * jax.random.normal(keys[1], (generations, 4))
    return keys[0], 0.3 * jax.random.normal(keys[2], (SIZE,)), starts, jnp.zeros(steps)
