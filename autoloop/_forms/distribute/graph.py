"""The dependence graph of a body, condensed: which equations and carries form a recurrence together.

Method: Allen and Kennedy, *Optimizing Compilers for Modern Architectures*, chapters 2 and 5. Within
an iteration a jaxpr has no cycles, so every cycle goes through carries: it is enough to know which
carries each variable reads and which it feeds, as bit masks, and to close that relation over carries.
"""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from autoloop import _jaxpr
from autoloop._atoms import is_literal, variables
from autoloop._forms.distribute._ir import Body
from autoloop._forms.distribute.weights import why_pinned


@dataclass(frozen=True)
class Component:
    """Equations (by position) and carries that can't be parted, or a single one of either.

    Attributes:
        index: position in a topological order.
        cyclic: whether iterations depend on earlier ones through it.
        reads: variables of other components.
        writes: variables that others may read: results, and the carries' values before an iteration.
    """

    index: int
    eqns: tuple[int, ...]
    carries: tuple[int, ...]
    cyclic: bool
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]


@dataclass(frozen=True)
class Step:
    """What a counting carry grows by every iteration; exact, even where it wraps around."""

    amount: Any
    down: bool


class Facts:
    """A body's variables: who makes, reads and carries them, and what is the same in all iterations."""

    def __init__(self, scan: _jaxpr.Scan, body: Body) -> None:
        self.scan, self.body = scan, body
        consts, self.carry, self.xs = scan.split_inputs(body.invars)
        self.new, self.y = scan.split_outputs(body.outvars)
        self.passed = frozenset(k for k, v in enumerate(self.carry) if self.new[k] is v)
        self.maker = {v: k for k, e in enumerate(body.eqns) for v in e.outvars}
        self.uses = Counter(v for e in body.eqns for v in variables(e.invars))
        self.uses.update(variables(body.outvars))
        self.pinned = {k: reason for k, e in enumerate(body.eqns) if (reason := why_pinned(body, e))}
        self.fixed = {*body.constvars, *consts, *(self.carry[k] for k in self.passed)}
        for k, eqn in enumerate(body.eqns):
            if k not in self.pinned and self.fixed.issuperset(variables(eqn.invars)):
                self.fixed.update(eqn.outvars)
        self.carried = {v: k for k, v in enumerate(self.carry) if k not in self.passed}
        self.cycle_of_eqn, self.cycle_of_carry = _cycles(self)

    def is_fixed(self, atom: Any) -> bool:
        """Whether a value is the same in all iterations."""
        return is_literal(atom) or atom in self.fixed

    def step(self, carry: int, eqns: tuple[int, ...]) -> Step | None:
        """How a carry counts, if the one equation on its way says so."""
        if len(eqns) != 1:
            return None
        eqn, var = self.body.eqns[eqns[0]], self.carry[carry]
        if eqn.primitive.name not in ("add", "sub") or not jnp.issubdtype(var.aval.dtype, jnp.integer):
            return None
        left, right = eqn.invars
        down = eqn.primitive.name == "sub"
        if right is var and not down:
            left, right = right, left
        same_shape = eqn.outvars[0].aval.shape == var.aval.shape
        # What equations compute is not at hand where the counter is needed.
        given = is_literal(right) or (right in self.fixed and right not in self.maker)
        return Step(right, down) if left is var and same_shape and given else None


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _cycles(facts: Facts) -> tuple[list[int | None], list[int | None]]:
    """For each equation and carry, the lowest carry of the cycles that it lies on, or None."""
    reads, feeds = _read_masks(facts), _feed_masks(facts)
    reach = [0 if is_literal(v) else reads.get(v, 0) for v in facts.new]  # the carries each new one reads
    for middle, mask in enumerate(reach):
        if mask:
            reach = [r | reach[middle] if r >> middle & 1 else r for r in reach]
    lowest: list[int | None] = [None] * len(reach)
    for k, mask in enumerate(reach):
        if k not in facts.passed and mask >> k & 1:
            lowest[k] = next(j for j in _bits(mask) if reach[j] >> k & 1)
    return [_cycle_of(e, reads, feeds, lowest) for e in facts.body.eqns], lowest


