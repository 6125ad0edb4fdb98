"""Transformer layers as a scan over stacked weights: language models, one training gradient.

Loops: layers (8, small 4), forward and, by `jax.grad`, backward. Body: causal attention of four heads
and a perceptron, width 128, 64 positions, batch 4 (small: width 64, 32 positions, batch 2). Every
layer waits for the last one; the weights' gradients are stacked.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

HEADS = 4


def norm(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def layer(x: jax.Array, weights: Any) -> jax.Array:
    batch, length, wide = x.shape
    q, k, v = jnp.split(norm(x) @ weights["qkv"], 3, axis=-1)
    q, k, v = (a.reshape(batch, length, HEADS, -1) for a in (q, k, v))
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / (wide // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + mixed @ weights["out"]
    return x + jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"]


def program(weights: Any, x: jax.Array, target: jax.Array) -> Any:
    def loss(weights: Any) -> jax.Array:
        h, _ = lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return jnp.mean((norm(h) - target) ** 2)

    return jax.value_and_grad(loss)(weights)


def by_hand(weights: Any, x: jax.Array, target: jax.Array) -> Any:
    def loss(weights: Any) -> jax.Array:
        h = x
        for i in range(weights["qkv"].shape[0]):
            h = layer(h, {name: w[i] for name, w in weights.items()})
        return jnp.mean((norm(h) - target) ** 2)

    return jax.value_and_grad(loss)(weights)


def arguments(size: str) -> tuple[Any, ...]:
    layers, wide, length, batch = {"small": (4, 64, 32, 2), "large": (8, 128, 64, 4)}[size]
    keys = jax.random.split(jax.random.key(0), 6)
    shapes = {"qkv": (wide, 3 * wide), "out": (wide, wide), "up": (wide, 4 * wide), "down": (4 * wide, wide)}
    weights = {
        name: jax.random.normal(key, (layers, *shape)) / (2 * shape[0]) ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    x, target = (jax.random.normal(key, (batch, length, wide)) for key in keys[4:])
    return weights, x, target
