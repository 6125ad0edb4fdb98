"""Arguments made from their specs, for tuning ahead of the first real call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from autoloop import _jaxpr


def has_specs(leaves: list[Any]) -> bool:
    """Whether some leaf is a `jax.ShapeDtypeStruct`, for which a value must be made."""
    return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def make(leaf: Any, seed: int) -> Any:
    """A value for a spec: normal floats, zero integers and booleans, real keys; values stay."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    value = _value(leaf.shape, leaf.dtype, jax.random.key(seed))
    placed = value if leaf.sharding is None else jax.device_put(value, leaf.sharding)
    return _jaxpr.conform(placed, leaf)


def _value(shape: tuple[int, ...], dtype: Any, key: jax.Array) -> Any:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        impl = str(dtype).removeprefix("key<").removesuffix(">")
        full = {"fry": "threefry2x32", "urbg": "unsafe_rbg"}.get(impl, impl)
        seeds = jnp.arange(max(1, _size(shape)), dtype=jnp.uint32)
        keys = jax.vmap(lambda s: jax.random.key(s, impl=full))(seeds)
        return keys[: _size(shape)].reshape(shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.random.normal(key, shape, dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return jax.random.normal(key, shape, jnp.float32).astype(dtype)
    return jnp.zeros(shape, dtype)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
