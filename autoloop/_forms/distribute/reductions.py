"""Carries that only accumulate: how to find them, and one reduction over all iterations instead.

A sum over iterations is moved through what is linear, down to matrix products, of which the iteration
axis becomes one more contracted axis: the sum of x_t' g_t is one product, not a batch of products and
a sum. That is how `jax.grad` accumulates the gradient of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from autoloop import _jaxpr
from autoloop._atoms import variables
from autoloop._forms.distribute._ir import apply
from autoloop._forms.distribute.graph import Facts
from autoloop._forms.distribute.weights import is_matrix_product

_SUMS = frozenset({"add", "sub", "add_any"})
_FAMILY = {**dict.fromkeys(_SUMS, "add"), **{name: name for name in ("mul", "max", "min", "and", "or")}}
_DEPTH = 100  # equations from a sum down to a product; a body may be a long unrolled loop
_LINEAR = frozenset({"neg", "transpose", "reshape", "squeeze", "expand_dims", "copy", "mul", "div"})


@dataclass(frozen=True)
class Term:
    """A variable whose values of all iterations are accumulated."""

    var: Any
    subtracted: bool


@dataclass(frozen=True)
class Reduction:
    """A carry that accumulates terms and is read by nothing else.

    Attributes:
        carry: its position.
        op: the primitive that accumulates: add, mul, max, min, and, or.
        terms: what it accumulates.
        absorbed: equations, by position, that are evaluated on sums over all iterations.
        rounds: whether another order may give another result.
    """

    carry: int
    op: str
    terms: tuple[Term, ...]
    absorbed: tuple[int, ...]
    rounds: bool


def find_reductions(facts: Facts) -> dict[int, Reduction]:
    """The reductions of a body, by carry."""
    on_cycle: dict[int, list[int]] = {}
    for k, cycle in enumerate(facts.cycle_of_eqn):
        if cycle is not None:
            on_cycle.setdefault(cycle, []).append(k)
    alone = [k for k, c in enumerate(facts.cycle_of_carry) if c == k and facts.cycle_of_carry.count(k) == 1]
    found = (_reduction(facts, k, on_cycle.get(k, [])) for k in alone)
    return {r.carry: r for r in found if r is not None}


def _reduction(facts: Facts, carry: int, eqns: Sequence[int]) -> Reduction | None:
    var, terms, families = facts.carry[carry], list[Term](), set[str]()
    if not _may_reorder(var.aval.dtype):
        return None
    along = var
    for k in eqns:
        eqn = facts.body.eqns[k]
        if not _only_strengthens(facts, eqn, along):
            term = _term(facts, eqn, along)
            if term is None:
                return None
            terms.append(term)
            families.add(_FAMILY[eqn.primitive.name])
        along = eqn.outvars[0]
    if len(families) != 1 or facts.uses[along] != 1:
        return None
    (op,) = families
    absorbed = {k for t in terms for k in _absorb(facts, t.var)} if op == "add" else set()
    rounds = op in ("add", "mul") and jnp.issubdtype(var.aval.dtype, jnp.inexact)
    return Reduction(carry, op, tuple(terms), tuple(sorted(absorbed)), rounds)


def _term(facts: Facts, eqn: Any, accumulated: Any) -> Term | None:
    """What an equation adds to the accumulated value, if that is all it does with it."""
    name = eqn.primitive.name
    if name not in _FAMILY or facts.uses[accumulated] != 1 or accumulated not in eqn.invars:
        return None
    left, right = eqn.invars
    other = right if left is accumulated else left
    if facts.is_fixed(other) or (name == "sub" and other is left):
        return None
    avals = [v.aval for v in (other, accumulated, eqn.outvars[0])]
    same = len({(a.shape, a.dtype) for a in avals}) == 1
    return Term(other, name == "sub") if same else None


def _only_strengthens(facts: Facts, eqn: Any, accumulated: Any) -> bool:
    """Whether an equation only makes a weak type strong."""
    same = eqn.primitive.name == "convert_element_type" and eqn.invars[0] is accumulated
    return same and facts.uses[accumulated] == 1 and eqn.outvars[0].aval.dtype == accumulated.aval.dtype


def _may_reorder(dtype: Any) -> bool:
    """Half-precision sums depend on their order in the first digits."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return bool(jnp.finfo(dtype).bits >= 32)
    return jnp.issubdtype(dtype, jnp.integer) or dtype == np.bool_


# ---------------------------------------------------------------- sums moved into products


def _absorb(facts: Facts, var: Any, depth: int = _DEPTH) -> set[int]:
    """Equations below a summed variable through which the sum can move, down to matrix products."""
    k = facts.maker.get(var) if depth else None
    if k is None or facts.uses[var] != 1 or facts.cycle_of_eqn[k] is not None or facts.is_fixed(var):
        return set()
    eqn = facts.body.eqns[k]
    moving = [v for v in variables(eqn.invars) if not facts.is_fixed(v)]
    if not _may_reorder(var.aval.dtype):
        return set()
    if _is_product(eqn) and len(moving) > 1:
        return {k}
    if any(not _may_reorder(v.aval.dtype) for v in moving):
        return set()
    if is_matrix_product(eqn):
        return {k, *_absorb(facts, moving[0], depth - 1)}
    if eqn.primitive.name in _SUMS and len(moving) == 2:
        below = [_absorb(facts, v, depth - 1) for v in moving]
        return {k}.union(*below) if any(below) else set()
    if _is_linear(eqn, moving):
        absorbed = _absorb(facts, moving[0], depth - 1)
        return {k, *absorbed} if absorbed else set()
    return set()


