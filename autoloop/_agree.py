"""Whether two sets of outputs agree: the gate that no wrong form passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: Largest error allowed by default, relative to the largest magnitude of an output: some 800 units in
#: the last place for f32 (forms that sum in another order drift by dozens over thousands of steps),
#: about 5 for the half-width types; for f64 far more units, still far below what a model resolves.
_RTOL = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
_RTOL_OTHER = 0.25  # 8-bit floats


@dataclass(frozen=True)
class Tolerance:
    """How far a form's outputs may be from those of the function as written.

    Attributes:
        rtol: relative to the largest finite magnitude of each output; None for the dtype's default.
        atol: absolute, added to it; None for 0.
        bitwise: every bit must be equal; the other two are ignored.
    """

    rtol: float | None = None
    atol: float | None = None
    bitwise: bool = False


def to_host(values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Outputs as numpy arrays, so that their device memory can be freed; keys as their bits."""
    return [_on_host(v) for v in values]


def _on_host(value: Any) -> np.ndarray[Any, Any]:
    """A value as a numpy array; of one that is spread over processes, this process's part in a row."""
    bits = _bits(value)
    if bits.is_fully_addressable:
        return np.asarray(jax.device_get(bits))  # asked for, so that a transfer guard lets it pass
    shards = sorted(bits.addressable_shards, key=lambda shard: shard.device.id)
    return np.concatenate([np.ravel(shard.data) for shard in shards])


def shardings_differ(expected: Sequence[Any], got: Sequence[Any]) -> str:
    """Which output lies elsewhere than it does as written, or "": callers build on where results are."""
    for position, (want, value) in enumerate(zip(expected, got, strict=False)):
        have = getattr(value, "sharding", None)
        if want is not None and have is not None and not want.is_equivalent_to(have, value.ndim):
            return f"output {position} is placed as {have}, as written as {want}"
    return ""


def _bits(value: Any) -> Any:
    value = jnp.asarray(value) if not isinstance(value, jax.Array) else value
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(value) if is_key else value


def disagreement(
    expected: Sequence[np.ndarray[Any, Any]], got: Sequence[Any], tolerance: Tolerance
) -> tuple[float, str]:
    """(largest relative error, why they disagree or ""), output by output."""
    if len(expected) != len(got):
        return float("inf"), f"{len(got)} outputs instead of {len(expected)}"
    worst = 0.0
    for position, (want, value) in enumerate(zip(expected, got, strict=True)):
        have = _on_host(value)
        error, reason = _compare(want, have, tolerance)
        worst = max(worst, error)
        if reason:
            return worst, f"output {position} {reason}"
    return worst, ""


def _compare(want: Any, have: Any, tolerance: Tolerance) -> tuple[float, str]:
    if want.shape != have.shape or want.dtype != have.dtype:
        return float("inf"), f"is {have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}"
    if want.size == 0:
        return 0.0, ""
    if tolerance.bitwise or not jnp.issubdtype(want.dtype, jnp.inexact):
        same = want.tobytes() == have.tobytes()
        return (0.0, "") if same else (_error(want, have)[0], "differs in some bits")
    if reason := _special_values_differ(want, have):
        return float("inf"), reason
    error, scale = _error(want, have)
    rtol = tolerance.rtol if tolerance.rtol is not None else _default_rtol(want.dtype)
    allowed = rtol + (tolerance.atol or 0.0) / scale
    return error, "" if error <= allowed else f"is off by {error:.1e} relative, allowed is {allowed:.1e}"


def _default_rtol(dtype: Any) -> float:
    name = {"complex64": "float32", "complex128": "float64"}.get(str(dtype), str(dtype))
    return _RTOL.get(name, _RTOL_OTHER)


def _special_values_differ(want: Any, have: Any) -> str:
    a, b = _wide(want), _wide(have)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "has NaN in other places"
    infinite = np.isinf(a) | np.isinf(b)
    if not np.array_equal(a[infinite], b[infinite], equal_nan=True):
        return "has inf in other places"
    return ""


def _error(want: Any, have: Any) -> tuple[float, float]:
    """(largest finite error relative to scale, scale: the largest finite magnitude wanted)."""
    a, b = _wide(want), _wide(have)
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return 0.0, 1.0
    scale = float(np.max(np.abs(a[finite]))) or 1.0
    return float(np.max(np.abs(a[finite] - b[finite]))) / scale, scale


def _wide(values: Any) -> Any:
    kind = np.complex128 if jnp.issubdtype(values.dtype, jnp.complexfloating) else np.float64
    return values.astype(kind)
