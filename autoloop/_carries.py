"""What a body does with each carry, and whether iterations may run at the same time.

What forms that run many iterations at once ask of a loop before they touch it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from autoloop import _jaxpr, _parts
from autoloop._atoms import Inliner, has_odd_key, ignores_inputs, is_plain_call, variables
from autoloop._jaxpr import jec
from autoloop._loops import Loop
from autoloop._signature import aval_text


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


class _Inliner(Inliner):
    """Looks into the calls of some names that a carry enters."""

    def __init__(self, calls: frozenset[str], touched: set[Any]) -> None:
        super().__init__()
        self._calls, self._touched = calls, touched

    def _is_touched(self, invars: Sequence[Any]) -> bool:
        return not self._touched.isdisjoint(variables(invars))

    def enters(self, eqn: Any, invars: Sequence[Any]) -> bool:
        return eqn.primitive.name in self._calls and self._is_touched(invars) and is_plain_call(eqn)

    def keep(self, eqn: Any) -> None:
        super().keep(eqn)
        self._touched.update(eqn.outvars if self._is_touched(eqn.invars) else ())


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


def carry_texts(scan: _jaxpr.Scan) -> list[str]:
    """Each carry as sentences name it: as the user's body does, else by its position among the carry's leaves."""
    _, avals, _ = scan.split_inputs(_jaxpr.in_avals(scan.body))
    pairs = enumerate(zip(_jaxpr.carry_names(scan), avals, strict=True))
    return [f"`{name}`" if name else f"carry {k} ({aval_text(_jaxpr.struct(aval))})" for k, (name, aval) in pairs]


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
        if ignores_inputs(eqn):
            return "the body holds a custom_jvp_call that ignores an input: jax can't differentiate it batched"
        if name == "rng_bit_generator" or (name.startswith("random_") and has_odd_key(eqn)):
            return f"the body holds {name} with keys that are not threefry: its bits would change"
        inner = (e for body in _jaxpr.bodies(eqn) for e in _jaxpr.equations(body))
        if name == "cond" and any(e.primitive.name == "while" for e in inner):
            return "the body holds a while inside a cond: it may never end where its branch is not taken"
    return None
