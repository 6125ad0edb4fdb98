"""Building and reading equations: what this form needs of JAX's classes. To move into _jaxpr.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core as jec

from autoloop import _jaxpr
from autoloop._loops import work

# Calls that say no more than their equations do. Custom derivatives stay whole.
_CALLS = frozenset({"jit", "pjit", "closed_call", "eval_jaxpr", "remat2", "checkpoint"})


@dataclass(frozen=True)
class Body:
    """A closed jaxpr whose calls are replaced by their equations, without what nothing needs.

    `remat`: how derivatives are to recompute it, if a call asked for that: arguments of `jax.checkpoint`.
    """

    source: _jaxpr.Jaxpr
    constvars: tuple[Any, ...]
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]
    eqns: tuple[Any, ...]
    remat: Mapping[str, Any] | None

    @classmethod
    def of(cls, source: _jaxpr.Jaxpr) -> Body:
        top, inliner = source.jaxpr, _Inliner()
        outs = inliner.run(top, {})
        eqns = _live(inliner.eqns, outs)
        return cls(source, tuple(top.constvars), tuple(top.invars), tuple(outs), eqns, inliner.remat)

    def as_fun(self, eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> _jaxpr.Flat:
        """Some of the equations as a function."""
        fun = _jaxpr.as_fun(_jaxpr.assemble(eqns, inputs, outputs, self.source))
        return fun if self.remat is None else jax.checkpoint(fun, **self.remat)

    def work(self, eqn: Any) -> float:
        """Equations that one run of the equation evaluates."""
        return work(_jaxpr.assemble([eqn], (), (), self.source))

    def within(self, eqn: Any) -> Iterator[Any]:
        """The equation and all equations inside it."""
        return _jaxpr.equations(_jaxpr.assemble([eqn], (), (), self.source))


def is_literal(atom: Any) -> bool:
    """Whether an equation's input (or a jaxpr's output) is a constant written in place."""
    return isinstance(atom, jec.Literal)


def variables(atoms: Sequence[Any]) -> list[Any]:
    """The variables among these, literals left out."""
    return [a for a in atoms if not isinstance(a, jec.Literal)]


def apply(eqn: Any, operands: Sequence[Any], **params: Any) -> Any:
    """What the equation's primitive makes of other operands, with changed parameters."""
    with eqn.ctx.manager:
        return eqn.primitive.bind(*operands, **{**eqn.params, **params})


class _Inliner:
    """Collects equations under fresh names, because two calls may share one inner jaxpr."""

    def __init__(self) -> None:
        self.eqns: list[Any] = []
        self.remat: Mapping[str, Any] | None = None

    def run(self, jaxpr: Any, names: dict[Any, Any]) -> list[Any]:
        """Adds a jaxpr whose inputs go by other names; returns what its outputs are called."""

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, jec.Literal) else names.get(atom, atom)

        for eqn in jaxpr.eqns:
            invars = [read(v) for v in eqn.invars]
            if _is_plain_call(eqn):
                if "policy" in eqn.params and self.remat is None:
                    self.remat = {name: eqn.params[name] for name in ("policy", "prevent_cse")}
                inner = _jaxpr.bodies(eqn)[0].jaxpr
                outs = self.run(inner, dict(zip(inner.invars, invars, strict=True)))
            else:
                outs = [jec.Var(v.aval) for v in eqn.outvars]
                self.eqns.append(eqn.replace(invars=invars, outvars=outs))
            names.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]


def _is_plain_call(eqn: Any) -> bool:
    if eqn.primitive.name not in _CALLS or _jaxpr.bodies(eqn)[0].consts:
        return False
    params = eqn.params
    asked = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    if any(type(s).__name__ != "UnspecifiedValue" for s in asked) or params.get("compiler_options_kvs"):
        return False
    mesh = params.get("ctx_mesh")
    # What a derivative recomputes must not be computed ahead of it.
    return (mesh is None or mesh.empty) and not params.get("differentiated")


def _live(eqns: Sequence[Any], roots: Sequence[Any]) -> tuple[Any, ...]:
    wanted, kept = set(variables(roots)), []
    for eqn in reversed(eqns):
        if not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(variables(eqn.invars))
    return tuple(kept[::-1])
