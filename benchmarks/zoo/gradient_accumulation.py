"""Gradient accumulation: training with batches that do not fit in memory.

Loops: optimizer steps (20, small 5) over 16 microbatches of 8. Body: loss and gradient of a
perceptron 64-128-128-10 (small: 32 wide), added to running sums; then an Adam step. The sums are
reductions: where memory allows, one gradient of the whole batch is the same.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

MICROBATCHES = 16


def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    logits = x @ params[-1][0] + params[-1][1]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -picked.mean()


def adam(state: Any, grads: Any) -> Any:
    params, mean, square, count = state
    count = count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, grads)
    scale = jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, s: p - 1e-3 * scale * m / (jnp.sqrt(s) + 1e-4), params, mean, square)
    return params, mean, square, count


def program(params: Any, xs: jax.Array, labels: jax.Array) -> Any:
    zeros = jax.tree.map(jnp.zeros_like, params)

    def update(state: Any, batch: Any) -> Any:
        def accumulate(sums: Any, microbatch: Any) -> Any:
            found = jax.value_and_grad(loss)(state[0], *microbatch)
            return jax.tree.map(jnp.add, sums, found), None

        sums, _ = lax.scan(accumulate, (jnp.float32(0.0), zeros), batch)
        value, grads = jax.tree.map(lambda s: s / MICROBATCHES, sums)
        return adam(state, grads), value

    (params, *_), losses = lax.scan(update, (params, zeros, zeros, jnp.float32(0.0)), (xs, labels))
    return params, losses


def by_hand(params: Any, xs: jax.Array, labels: jax.Array) -> Any:
    zeros = jax.tree.map(jnp.zeros_like, params)

    def update(state: Any, batch: Any) -> Any:
        x, labels = batch
        value, grads = jax.value_and_grad(loss)(state[0], x.reshape(-1, x.shape[-1]), labels.reshape(-1))
        return adam(state, grads), value

    (params, *_), losses = lax.scan(update, (params, zeros, zeros, jnp.float32(0.0)), (xs, labels))
    return params, losses


def arguments(size: str) -> tuple[Any, ...]:
    steps, widths = {"small": (5, (32, 32, 32, 10)), "large": (20, (64, 128, 128, 10))}[size]
    keys = jax.random.split(jax.random.key(0), 5)
    pairs = zip(keys, widths[:-1], widths[1:], strict=False)
    params = [(jax.random.normal(k, (i, o)) / i**0.5, jnp.zeros(o)) for k, i, o in pairs]
    xs = jax.random.normal(keys[3], (steps, MICROBATCHES, 8, widths[0]))
    return params, xs, jax.random.randint(keys[4], xs.shape[:3], 0, widths[-1])
