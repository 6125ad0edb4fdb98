"""What is known of each value in a loop's body before it runs, perhaps under an assumption.

Decides when a value is one of the body's inputs unchanged, or the same number everywhere; which
inputs it reads; and which conditions choose it. Assuming that a condition has a certain value in all
its elements, selects and conds that follow it are decided, and what was not known becomes known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autoloop import _jaxpr
from autoloop._atoms import is_literal, literal_value
from autoloop._forms.until._slices import Place, names

Path = tuple[int, ...] | None  # None: in a branch, which need not run, so that nothing there is a condition


@dataclass(frozen=True)
class Guard:
    """A condition that chooses from a number of cases, one of which is an input of the body or uniform."""

    place: Place
    cases: int
    same: int | None


@dataclass(frozen=True)
class Fact:
    """What is known of one value.

    Attributes:
        reads: positions of the body's inputs that it is computed from.
        same: position of the input that it equals, but for `shift`.
        shift: what was added to that input, modulo the range of its integer type.
        uniform: the whole number that all its elements equal; 0 and 1 for booleans.
        roots: for a condition: the variables it repeats, inverts or combines, itself first.
        guards: the conditions that choose it.
        number: equal for values that are computed alike from equal values.
    """

    reads: frozenset[int] = frozenset()
    same: int | None = None
    shift: int = 0
    uniform: int | None = None
    roots: tuple[Place, ...] = ()
    guards: tuple[Guard, ...] = ()
    number: int = -1

    @property
    def plain(self) -> bool:
        """Whether it is known what this value is."""
        return self.uniform is not None or (self.same is not None and not self.shift)


@dataclass(frozen=True)
class Assumption:
    """That all elements of the variable at `place` equal `value`."""

    place: Place
    value: int


@dataclass(frozen=True)
class Reading:
    """The facts about a body's inputs, its outputs, and the condition assumed (if one was)."""

    inputs: tuple[Fact, ...]
    outputs: tuple[Fact, ...]
    condition: Fact | None


def read_body(body: _jaxpr.Jaxpr, assumed: Assumption | None = None) -> Reading:
    """Derives the facts of a body, given an assumption that may hold when an iteration starts."""
    reader = _Reader(assumed)
    _, invars, _ = names(body)
    inputs = [
        reader.placed(Place((), var), Fact(frozenset({i}), same=i, number=reader.number_of(("input", i))))
        for i, var in enumerate(invars)
    ]
    outputs = reader.run(body, inputs, ())
    return Reading(tuple(inputs), tuple(outputs), reader.condition)


# ---------------------------------------------------------------- one rule for each primitive


def _reads(facts: Iterable[Fact]) -> frozenset[int]:
    return frozenset[int]().union(*(f.reads for f in facts))


def _kind(atom: Any) -> str:
    # bool "b", signed "i", unsigned "u"; typed keys, tokens and references have no such letter.
    return str(getattr(getattr(atom.aval, "dtype", None), "kind", "V"))


def _same_value(eqn: Any, facts: Sequence[Fact]) -> Fact:
    return facts[0]


def _reshaped(eqn: Any, facts: Sequence[Fact]) -> Fact:
    unmoved = eqn.primitive.name != "transpose" and eqn.params.get("dimensions") is None
    if unmoved and eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape:
        return facts[0]
    return Fact(facts[0].reads, uniform=facts[0].uniform, roots=facts[0].roots)


def _converted(eqn: Any, facts: Sequence[Fact]) -> Fact:
    (fact,), (old,), (new,) = facts, eqn.invars, eqn.outvars
    if old.aval.dtype == new.aval.dtype:  # only the weak type changes
        return fact
    if _kind(old) not in "bui" or _kind(new) not in "bui":
        return Fact(fact.reads)
    uniform = fact.uniform
    if uniform is not None and _kind(new) == "b":
        uniform = int(uniform != 0)
    elif uniform is not None and not 0 <= uniform < 128:  # may not fit the new type
        uniform = None
    return Fact(fact.reads, uniform=uniform, roots=fact.roots)


