"""Dynamic time warping of many pairs of series: speech, gestures, sensors, clustering of series.

Loops: `lax.map` over pairs (32, small 8), in each the rows of a table (64, small 32) over its columns. Body:
the cheapest of three neighbours, plus the distance of two points of 3 dimensions. A cell waits for those above
and to the left; cells of one antidiagonal, and pairs, do not wait for each other.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

FAR = 1e9


def program(xs: jax.Array, ys: jax.Array) -> jax.Array:
    def pair(data: Any) -> jax.Array:
        a, b = data

        def row(above: jax.Array, point: jax.Array) -> Any:
            def column(left: jax.Array, cell: Any) -> Any:
                other, up, corner = cell
                best = jnp.minimum(left, jnp.minimum(up, corner))
                here = jnp.sum((point - other) ** 2) + best
                return here, here

            _, below = lax.scan(column, jnp.float32(FAR), (b, above[1:], above[:-1]))
            return jnp.concatenate([jnp.full(1, FAR), below]), None

        begin = jnp.full(len(b) + 1, FAR).at[0].set(0.0)
        return lax.scan(row, begin, a)[0][-1]

    return lax.map(pair, (xs, ys))


def by_hand(xs: jax.Array, ys: jax.Array) -> jax.Array:
    """All pairs at once, along antidiagonals of a skewed table of distances made before."""
    count, rows, _ = xs.shape
    columns = ys.shape[1]
    costs = ((xs[:, :, None] - ys[:, None]) ** 2).sum(-1)
    skew = jnp.arange(rows + columns - 1)[:, None] - jnp.arange(rows)[None, :]
    inside = (skew >= 0) & (skew < columns)
    picked = costs[:, jnp.arange(rows)[None, :], jnp.clip(skew, 0, columns - 1)]
    diagonals = jnp.where(inside, picked, FAR).transpose(1, 2, 0)
    edge = jnp.full((1, count), FAR)

    def step(carry: Any, cost: jax.Array) -> Any:
        older, old = carry  # of the last two antidiagonals, by row, a border in front
        best = jnp.minimum(old[1:], jnp.minimum(old[:-1], older[:-1]))
        return (old, jnp.concatenate([edge, best + cost])), None

    nothing = jnp.full((rows + 1, count), FAR)
    (_, last), _ = lax.scan(step, (nothing.at[0].set(0.0), nothing), diagonals)
    return last[-1]


def arguments(size: str) -> tuple[Any, ...]:
    pairs, steps = {"small": (8, 32), "large": (32, 64)}[size]
    moves = 0.3 * jax.random.normal(jax.random.key(0), (2, pairs, steps, 3))
    xs, ys = jnp.cumsum(moves, axis=2)
    return xs, ys
