"""A body as a flat list of equations, and parts of it as functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from autoloop import _jaxpr
from autoloop._atoms import Inliner, is_plain_call, live
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
        eqns, _ = live(inliner.eqns, outs)
        return cls(source, tuple(top.constvars), tuple(top.invars), tuple(outs), tuple(eqns), inliner.remat)

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


def apply(eqn: Any, operands: Sequence[Any], **params: Any) -> Any:
    """What the equation's primitive makes of other operands, with changed parameters."""
    with eqn.ctx.manager:
        return eqn.primitive.bind(*operands, **{**eqn.params, **params})


class _Inliner(Inliner):
    """Looks into all calls that say no more than their equations do, and notes what they ask of derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.remat: Mapping[str, Any] | None = None

    def enters(self, eqn: Any, invars: Sequence[Any]) -> bool:
        if not _says_no_more(eqn):
            return False
        if "policy" in eqn.params and self.remat is None:
            self.remat = {name: eqn.params[name] for name in ("policy", "prevent_cse")}
        return True


def _says_no_more(eqn: Any) -> bool:
    if eqn.primitive.name not in _CALLS or not is_plain_call(eqn) or eqn.params.get("compiler_options_kvs"):
        return False
    mesh = eqn.params.get("ctx_mesh")
    # What a derivative recomputes must not be computed ahead of it.
    return (mesh is None or mesh.empty) and not eqn.params.get("differentiated")
