"""What a value's type says of a mesh of devices."""

from __future__ import annotations

from typing import Any

import jax

Aval = Any


def explicit(aval: Aval) -> Any:
    """The sharding that is part of a value's type (over explicit mesh axes); None for others."""
    return aval.sharding if jax.sharding.AxisType.Explicit in _axis_types(aval) else None


def manual(aval: Aval) -> bool:
    """Whether a value lives inside `shard_map`, where types say over which mesh axes it varies."""
    return jax.sharding.AxisType.Manual in _axis_types(aval)


def _axis_types(aval: Aval) -> tuple[Any, ...]:
    return tuple(getattr(getattr(getattr(aval, "sharding", None), "mesh", None), "axis_types", ()))
