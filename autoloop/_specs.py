"""Arguments made from their specs, for tuning ahead of the first real call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from autoloop import _jaxpr

#: The name that `jax.random.key` takes for a kind of key, where a key's dtype names it otherwise.
_IMPLS = {"fry": "threefry2x32", "urbg": "unsafe_rbg"}


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
        full = _impl(str(dtype))
        seeds = jnp.arange(max(1, _size(shape)), dtype=jnp.uint32)
        keys = jax.vmap(lambda s: jax.random.key(s, impl=full))(seeds)
        return keys[: _size(shape)].reshape(shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.random.normal(key, shape, dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return jax.random.normal(key, shape, jnp.float32).astype(dtype)
    return jnp.zeros(shape, dtype)


def _impl(dtype: str) -> str:
    name = dtype.removeprefix("key<").removesuffix(">")
    return _IMPLS.get(name, name)


def key_dtype(text: str) -> Any:
    """The dtype of keys that is written so (`key<fry>`); raises `ValueError` for a kind that is unknown."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=_impl(text))).dtype


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
