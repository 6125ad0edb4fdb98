"""What a person writes to take random numbers out of a loop that splits a carried key."""

from __future__ import annotations

import jax
from jax import lax


def split_chain(key: jax.Array, length: int, num: int = 2) -> tuple[jax.Array, jax.Array]:
    """(the key after `length` times `key, *subs = split(key, num)`, subs [length] or [length, num - 1])."""

    def advance(key: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(key, num)
        return keys[0], keys[1] if num == 2 else keys[1:]

    return lax.scan(advance, key, None, length=length)
