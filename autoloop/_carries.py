"""What a body does with each carry, and whether iterations may run at the same time.

What forms that run many iterations at once ask of a loop before they touch it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend import core as jec

from autoloop import _jaxpr, _parts
from autoloop._loops import Loop


@dataclass(frozen=True)
class Flat:
    """A body with the calls that its carry enters replaced by their equations."""

    jaxpr: _jaxpr.Jaxpr
    eqns: tuple[Any, ...]
    outvars: tuple[Any, ...]


def flatten(jaxpr: _jaxpr.Jaxpr, carry: Iterable[Any], calls: frozenset[str]) -> Flat:
    """The body with the calls of these names that a carry enters looked through."""
    inliner = _Inliner(calls, set(carry))
    outvars = inliner.run(jaxpr.jaxpr, {})
    return Flat(jaxpr, tuple(inliner.eqns), tuple(outvars))


class _Inliner:
    """Collects equations under fresh names, because two calls may share one inner jaxpr."""

    def __init__(self, calls: frozenset[str], touched: set[Any]) -> None:
        self._calls, self._touched = calls, touched
        self.eqns: list[Any] = []

    def run(self, jaxpr: Any, names: dict[Any, Any]) -> list[Any]:
        """Adds a jaxpr whose inputs go by other names; returns what its outputs are called."""

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, jec.Literal) else names.get(atom, atom)

        for eqn in jaxpr.eqns:
            invars = [read(v) for v in eqn.invars]
            is_touched = any(not isinstance(v, jec.Literal) and v in self._touched for v in invars)
            if is_touched and eqn.primitive.name in self._calls and _is_plain_call(eqn):
                inner = _jaxpr.bodies(eqn)[0].jaxpr
                outs = self.run(inner, dict(zip(inner.invars, invars, strict=True)))
            else:
                outs = [jec.Var(v.aval) for v in eqn.outvars]
                self.eqns.append(eqn.replace(invars=invars, outvars=outs))
                self._touched.update(outs if is_touched else ())
            names.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]


def _is_plain_call(eqn: Any) -> bool:
    """Whether a call's equations say all that matters: a jit that asks for shardings says more."""
    asked = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    plain = all(type(s).__name__ == "UnspecifiedValue" for s in asked)
    return plain and not _jaxpr.bodies(eqn)[0].consts


def live(eqns: Sequence[Any], roots: Iterable[Any]) -> tuple[list[Any], set[Any]]:
    """The equations that `roots` need, and all variables that are read on the way."""
    wanted = {v for v in roots if not isinstance(v, jec.Literal)}
    kept = []
    for eqn in reversed(eqns):
        if not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(v for v in eqn.invars if not isinstance(v, jec.Literal))
    return kept[::-1], wanted


@dataclass(frozen=True)
class Counter:
    """A carry that grows by the same integer every iteration; exact, even where it wraps around."""

    step: Any
    down: bool

    def at(self, init: Any, inputs: dict[Any, Any], times: Any) -> Any:
        """Its value after so many iterations; `inputs` are the values of the body's inputs."""
        step = _parts.literal(self.step) if isinstance(self.step, jec.Literal) else inputs[self.step]
        moved = step * lax.convert_element_type(times, init.dtype)
        return init - moved if self.down else init + moved


PASSED = "passed"


def carry_roles(scan: _jaxpr.Scan, flat: Flat) -> list[Any]:
    """For each carry `PASSED`, a `Counter`, or None if iterations write it some other way."""
    consts, carry, _ = scan.split_inputs(flat.jaxpr.jaxpr.invars)
    outs = flat.outvars[: scan.num_carry]
    makers = {v: e for e in flat.eqns for v in e.outvars}
    invariant = {*consts, *(v for v, out in zip(carry, outs, strict=True) if v is out)}
    roles: list[Any] = []
    for var, out in zip(carry, outs, strict=True):
        maker = None if isinstance(out, jec.Literal) else makers.get(out)
        roles.append(PASSED if var is out else _counter(var, maker, invariant))
    return roles


def _counter(var: Any, maker: Any, invariant: set[Any]) -> Counter | None:
    """The carry `var` as a counter, if the equation that makes its next value says so."""
    if maker is None or maker.primitive.name not in ("add", "sub"):
        return None
    if not jnp.issubdtype(var.aval.dtype, jnp.integer) or maker.outvars[0].aval.shape != var.aval.shape:
        return None
    left, right = maker.invars
    down = maker.primitive.name == "sub"
    if right is var and not down:
        left, right = right, left
    if left is var and (isinstance(right, jec.Literal) or right in invariant):
        return Counter(right, down)
    return None


def why_not_at_once(loop: Loop) -> str | None:
    """Why no two iterations of this body may run at the same time, whatever its carry does."""
    if loop.effects:
        return f"the body has side effects ({', '.join(loop.effects)}), whose order would change"
    for eqn in _jaxpr.equations(loop.scan.body):
        name = eqn.primitive.name
        if "callback" in name or name.startswith(("ffi_call", "unvmap", "nonbatchable", "rng_uniform")):
            return f"the body holds {name}, which means something else for many iterations at once"
        if name == "rng_bit_generator" or (name.startswith("random_") and _has_odd_key(eqn)):
            return f"the body holds {name} with keys that are not threefry: its bits would change"
        inner = (e for body in _jaxpr.bodies(eqn) for e in _jaxpr.equations(body))
        if name == "cond" and any(e.primitive.name == "while" for e in inner):
            return "the body holds a while inside a cond: it may never end where its branch is not taken"
    return None


def _has_odd_key(eqn: Any) -> bool:
    kinds = {str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "dtype")}
    return any(k.startswith("key<") and k != "key<fry>" for k in kinds)
