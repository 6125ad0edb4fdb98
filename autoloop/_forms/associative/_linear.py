"""Values that are affine in a carry: which equations keep them so, and the two numbers they become.

Instead of +, * there may stand max, + or min, +: what follows holds for any semiring.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoloop import _jaxpr
from autoloop._jaxpr import jec

# Keep every element where it is, as long as the size stays the same.
_LAYOUT = frozenset({"reshape", "squeeze", "broadcast_in_dim", "slice", "convert_element_type", "copy", "copy_p"})
_SUMS = frozenset({"add", "sub", "add_any"})


@dataclass(frozen=True)
class Ring:
    """What stands for + and * in h' = a * h + b, and which primitives those are."""

    plus: Callable[[Any, Any], Any]
    times: Callable[[Any, Any], Any]
    total: Callable[[Any], Any]
    sums: frozenset[str]
    scales: frozenset[str]

    def zero(self, dtype: Any) -> Any:
        """What changes nothing when added."""
        if self.plus is lax.add:
            return 0
        if jnp.issubdtype(dtype, jnp.floating):
            return -math.inf if self.plus is lax.max else math.inf
        limits = jnp.iinfo(dtype)
        return limits.min if self.plus is lax.max else limits.max

    @property
    def one(self) -> int:
        """What changes nothing when multiplied by."""
        return 1 if self.times is lax.mul else 0

    def combine(self, first: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
        """Two runs of iterations as one, each being h -> b where cut, else h -> a * h + b."""
        scaled = self.times(then["a"], first["b"]) if "a" in then else first["b"]
        joined = {"b": self.plus(scaled, then["b"])}
        if "a" in then:
            joined["a"] = self.times(first["a"], then["a"])
        if "cut" in then:  # a = 0 would not do: 0 * nan is nan
            joined["b"] = jnp.where(then["cut"], then["b"], joined["b"])
            joined["cut"] = first["cut"] | then["cut"]
        return joined


AFFINE = Ring(
    plus=lax.add,
    times=lax.mul,
    total=lambda b: jnp.sum(b, 0, dtype=b.dtype),
    sums=_SUMS,
    scales=frozenset({"mul", "div", "neg"}),
)
MAX = Ring(lax.max, lax.add, lambda b: jnp.max(b, 0), sums=frozenset({"max"}), scales=_SUMS)
MIN = Ring(lax.min, lax.add, lambda b: jnp.min(b, 0), sums=frozenset({"min"}), scales=_SUMS)


def why_not_linear(ring: Ring, eqn: Any, slots: Sequence[int], like: Any, carry: str) -> str | None:
    """Why an equation does not keep values a * h + b in these slots as such; `like` is h's aval."""
    name, out, exact = eqn.primitive.name, eqn.outvars[0].aval, jnp.issubdtype(like.dtype, jnp.integer)
    bent = f"{name} makes {carry} neither affine in its last value nor a max or min of sums with it"
    ordered = exact or jnp.issubdtype(like.dtype, jnp.floating)
    if not ordered and (ring is not AFFINE or not jnp.issubdtype(like.dtype, jnp.inexact)):
        return bent
    if name == "integer_pow" and eqn.params["y"] == 1:
        return None
    if name not in (*ring.sums, *ring.scales, *_LAYOUT, "select_n"):
        return bent
    if out.dtype != like.dtype:
        return f"{name} changes the dtype of {carry}"
    if math.prod(out.shape) != math.prod(like.shape) or (name == "reshape" and eqn.params["dimensions"]):
        return f"{name} does not keep the elements of {carry} where they are"
    if name in ring.scales:
        either = name in ("mul", "add", "add_any") and len(slots) == 1
        return None if either or (list(slots) == [0] and not (exact and name == "div")) else bent
    return bent if name == "select_n" and 0 in slots else None


# ---------------------------------------------------------------- with values


@dataclass(frozen=True)
class Stack:
    """One value for all iterations, or, if `many`, one each along a leading axis."""

    value: Any
    many: bool = False


@dataclass(frozen=True)
class Pair:
    """b where cut, else a * h + b; None stands for one, for zero, and for never."""

    a: Stack | None = None
    b: Stack | None = None
    cut: Stack | None = None


Operands = Sequence[Stack | Pair]


def apply(fun: Callable[..., Any], *operands: Stack) -> Stack:
    """`fun` of one iteration's values, for all iterations if an operand has many."""
    values = [o.value for o in operands]
    if not any(o.many for o in operands):
        return Stack(fun(*values))
    return Stack(jax.vmap(fun, [0 if o.many else None for o in operands])(*values), True)


def as_fun(eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], body: Any) -> _jaxpr.Flat:
    """Some equations of `body` as a function, each with its context."""
    return _jaxpr.as_fun(_jaxpr.assemble(eqns, inputs, outputs, body))


