"""Parts of a jaxpr cut out by variable: what computes one value of the loop's body, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoloop import _jaxpr
from autoloop._atoms import live


def names(jaxpr: _jaxpr.Jaxpr) -> tuple[list[Any], list[Any], list[Any]]:
    """(constants, inputs, outputs) of a closed jaxpr, as it names them; outputs may be literals."""
    opened = jaxpr.jaxpr
    return list(opened.constvars), list(opened.invars), list(opened.outvars)


def slice_to(jaxpr: _jaxpr.Jaxpr, outputs: Sequence[Any]) -> _jaxpr.Jaxpr:
    """The equations that `outputs` need, closed over no constants: (constants, inputs) -> outputs."""
    constants, inputs, _ = names(jaxpr)
    kept, _ = live(_jaxpr.direct_equations(jaxpr), outputs)
    return _jaxpr.assemble(kept, [*constants, *inputs], outputs, jaxpr)


# ---------------------------------------------------------------- one value of a body


@dataclass(frozen=True)
class Place:
    """A variable of a body: the equations whose calls must be entered to find it, and its name there."""

    path: tuple[int, ...]
    variable: Any


@dataclass(frozen=True)
class Slice:
    """What computes one variable of a body: a chain of jaxprs, one for each call to be entered."""

    steps: tuple[tuple[_jaxpr.Jaxpr, tuple[Any, ...]], ...]

    @classmethod
    def of(cls, jaxpr: _jaxpr.Jaxpr, place: Place) -> Slice:
        """The slice of a closed jaxpr that computes the variable at `place`."""
        steps = []
        for index in place.path:
            eqn = _jaxpr.direct_equations(jaxpr)[index]
            steps.append((slice_to(jaxpr, eqn.invars), tuple(jaxpr.consts)))
            (jaxpr,) = _jaxpr.bodies(eqn)
        steps.append((slice_to(jaxpr, [place.variable]), tuple(jaxpr.consts)))
        return cls(tuple(steps))

    def __call__(self, values: Sequence[Any]) -> Any:
        """The variable's value for these inputs of the body, in a trace."""
        for jaxpr, consts in self.steps:
            values = _jaxpr.as_fun(jaxpr)(*consts, *values)
        return values[0]

    @property
    def exact(self) -> bool:
        """Whether it rounds nothing: then it has the same value wherever XLA places and fuses it."""
        return all(not _rounds(eqn) for jaxpr, _ in self.steps for eqn in _jaxpr.equations(jaxpr))


# What these do to floating-point numbers has one right answer, however they are fused. Conversions
# are not among them: XLA may leave out a pair of them (its "excess precision").
_EXACT = frozenset(
    (
        *("abs", "and", "broadcast_in_dim", "clamp", "concatenate", "copy", "dynamic_slice", "eq", "ge"),
        *("expand_dims", "gt", "is_finite", "jit", "le", "lt", "max", "min", "ne", "neg", "not", "or"),
        *("pjit", "reduce_max", "reduce_min", "reshape", "rev", "select_n", "sign", "slice", "squeeze"),
        *("stop_gradient", "transpose"),
    )
)


def _rounds(eqn: Any) -> bool:
    if eqn.primitive.name in _EXACT:
        return False
    kinds = {getattr(getattr(v.aval, "dtype", None), "kind", "V") for v in (*eqn.invars, *eqn.outvars)}
    return not kinds <= set("bui")
