"""Meta-learning (MAML) of sine waves: few-shot regression and control.

Loops: meta-steps (5, small 3) over tasks (16, small 4), each 10 inner steps of Adam, differentiated through.
Body: loss and gradient of a perceptron 1-40-40-1 (small: 16 wide) on 10 points; around it the gradient of the
loss after adapting, summed over tasks, and a step with it. The tasks of one meta-step do not wait for each
other; the inner steps are short.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

INNER, POINTS = 10, 10


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return jnp.mean((x @ params[-1][0] + params[-1][1] - y) ** 2)


def adapted(params: Any, task: Any, unroll: int) -> jax.Array:
    """The loss on a task's new points after the inner optimizer has seen its old ones."""
    x, y, new_x, new_y = task
    zeros = jax.tree.map(jnp.zeros_like, params)

    def adam(state: Any, count: jax.Array) -> Any:
        params, mean, square = state
        grads = jax.grad(loss)(params, x, y)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, grads)
        scale = 0.01 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        params = jax.tree.map(lambda p, m, s: p - scale * m / jnp.sqrt(s + 1e-4), params, mean, square)
        return (params, mean, square), None

    counts = 1.0 + jnp.arange(INNER)
    (params, *_), _ = lax.scan(adam, (params, zeros, zeros), counts, unroll=unroll)
    return loss(params, new_x, new_y)


def descend(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


def program(params: Any, tasks: Any) -> Any:
    def meta_step(params: Any, tasks: Any) -> Any:
        def mean_loss(params: Any) -> jax.Array:
            return lax.map(lambda task: adapted(params, task, 1), tasks).mean()

        value, grads = jax.value_and_grad(mean_loss)(params)
        return descend(params, grads), value

    return lax.scan(meta_step, params, tasks)


def by_hand(params: Any, tasks: Any) -> Any:
    def meta_step(params: Any, tasks: Any) -> Any:
        def mean_loss(params: Any) -> jax.Array:
            return jax.vmap(lambda task: adapted(params, task, 1))(tasks).mean()

        value, grads = jax.value_and_grad(mean_loss)(params)
        return descend(params, grads), value

    return lax.scan(meta_step, params, tasks)


def arguments(size: str) -> tuple[Any, ...]:
    steps, count, wide = {"small": (3, 4, 16), "large": (5, 16, 40)}[size]
    keys = jax.random.split(jax.random.key(0), 6)
    widths = (1, wide, wide, 1)
    pairs = zip(keys, widths[:-1], widths[1:], strict=False)
    params = [(jax.random.normal(k, (i, o)) / i**0.5, jnp.zeros(o)) for k, i, o in pairs]
    height = jax.random.uniform(keys[3], (steps, count, 1, 1), minval=0.1, maxval=2.0)
    phase = jax.random.uniform(keys[4], (steps, count, 1, 1), maxval=jnp.pi)
    x, new_x = jax.random.uniform(keys[5], (2, steps, count, POINTS, 1), minval=-3.0, maxval=3.0)
    return params, (x, height * jnp.sin(x - phase), new_x, height * jnp.sin(new_x - phase))