@dataclass(frozen=True)
class Rules:
    """Evaluates equations of `body` that `why_not_linear` allows, on pairs of a carry.

    Constants are made like `init`, which may be laid out over a mesh.
    """

    ring: Ring
    init: Any
    body: _jaxpr.Jaxpr

    def step(self, eqn: Any, operands: Operands) -> Pair:
        """What an equation makes of its operands, at least one of which is a pair."""
        if eqn.primitive.name == "select_n":
            return self._select(operands, eqn.outvars[0].aval.shape)
        fresh = [jec.Var(v.aval) for v in eqn.invars]
        run = as_fun([eqn.replace(invars=fresh)], fresh, eqn.outvars, self.body)
        kind = self._sum if eqn.primitive.name in self.ring.sums else self._scale
        return kind(eqn, operands, lambda *values: run(*values)[0])

    def one(self, shape: tuple[int, ...]) -> Stack:
        """What a stands for where it is None."""
        return self._constant(self.ring.one, shape)

    def zero(self, shape: tuple[int, ...]) -> Stack:
        """What b stands for where it is None."""
        return self._constant(self.ring.zero(self.init.dtype), shape)

    def _constant(self, value: Any, shape: tuple[int, ...], dtype: Any = None) -> Stack:
        return Stack(lax.full_like(self.init, value, dtype).reshape(shape))

    def _scale(self, eqn: Any, operands: Operands, run: Callable[..., Any]) -> Pair:
        """An equation that is linear in its one pair: it applies to a and to b."""
        ((slot, pair),) = ((k, o) for k, o in enumerate(operands) if isinstance(o, Pair))

        def with_part(part: Stack) -> Stack:
            return apply(run, *(part if isinstance(o, Pair) else o for o in operands))

        a = pair.a
        if a is not None or eqn.primitive.name in self.ring.scales:
            a = with_part(a or self.one(eqn.invars[slot].aval.shape))
        return Pair(a, pair.b and with_part(pair.b), _reshaped(pair.cut, eqn))

    def _sum(self, eqn: Any, operands: Operands, run: Callable[..., Any]) -> Pair:
        """A sum or difference of two pairs, or of a pair and what does not depend on the carry."""
        pairs = [o for o in operands if isinstance(o, Pair)]
        slots = [(o, v.aval.shape) for o, v in zip(operands, eqn.invars, strict=True)]
        b = apply(run, *((o.b or self.zero(s)) if isinstance(o, Pair) else o for o, s in slots))
        a = None
        if len(pairs) > 1 or pairs[0].a or (eqn.primitive.name == "sub" and operands[1] is pairs[0]):
            a = apply(run, *(self._factor(o, s) if isinstance(o, Pair) else self._nothing(o) for o, s in slots))
        cuts = [p.cut for p in pairs if p.cut]
        both = apply(lambda *c: functools.reduce(jnp.logical_and, c), *cuts) if len(cuts) == len(pairs) else None
        return Pair(a, b, _reshaped(both, eqn))

    def _factor(self, pair: Pair, shape: tuple[int, ...]) -> Stack:
        """A pair's a, spelled out, and zero where it is cut."""
        a = pair.a or self.one(shape)
        return apply(jnp.where, pair.cut, self.zero(shape), a) if pair.cut else a

    def _nothing(self, operand: Stack) -> Stack:
        """Zero like what does not depend on the carry."""
        value = operand.value[0] if operand.many else operand.value
        return Stack(lax.full_like(value, self.ring.zero(value.dtype)))

    def _select(self, operands: Operands, shape: tuple[int, ...]) -> Pair:
        """A case that does not depend on the carry is a cut, whose a is never looked at."""
        which, *cases = operands
        assert isinstance(which, Stack)
        yes, no = self._constant(True, shape, bool), self._constant(False, shape, bool)
        pairs = [c if isinstance(c, Pair) else Pair(b=c, cut=yes) for c in cases]

        def choose(parts: Sequence[Stack | None], default: Stack) -> Stack | None:
            if not any(parts):
                return None
            return apply(lax.select_n, which, *(p or default for p in parts))

        return Pair(
            choose([p.a for p in pairs], self.one(shape)),
            choose([p.b for p in pairs], self.zero(shape)),
            choose([p.cut for p in pairs], no),
        )


def _reshaped(cut: Stack | None, eqn: Any) -> Stack | None:
    return cut and apply(lambda c: c.reshape(eqn.outvars[0].aval.shape), cut)