def _not(eqn: Any, facts: Sequence[Fact]) -> Fact:
    if _kind(eqn.outvars[0]) != "b":
        return Fact(facts[0].reads)
    uniform = None if facts[0].uniform is None else 1 - facts[0].uniform
    return Fact(facts[0].reads, uniform=uniform, roots=facts[0].roots)


def _and_or(eqn: Any, facts: Sequence[Fact]) -> Fact:
    if _kind(eqn.outvars[0]) != "b":
        return Fact(_reads(facts))
    deciding = int(eqn.primitive.name == "or")
    known = [f.uniform for f in facts]
    uniform = deciding if deciding in known else None if None in known else 1 - deciding
    return Fact(_reads(facts), uniform=uniform, roots=tuple(r for f in facts for r in f.roots))


def _compared(eqn: Any, facts: Sequence[Fact]) -> Fact:
    left, right = (f.uniform for f in facts)
    if left is None or right is None:
        return Fact(_reads(facts))
    return Fact(_reads(facts), uniform=int((left == right) == (eqn.primitive.name == "eq")))


def _added(eqn: Any, facts: Sequence[Fact]) -> Fact:
    pairs, out, sign = list(zip(facts, eqn.invars, strict=True)), eqn.outvars[0], -1
    if eqn.primitive.name == "add":
        pairs.sort(key=lambda pair: pair[0].uniform is not None)
        sign = 1
    (base, atom), (step, _) = pairs
    # Integers only: -0.0 + 0.0 is another number than -0.0.
    fits = _kind(out) in "ui" and base.same is not None and atom.aval.shape == out.aval.shape
    if not fits or step.uniform is None:
        return Fact(_reads(facts))
    return Fact(base.reads, same=base.same, shift=base.shift + sign * step.uniform)


def _reduced(eqn: Any, facts: Sequence[Fact]) -> Fact:
    # Nothing follows from what is assumed of no elements at all.
    uniform = facts[0].uniform if eqn.invars[0].aval.size else None
    return Fact(facts[0].reads, uniform=uniform)


def _selected(eqn: Any, facts: Sequence[Fact]) -> Fact:
    which, *cases = facts
    return _chosen(which, cases)


def _chosen(which: Fact, cases: Sequence[Fact]) -> Fact:
    if which.uniform is not None and 0 <= which.uniform < len(cases):
        return cases[which.uniform]
    if cases[0].plain and len({(c.same, c.shift, c.uniform) for c in cases}) == 1:
        return cases[0]
    plain = [c for c in cases if c.plain]
    guards = [Guard(root, len(cases), c.same) for c in plain for root in which.roots]
    guards += [g for c in cases for g in c.guards]
    return Fact(which.reads | _reads(cases), guards=tuple(dict.fromkeys(guards)))


_Rule = Callable[[Any, Sequence[Fact]], Fact]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("copy", "stop_gradient", "name", "sharding_constraint"), _same_value),
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose"), _reshaped),
    **dict.fromkeys(("and", "or"), _and_or),
    **dict.fromkeys(("eq", "ne"), _compared),
    **dict.fromkeys(("add", "sub"), _added),
    **dict.fromkeys(("reduce_and", "reduce_or"), _reduced),
    "convert_element_type": _converted,
    "not": _not,
    "select_n": _selected,
}
# Values that these compute from equal values are equal: so are conditions that are written twice.
_NUMBERED = frozenset(
    (
        *("abs", "add", "and", "broadcast_in_dim", "convert_element_type", "div", "eq", "expand_dims", "ge"),
        *("gt", "integer_pow", "is_finite", "le", "lt", "max", "min", "mul", "ne", "neg", "not", "or"),
        *("reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_sum", "reshape", "select_n", "sign"),
        *("slice", "sqrt", "square", "squeeze", "sub", "transpose"),
    )
)


