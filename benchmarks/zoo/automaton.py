"""A cellular automaton (Conway's life) with a census: artificial life, excitable media, games.

Loops: censuses (20, small 5) over 25 generations. Body: the eight neighbours of each cell of a torus of
64 x 64 (small 32 x 32) by rolls, in integers, and the rule. Every generation waits for the last one; a cell
takes a few instructions.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

GENERATIONS = 25
AROUND = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]


def run(board: jax.Array, censuses: jax.Array, neighbours: Any, unroll: int) -> Any:
    """`censuses`: an array as long as there are any."""

    def generation(board: jax.Array, _: None) -> Any:
        count = neighbours(board)
        return ((count == 3) | ((board == 1) & (count == 2))).astype(board.dtype), None

    def census(board: jax.Array, weight: jax.Array) -> Any:
        board, _ = lax.scan(generation, board, None, length=GENERATIONS, unroll=unroll)
        return board, weight * jnp.sum(board, dtype=jnp.int32)

    return lax.scan(census, board, censuses)


def program(board: jax.Array, censuses: jax.Array) -> Any:
    return run(board, censuses, lambda b: sum(jnp.roll(b, move, (0, 1)) for move in AROUND), 1)


def by_hand(board: jax.Array, censuses: jax.Array) -> Any:
    """Sums of three in rows, of those sums of three in columns, from one padded copy in bytes."""

    def neighbours(b: jax.Array) -> jax.Array:
        p = jnp.pad(b, 1, mode="wrap")
        rows = p[:, :-2] + p[:, 1:-1] + p[:, 2:]
        return rows[:-2] + rows[1:-1] + rows[2:] - b

    last, found = run(board.astype(jnp.int8), censuses, neighbours, 1)
    return last.astype(board.dtype), found


def arguments(size: str) -> tuple[Any, ...]:
    censuses, side = {"small": (5, 32), "large": (20, 64)}[size]
    board = jax.random.bernoulli(jax.random.key(0), 0.35, (side, side)).astype(jnp.int32)
    return board, jnp.ones(censuses, jnp.int32)
