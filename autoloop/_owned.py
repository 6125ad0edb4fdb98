"""Programs that own their constants, so that what the user does to theirs later does not reach them.

`jax.jit` reads closed-over arrays once, when it compiles. A host program is given its constants at each
call: a numpy array that was changed meanwhile would change results, a donated one would be gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoloop import _jaxpr
from autoloop._jaxpr import jec


def owned(jaxpr: _jaxpr.Jaxpr) -> tuple[_jaxpr.Jaxpr, tuple[Any, ...]]:
    """The same program with copies of its constants, those of bodies inside included; and these copies."""
    copies: list[Any] = []
    with jax.ensure_compile_time_eval():  # jit may be tracing
        return _own(jaxpr, copies), tuple(copies)


def constants(jaxpr: _jaxpr.Jaxpr) -> list[Any]:
    """The constants of a program and of the bodies inside."""
    inside = [const for eqn in _jaxpr.inner(jaxpr).eqns for body in _jaxpr.bodies(eqn) for const in constants(body)]
    return [*inside, *jaxpr.consts]


def same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether constants have the same values."""
    with jax.ensure_compile_time_eval():
        return len(some) == len(others) and all(_same(a, b) for a, b in zip(some, others, strict=True))


def _same(a: Any, b: Any) -> bool:
    return bool(np.shape(a) == np.shape(b) and jnp.all(a == b))


def _own(jaxpr: _jaxpr.Jaxpr, copies: list[Any]) -> _jaxpr.Jaxpr:
    program = _jaxpr.inner(jaxpr)
    eqns = [_with_own(eqn, copies) for eqn in program.eqns]
    consts = [_copy(value, var.aval) for value, var in zip(jaxpr.consts, program.constvars, strict=True)]
    copies += consts
    return jec.ClosedJaxpr(program.replace(eqns=eqns), consts)


def _with_own(eqn: Any, copies: list[Any]) -> Any:
    bodies = _jaxpr.bodies(eqn)
    if not any(map(constants, bodies)):
        return eqn
    return eqn.replace(params=_jaxpr.with_bodies(eqn, [_own(body, copies) for body in bodies]))


def _placeless(value: jax.Array) -> Any:
    """A copy that goes where it is used, as constants under jit do, even if the user placed it on one device."""
    if not (value.committed and isinstance(value.sharding, jax.sharding.SingleDeviceSharding)):
        return jnp.copy(value)
    with jax.transfer_guard("allow"):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = jax.device_put(np.array(jax.random.key_data(value)))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
        return jax.device_put(np.array(value))


def _copy(value: Any, aval: Any) -> Any:
    if isinstance(value, jax.Array):
        return _jaxpr.conform(_placeless(value), aval)
    if hasattr(value, "__array__"):  # numpy's, or a wrapper of jax around one
        # On a CPU the device may share the memory of what it is given.
        return _jaxpr.conform(jax.device_put(np.array(value)), aval)
    return value