# ---------------------------------------------------------------- a whole body


@dataclass
class _Reader:
    """Goes through a body in order, equation by equation, into calls and branches."""

    assumed: Assumption | None
    condition: Fact | None = field(default=None, init=False)
    numbers: dict[Any, int] = field(default_factory=dict, init=False)
    places: dict[int, Place] = field(default_factory=dict, init=False)

    def number_of(self, key: Any) -> int:
        """A number for what `key` describes, the same at every call."""
        return self.numbers.setdefault(key, len(self.numbers))

    def placed(self, place: Place, fact: Fact, combines: bool = False) -> Fact:
        """`fact` about the variable at `place`, as a condition and with what is assumed of it."""
        if _kind(place.variable) not in "bui":
            return fact
        first = self.places.setdefault(fact.number, place)
        if combines or not fact.roots:  # else it repeats a condition, and goes by that one's place
            fact = replace(fact, roots=(first, *fact.roots))
        if self.assumed is None or first != self.assumed.place:
            return fact
        self.condition = self.condition or fact
        return replace(fact, uniform=self.assumed.value)

    def run(self, jaxpr: _jaxpr.Jaxpr, inputs: Sequence[Fact], path: Path) -> list[Fact]:
        """Facts about a jaxpr's outputs from those about its inputs."""
        constants, invars, outvars = names(jaxpr)
        fresh = [Fact(number=self.number_of(var)) for var in constants]
        env = dict(zip([*constants, *invars], [*fresh, *inputs], strict=True))
        for index, eqn in enumerate(_jaxpr.direct_equations(jaxpr)):
            facts = [self._look_up(env, atom) for atom in eqn.invars]
            outs = self._equation(eqn, facts, None if path is None else (*path, index))
            for var, fact in zip(eqn.outvars, outs, strict=True):
                if fact.number < 0:
                    fact = replace(fact, number=self._number(eqn, facts))
                if path is not None:
                    fact = self.placed(Place(path, var), fact, eqn.primitive.name in ("and", "or"))
                env[var] = fact
        return [self._look_up(env, atom) for atom in outvars]

    def _look_up(self, env: Mapping[Any, Fact], atom: Any) -> Fact:
        if not is_literal(atom):
            return env[atom]
        value = literal_value(atom)
        if np.ndim(value):
            return Fact(number=self.number_of(id(value)))
        number = self.number_of((repr(value), atom.aval.dtype, atom.aval.weak_type))
        return Fact(uniform=int(value) if _kind(atom) in "bui" else None, number=number)

    def _number(self, eqn: Any, facts: Sequence[Fact]) -> int:
        name = eqn.primitive.name
        if name not in _NUMBERED:
            return self.number_of(object())  # not by its variable: two calls may share a jaxpr
        params = str(eqn.params) if eqn.params else ""
        return self.number_of((name, params, *(f.number for f in facts)))

    def _equation(self, eqn: Any, facts: list[Fact], path: Path) -> Sequence[Fact]:
        name, bodies = eqn.primitive.name, _jaxpr.bodies(eqn)
        if name in _jaxpr.CALLS and bodies and len(_jaxpr.in_avals(bodies[0])) == len(facts):
            return self.run(bodies[0], facts, path)
        if name == "cond":
            return self._cond(bodies, facts)
        if name == "optimization_barrier":
            return facts
        if name in _RULES:
            return [_RULES[name](eqn, facts)]
        return [Fact(_reads(facts))] * len(eqn.outvars)

    def _cond(self, branches: Sequence[_jaxpr.Jaxpr], facts: Sequence[Fact]) -> list[Fact]:
        which, *operands = facts
        results = [self.run(branch, operands, None) for branch in branches]
        return [_chosen(which, cases) for cases in zip(*results, strict=True)]