def _cycle_of(eqn: Any, reads: Mapping[Any, int], feeds: Mapping[Any, int], lowest: list[int | None]) -> int | None:
    fed = {lowest[k] for v in eqn.outvars for k in _bits(feeds.get(v, 0))} - {None}
    read = (lowest[k] for v in variables(eqn.invars) for k in _bits(reads.get(v, 0)))
    return next((cycle for cycle in read if cycle in fed), None)


def _read_masks(facts: Facts) -> dict[Any, int]:
    masks = {v: 1 << k for v, k in facts.carried.items()}
    for eqn in facts.body.eqns:
        mask = 0
        for v in variables(eqn.invars):
            mask |= masks.get(v, 0)
        masks.update(dict.fromkeys(eqn.outvars, mask))
    return masks


def _feed_masks(facts: Facts) -> dict[Any, int]:
    masks: dict[Any, int] = {}
    for k, v in enumerate(facts.new):
        if not is_literal(v) and k not in facts.passed:
            masks[v] = masks.get(v, 0) | 1 << k
    for eqn in reversed(facts.body.eqns):
        mask = 0
        for v in eqn.outvars:
            mask |= masks.get(v, 0)
        for v in variables(eqn.invars):
            masks[v] = masks.get(v, 0) | mask
    return masks


# ---------------------------------------------------------------- condensed

_Key = tuple[str, int]


class Graph:
    """The components of a body in topological order, and what each needs and feeds.

    `absorbed` maps equations to the carry whose component they are to join.
    """

    def __init__(self, facts: Facts, absorbed: Mapping[int, int]) -> None:
        self.facts = facts
        members = self._members(absorbed)
        self._key_of = {v: key for key, parts in members.items() for v in self._writes(*parts)}
        needs = {key: self._needs(key, *members[key]) for key in members}
        order = list(graphlib.TopologicalSorter(needs).static_order())
        self.position = {key: index for index, key in enumerate(order)}
        self.components = tuple(self._component(i, key, *members[key]) for i, key in enumerate(order))
        self.before = [frozenset(self.position[n] for n in needs[key]) for key in order]
        self.after: list[list[int]] = [[] for _ in order]
        for index, before in enumerate(self.before):
            for earlier in before:
                self.after[earlier].append(index)

    def _members(self, absorbed: Mapping[int, int]) -> dict[_Key, tuple[list[int], list[int]]]:
        facts, members = self.facts, dict[_Key, tuple[list[int], list[int]]]()
        for k, cycle in enumerate(facts.cycle_of_eqn):
            cycle = absorbed.get(k, cycle)
            key = ("eqn", k) if cycle is None else ("cycle", cycle)
            members.setdefault(key, ([], []))[0].append(k)
        for k, cycle in enumerate(facts.cycle_of_carry):
            if k not in facts.passed:
                key = ("carry", k) if cycle is None else ("cycle", cycle)
                members.setdefault(key, ([], []))[1].append(k)
        return members

    def _writes(self, eqns: list[int], carries: list[int]) -> list[Any]:
        made = [v for k in eqns for v in self.facts.body.eqns[k].outvars]
        return [*made, *(self.facts.carry[k] for k in carries)]

    def _reads(self, eqns: list[int], carries: list[int]) -> list[Any]:
        read = [v for k in eqns for v in variables(self.facts.body.eqns[k].invars)]
        return [*read, *variables([self.facts.new[k] for k in carries])]

    def _needs(self, key: _Key, eqns: list[int], carries: list[int]) -> dict[_Key, None]:
        found = (self._key_of.get(v, key) for v in self._reads(eqns, carries))
        return {other: None for other in found if other != key}

    def _component(self, index: int, key: _Key, eqns: list[int], carries: list[int]) -> Component:
        own = self._writes(eqns, carries)
        reads = dict.fromkeys(self._reads(eqns, carries))
        others = tuple(v for v in reads if self._key_of.get(v) != key)
        return Component(index, tuple(eqns), tuple(carries), key[0] == "cycle", others, tuple(own))

    def writer(self, var: Any) -> int | None:
        """The component that writes a variable; None for consts and xs."""
        key = self._key_of.get(var)
        return None if key is None else self.position[key]
