"""Variables, literals and equations: what reading and cutting a jaxpr needs besides `_jaxpr.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autoloop import _jaxpr
from autoloop._jaxpr import jec


def is_literal(atom: Any) -> bool:
    """Whether an equation's input (or a jaxpr's output) is a constant written in place."""
    return isinstance(atom, jec.Literal)


def literal_value(atom: Any) -> Any:
    """The number a literal stands for; None for a variable."""
    return atom.val if isinstance(atom, jec.Literal) else None


def variables(atoms: Iterable[Any]) -> list[Any]:
    """The variables among these, literals left out."""
    return [a for a in atoms if not isinstance(a, jec.Literal)]


def live(eqns: Sequence[Any], roots: Iterable[Any]) -> tuple[list[Any], set[Any]]:
    """The equations that `roots` need, and all variables that are read on the way."""
    wanted, kept = set(variables(roots)), []
    for eqn in reversed(eqns):
        if not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(variables(eqn.invars))
    return kept[::-1], wanted


def is_plain_call(eqn: Any) -> bool:
    """Whether a call's equations say all that matters: a jit that asks for shardings says more."""
    asked = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    plain = all(type(s).__name__ == "UnspecifiedValue" for s in asked)
    return plain and not _jaxpr.bodies(eqn)[0].consts


def ignores_inputs(eqn: Any) -> bool:
    """Whether an equation is a custom_jvp_call of which some output does not depend on all inputs.

    Batched in such an input only, its outputs have no batch but their tangents have: jax (0.8 to 0.12)
    fails to differentiate that under `jit`.
    """
    if eqn.primitive.name != "custom_jvp_call":
        return False
    body = _jaxpr.inner(_jaxpr.bodies(eqn)[0])
    return any(not live(body.eqns, [out])[1].issuperset(body.invars) for out in body.outvars)


class Inliner:
    """Collects the equations of a jaxpr, those of some calls in the calls' place.

    Under fresh names, because two calls may share one inner jaxpr.
    """

    def __init__(self) -> None:
        self.eqns: list[Any] = []

    def enters(self, eqn: Any, invars: Sequence[Any]) -> bool:
        """Whether an equation, whose inputs now go by these names, is a call to look into."""
        raise NotImplementedError

    def keep(self, eqn: Any) -> None:
        """Takes in an equation as it is."""
        self.eqns.append(eqn)

    def run(self, jaxpr: Any, names: dict[Any, Any]) -> list[Any]:
        """Adds a jaxpr whose inputs go by other names; returns what its outputs are called."""

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, jec.Literal) else names.get(atom, atom)

        for eqn in jaxpr.eqns:
            invars = [read(v) for v in eqn.invars]
            if self.enters(eqn, invars):
                inner = _jaxpr.bodies(eqn)[0].jaxpr
                outs = self.run(inner, dict(zip(inner.invars, invars, strict=True)))
            else:
                outs = [jec.Var(v.aval) for v in eqn.outvars]
                self.keep(eqn.replace(invars=invars, outvars=outs))
            names.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]


def has_odd_key(eqn: Any) -> bool:
    """Whether an equation has typed keys that are not threefry, whose bits differ under `vmap`."""
    kinds = {str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "dtype")}
    return any(k.startswith("key<") and k != "key<fry>" for k in kinds)
