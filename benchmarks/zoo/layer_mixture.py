"""Decoding with a mixture of layers: language models that alternate attention, recurrence and perceptrons.

Loops: tokens (48, small 16) over layers (8, small 4), stacked. Body: `lax.switch` to one of three kinds of
layer: attention of four heads over a cache, a gated recurrence with a state, a perceptron; width 64 (small
32), batch 4. A token is the likeliest after the last one, so both loops are recurrences; every layer carries
what only some kinds use.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

HEADS, BATCH, WORDS = 4, 4, 32


def norm(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def attention(x: jax.Array, w: Any, memory: Any, place: jax.Array) -> Any:
    cache, state = memory
    q, k, v = jnp.split(norm(x) @ w["wide"], 3, axis=-1)
    cache = lax.dynamic_update_index_in_dim(cache, jnp.stack([k, v]), place, 0)
    heads = cache.reshape(*cache.shape[:-1], HEADS, -1)
    scores = jnp.einsum("bhd,tbhd->bht", q.reshape(BATCH, HEADS, -1), heads[:, 0]) * (HEADS / q.shape[-1]) ** 0.5
    scores = jnp.where(jnp.arange(len(cache)) <= place, scores, -1e9)
    mixed = jnp.einsum("bht,tbhd->bhd", jax.nn.softmax(scores), heads[:, 1])
    return x + mixed.reshape(BATCH, -1) @ w["out"], (cache, state)


def recurrence(x: jax.Array, w: Any, memory: Any, place: jax.Array) -> Any:
    cache, state = memory
    gate, new, keep = jnp.split(norm(x) @ w["wide"], 3, axis=-1)
    keep = jax.nn.sigmoid(keep + 2)
    state = keep * state + (1 - keep) * new
    return x + (jax.nn.silu(gate) * state) @ w["out"], (cache, state)


def perceptron(x: jax.Array, w: Any, memory: Any, place: jax.Array) -> Any:
    hidden = jax.nn.gelu(norm(x) @ w["wide"])
    return x + hidden[:, : x.shape[-1]] @ w["out"], memory


KINDS = (attention, recurrence, perceptron)
#: Of each layer; a model has this in its configuration.
ORDER = (0, 2, 1, 2, 1, 2, 0, 2)


def decode(weights: Any, words: jax.Array, first: jax.Array, steps: jax.Array, through: Any) -> Any:
    """`steps`: places of the tokens to be found; `through`: from what enters the layers to what leaves them."""
    layers, wide = weights["out"].shape[:2]
    memory = (jnp.zeros((layers, steps.size, 2, BATCH, wide)), jnp.zeros((layers, BATCH, wide)))

    def token(carry: Any, place: jax.Array) -> Any:
        word, memory = carry
        x, memory = through(words[word], memory, place)
        logits = norm(x) @ words.T
        word = logits.argmax(-1)
        return (word, memory), (word, logits.max(-1))

    return lax.scan(token, (first, memory), steps)[1]


def program(weights: Any, words: jax.Array, first: jax.Array, steps: jax.Array) -> Any:
    kinds = jnp.array(ORDER[: weights["out"].shape[0]])

    def through(x: jax.Array, memory: Any, place: jax.Array) -> Any:
        def layer(x: jax.Array, data: Any) -> Any:
            kind, w, memory = data
            return lax.switch(kind, KINDS, x, w, memory, place)

        return lax.scan(layer, x, (kinds, weights, memory))

    return decode(weights, words, first, steps, through)


def by_hand(weights: Any, words: jax.Array, first: jax.Array, steps: jax.Array) -> Any:
    """The layers one after the other, each of its own kind."""
    layers = weights["out"].shape[0]

    def through(x: jax.Array, memory: Any, place: jax.Array) -> Any:
        caches, states = [], []
        for i, kind in enumerate(ORDER[:layers]):
            own = jax.tree.map(lambda a, i=i: a[i], (weights, memory))
            x, (cache, state) = KINDS[kind](x, *own, place)
            caches.append(cache)
            states.append(state)
        return x, (jnp.stack(caches), jnp.stack(states))

    return decode(weights, words, first, steps, through)


def arguments(size: str) -> tuple[Any, ...]:
    layers, wide, steps = {"small": (4, 32, 16), "large": (8, 64, 48)}[size]
    keys = jax.random.split(jax.random.key(0), 3)
    weights = {
        "wide": jax.random.normal(keys[0], (layers, wide, 3 * wide)) / wide**0.5,
        "out": jax.random.normal(keys[1], (layers, wide, wide)) / wide**0.5,
    }
    words = jax.random.normal(keys[2], (WORDS, wide))
    return weights, words, jnp.arange(BATCH), jnp.arange(steps)