def _is_product(eqn: Any) -> bool:
    """Whether it is a sum of products, to which more terms can be added along an axis."""
    if eqn.primitive.name == "conv_general_dilated":
        return bool(eqn.params["feature_group_count"] == 1 and eqn.params["batch_group_count"] == 1)
    return is_matrix_product(eqn) and eqn.params.get("out_sharding") is None


def _is_linear(eqn: Any, moving: Sequence[Any]) -> bool:
    name = eqn.primitive.name
    if len(moving) != 1 or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
        return False
    return name in _LINEAR and (name != "div" or eqn.invars[0] is moving[0])


@dataclass(frozen=True)
class Totals:
    """Sums over all iterations of variables of a body.

    Attributes:
        facts: what is known of the body.
        stack: the values of a variable in all iterations.
        value: the value of a variable or literal that is the same in all iterations.
        length: the number of iterations.
    """

    facts: Facts
    stack: Callable[[Any], Any]
    value: Callable[[Any], Any]
    length: int

    def run(self, reduction: Reduction, init: Any) -> Any:
        """The carry after the last iteration."""
        totals: dict[Any, Any] = {}
        for k in reduction.absorbed:
            eqn = self.facts.body.eqns[k]
            totals[eqn.outvars[0]] = self._total_of(eqn, totals)
        result = init
        for term in reduction.terms:
            total = totals[term.var] if term.var in totals else self._reduced(reduction.op, term.var)
            result = lax.sub(result, total) if term.subtracted else _COMBINE[reduction.op](result, total)
        return _jaxpr.conform(result, self.facts.carry[reduction.carry].aval)

    def _total_of(self, eqn: Any, totals: Mapping[Any, Any]) -> Any:
        moving = [v for v in eqn.invars if not self.facts.is_fixed(v)]
        if _is_product(eqn) and len(moving) > 1:
            return self._merged_convolution(eqn) if "rhs_dilation" in eqn.params else self._merged(eqn)
        values = {v: self.value(v) for v in variables(eqn.invars) if self.facts.is_fixed(v)}
        for v in moving:
            values[v] = totals[v] if v in totals else self._reduced("add", v)
        return self.facts.body.as_fun([eqn], list(values), eqn.outvars)(*values.values())[0]

    def _merged(self, eqn: Any) -> Any:
        """One product that contracts the iteration axis too."""
        stacks, sides = [self.stack(v) for v in eqn.invars], (0, 1)
        if stacks[0].size > stacks[1].size:  # XLA copies its left operand into another layout
            sides = (1, 0)
        contracted, batch = eqn.params["dimension_numbers"]
        numbers = (
            tuple((0, *(axis + 1 for axis in contracted[side])) for side in sides),
            tuple(tuple(axis + 1 for axis in batch[side]) for side in sides),
        )
        product = apply(eqn, [stacks[side] for side in sides], dimension_numbers=numbers)
        return product if sides == (0, 1) else _free_axes_swapped(product, eqn)

    def _merged_convolution(self, eqn: Any) -> Any:
        """One convolution of `length` times as many input features: the sum goes over them."""
        numbers = eqn.params["dimension_numbers"]
        operands = []
        for v, axis in zip(eqn.invars, (numbers.lhs_spec[1], numbers.rhs_spec[1]), strict=True):
            merged = [n * self.length if k == axis else n for k, n in enumerate(v.aval.shape)]
            operands.append(jnp.moveaxis(self.stack(v), 0, axis).reshape(merged))
        return apply(eqn, operands)

    def _reduced(self, op: str, var: Any) -> Any:
        values = self.stack(var)
        if op in ("and", "or") and values.dtype != np.bool_:
            neutral = np.array(0 if op == "or" else -1).astype(values.dtype)
            return lax.reduce(values, neutral, _COMBINE[op], (0,))
        if op in ("add", "mul"):
            return _REDUCE[op](values, axis=0, dtype=values.dtype)
        return _REDUCE[op](values, axis=0)


def _free_axes_swapped(product: Any, eqn: Any) -> Any:
    """The result of a product with its operands swapped, as that of the equation."""
    (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
    left = len(eqn.invars[0].aval.shape) - len(contracted) - len(batch)
    common, axes = range(len(batch)), range(len(batch), product.ndim)
    right = len(axes) - left
    return product.transpose(*common, *axes[right:], *axes[:right])


_COMBINE: Mapping[str, Callable[..., Any]] = {
    "add": lax.add,
    "mul": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}
_REDUCE: Mapping[str, Callable[..., Any]] = {
    "add": jnp.sum,
    "mul": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
    "and": jnp.all,
    "or": jnp.any,
}
