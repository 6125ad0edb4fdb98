"""Hidden Markov models, forward and Viterbi: speech, genomics, part-of-speech tags, regimes.

Loops: `lax.map` over sequences (64, small 16) of three loops over time (200, small 100): forward
likelihood, best path forward, its trace backward. Body: 4 states; log-sum-exp or max over a 4 x 4
table, and the emission of a symbol looked up. No sequence waits for another, emissions need no carry.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp


def decode(start: jax.Array, moves: jax.Array, emissions: jax.Array, symbols: jax.Array) -> Any:
    first = start + emissions[:, symbols[0]]

    def forward(alpha: jax.Array, symbol: jax.Array) -> Any:
        return logsumexp(alpha[:, None] + moves, axis=0) + emissions[:, symbol], None

    def viterbi(best: jax.Array, symbol: jax.Array) -> Any:
        scores = best[:, None] + moves
        return scores.max(axis=0) + emissions[:, symbol], scores.argmax(axis=0)

    def back(state: jax.Array, came_from: jax.Array) -> Any:
        return came_from[state], state

    alpha, _ = lax.scan(forward, first, symbols[1:])
    best, pointers = lax.scan(viterbi, first, symbols[1:])
    origin, path = lax.scan(back, best.argmax(), pointers, reverse=True)
    return logsumexp(alpha), best.max(), jnp.concatenate([origin[None], path])


def program(start: jax.Array, moves: jax.Array, emissions: jax.Array, symbols: jax.Array) -> Any:
    return lax.map(lambda s: decode(start, moves, emissions, s), symbols)


def by_hand(start: jax.Array, moves: jax.Array, emissions: jax.Array, symbols: jax.Array) -> Any:
    """All sequences at once, the emissions looked up before, forward and Viterbi in one loop."""
    emitted = emissions.T[symbols.T]
    first = start + emitted[0]

    def step(carry: Any, emitted: jax.Array) -> Any:
        alpha, best = carry
        scores = best[:, :, None] + moves
        alpha = logsumexp(alpha[:, :, None] + moves, axis=1) + emitted
        return (alpha, scores.max(axis=1) + emitted), scores.argmax(axis=1)

    def back(state: jax.Array, came_from: jax.Array) -> Any:
        return jnp.take_along_axis(came_from, state[:, None], axis=1)[:, 0], state

    (alpha, best), pointers = lax.scan(step, (first, first), emitted[1:])
    origin, path = lax.scan(back, best.argmax(axis=1), pointers, reverse=True)
    return logsumexp(alpha, axis=1), best.max(axis=1), jnp.concatenate([origin[None], path]).T


def arguments(size: str) -> tuple[Any, ...]:
    count, steps = {"small": (16, 100), "large": (64, 200)}[size]
    keys = jax.random.split(jax.random.key(0), 4)
    start = jax.nn.log_softmax(jax.random.normal(keys[0], (4,)))
    moves = jax.nn.log_softmax(2 * jax.random.normal(keys[1], (4, 4)))
    emissions = jax.nn.log_softmax(jax.random.normal(keys[2], (4, 10)))
    return start, moves, emissions, jax.random.randint(keys[3], (count, steps), 0, 10)
