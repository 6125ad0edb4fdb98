"""The arguments of a call, to be used again and again although the function may consume them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

#: The most bytes of donated arguments that one timed sample may copy beforehand.
_MAX_COPIES_BYTES = 256_000_000


class Inputs:
    """The user's arguments, handed out so that donating calls can be repeated.

    Args:
        leaves: the dynamic argument leaves.
        donated: which of them the function gives up.
        rebuild: leaves to (args, kwargs).
    """

    def __init__(self, leaves: Sequence[Any], donated: Sequence[bool], rebuild: Callable[[Sequence[Any]], Any]) -> None:
        self._leaves, self._donated, self._rebuild = list(leaves), tuple(donated), rebuild

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs), donated arrays as copies."""
        leaves = [
            jnp.copy(leaf) if donated and isinstance(leaf, jax.Array) else leaf
            for leaf, donated in zip(self._leaves, self._donated, strict=True)
        ]
        jax.block_until_ready(leaves)
        return self._rebuild(leaves)  # type: ignore[no-any-return]

    def most_copies(self) -> int:
        """How many sets of arguments may be held at once."""
        held = sum(
            leaf.nbytes
            for leaf, donated in zip(self._leaves, self._donated, strict=True)
            if donated and isinstance(leaf, jax.Array)
        )
        return max(1, _MAX_COPIES_BYTES // held) if held else 1_000_000
