"""Which component runs when: the groups that a loop is distributed into.

Groups alternate: even levels run for all iterations at once, odd levels are scans (typed fusion,
Kennedy and McKinley 1993: as few groups as the dependences allow). Recurrences run in scans; what is
worth a batch runs in batches; cheap work stays in the group that its inputs come from, or goes with
its consumers, into each of them, where that keeps less in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autoloop import _jaxpr
from autoloop._atoms import is_literal, variables
from autoloop._forms.distribute._ir import Body
from autoloop._forms.distribute.graph import Component, Facts, Graph
from autoloop._forms.distribute.reductions import find_reductions
from autoloop._forms.distribute.weights import Weight, weigh
from autoloop._loops import num_bytes


@dataclass(frozen=True)
class Group:
    """Components that run together, in topological order.

    Attributes:
        serial: whether as a scan, else for all iterations at once.
        members: the components.
        outputs: the variables that other groups, or the loop's outputs, need of it.
    """

    serial: bool
    members: tuple[Component, ...]
    outputs: tuple[Any, ...]


class Schedule:
    """A body distributed: `everything` but recurrences is done at once, or only what is heavy."""

    def __init__(self, scan: _jaxpr.Scan, body: _jaxpr.Jaxpr, everything: bool) -> None:
        self.body = Body.of(body)
        self.facts = Facts(scan, self.body)
        self.reductions = find_reductions(self.facts)
        self.graph = Graph(self.facts, {k: r.carry for r in self.reductions.values() for k in r.absorbed})
        self._everything, self._xs = everything, set(self.facts.xs)
        self._components = self.graph.components
        self._light = [self._is_light(c) for c in self._components]
        self._level: list[int | None] = []
        self._roots = self._find_roots()
        self._stacked_anyway = set(variables(self.facts.y))
        self._assign_levels()
        self._last_scan = max((n for n in self._level if n is not None and n % 2), default=0)
        self._places: list[set[int]] = [set() for _ in self._components]
        self._upstream: list[float] = []
        for c in self._components:
            self._upstream.append(self._inputs_of(c))
        self._travels = [level is None for level in self._level]
        self._settle()
        self.groups = self._make_groups()

    # ------------------------------------------------------------ what a component is

    def is_serial(self, c: Component) -> bool:
        """Whether it must run iteration by iteration."""
        if c.cyclic:
            return c.carries[0] not in self.reductions and not self.is_counter(c)
        return any(k in self.facts.pinned for k in c.eqns)

    def is_counter(self, c: Component) -> bool:
        """Whether it is a carry that counts."""
        return c.cyclic and len(c.carries) == 1 and self.facts.step(c.carries[0], c.eqns) is not None

    def is_fixed(self, c: Component) -> bool:
        """Whether it is the same in all iterations."""
        return not c.carries and self.facts.fixed.issuperset(c.writes)

    def weight(self, c: Component) -> Weight:
        """The weight of a component that is no recurrence."""
        if c.carries:
            reduction = self.reductions.get(c.carries[0])
            return Weight.LAYOUT if reduction is None else _weight_of(bool(reduction.absorbed))
        eqn = self.body.eqns[c.eqns[0]]
        first = eqn.invars[0] if eqn.invars else None
        outside = first is None or self.facts.is_fixed(first) or first in self._xs
        return weigh(self.body, eqn, outside)

    def _is_light(self, c: Component) -> bool:
        if self.is_serial(c):
            return False
        weight = self.weight(c)
        return weight is Weight.LAYOUT or (weight is Weight.CHEAP and not self._everything)

    # ------------------------------------------------------------ levels

    def _find_roots(self) -> set[int]:
        """The components that must run somewhere, read or not."""
        roots = {self.graph.writer(v) for v in self.facts.y if not is_literal(v)}
        roots |= {c.index for c in self._components if c.carries and not self.is_counter(c)}
        return {r for r in roots if r is not None}

    def _assign_levels(self) -> None:
        """The earliest level of each component; None for what depends on no other group."""
        for c in self._components:
            levels = [
                level
                for k in self.graph.before[c.index]
                if (level := self._level[k]) is not None and not self.is_fixed(self._components[k])
            ]
            earliest = max(levels, default=None)
            if not self._light[c.index]:
                odd = int(self.is_serial(c))
                earliest = odd if earliest is None else earliest + (earliest % 2 != odd)
            self._level.append(earliest)

    def _settle(self) -> None:
        """Decides for each component in which groups it runs: `_travels`: in those of its consumers."""
        for c in reversed(self._components):
            places = self._places[c.index]
            consumers = set[int]().union(*(self._places[k] for k in self.graph.after[c.index]))
            level = self._delayed(self._level[c.index], consumers)
            self._level[c.index] = level
            if level is not None and c.index not in self._roots and self._light[c.index]:
                self._travels[c.index] = self._saves(c, level, consumers)
            if self._travels[c.index]:
                places |= consumers
                if c.index in self._roots:
                    places.add(self._place_of_root(c))
            elif level is not None:
                places.add(level)

    def _place_of_root(self, c: Component) -> int:
        """Where outputs are made that need no other group: cheap ones in a scan that runs anyway."""
        return 0 if self._everything or self.is_fixed(c) else self._last_scan

    def _delayed(self, level: int | None, consumers: set[int]) -> int | None:
        """What runs in a scan runs in that of its consumers, if it can: then it need not be stacked."""
        if level is None or level % 2 == 0 or not consumers:
            return level
        latest = min(consumers)
        return latest - (latest % 2 == 0)

    def _saves(self, c: Component, level: int, consumers: set[int]) -> bool:
        """Whether running with its consumers only, which are of the other kind, keeps less in memory."""
        if any(place <= level or place % 2 == level % 2 for place in consumers):
            return False
        stay, move = sum(num_bytes(v.aval) for v in c.writes), 0.0
        for v in c.reads:
            writer = self.graph.writer(v)
            if writer is not None and not self._is_kept_anyway(v, writer):
                # What a scan before this batch makes can be made in the scan after it.
                if level % 2 == 0 and (self._level[writer] or 0) % 2:
                    stay += num_bytes(v.aval)
                else:
                    move += self._narrowest(v, writer)
        return stay > move

    def _narrowest(self, var: Any, writer: int) -> float:
        """Bytes to keep for a variable, or for what cheap work computes it from."""
        if self._is_kept_anyway(var, writer):
            return 0
        return min(num_bytes(var.aval), self._upstream[writer])

    def _inputs_of(self, c: Component) -> float:
        """Bytes to keep of what cheap work is computed from, if that is made where it is itself."""
        pairs = [(v, w) for v in c.reads if (w := self.graph.writer(v)) is not None]
        here = (None, self._level[c.index])
        if c.carries or not self._light[c.index] or any(self._level[w] not in here for _, w in pairs):
            return math.inf
        return sum(self._narrowest(v, w) for v, w in pairs)

    def _is_kept_anyway(self, var: Any, writer: int) -> bool:
        if self.facts.is_fixed(var) or self._level[writer] is None:
            return True
        return var in self._stacked_anyway

    # ------------------------------------------------------------ groups

    def _home(self, index: int) -> int | None:
        """The level whose group gives a component's values to others; None if each has its own."""
        if not self._travels[index]:
            return self._level[index]
        if index not in self._roots:
            return None
        return self._place_of_root(self._components[index])

    def _make_groups(self) -> tuple[Group, ...]:
        members: dict[int, list[Component]] = {}
        for c in self._components:
            for place in self._places[c.index]:
                members.setdefault(place, []).append(c)
        needed: dict[int, dict[Any, None]] = {level: {} for level in members}
        reads = [(level, v) for level, group in members.items() for v in _reads(group)]
        for level, v in [*reads, *((None, y) for y in self.facts.y if not is_literal(y))]:
            writer = self.graph.writer(v)
            home = None if writer is None else self._home(writer)
            if home is not None and home != level:
                needed[home][v] = None
        levels = sorted(members)
        return tuple(Group(n % 2 == 1, tuple(members[n]), tuple(needed[n])) for n in levels)

    @property
    def moved(self) -> tuple[Component, ...]:
        """The components that no longer run iteration by iteration, and that it matters for."""
        at_once = {c.index for group in self.groups if not group.serial for c in group.members}
        return tuple(c for c in self._components if c.index in at_once and self._matters(c))

    def _matters(self, c: Component) -> bool:
        weight = self.weight(c)
        if self.is_fixed(c) and weight is not Weight.HEAVY:  # XLA moves it by itself
            return False
        return weight is not Weight.LAYOUT and not self._travels[c.index]

    @property
    def share(self) -> float:
        """The part of the body's equations that leaves the scan; inner loops count once per iteration."""
        at_once = {k for c in self.moved for k in c.eqns}
        works = [self.body.work(eqn) for eqn in self.body.eqns]
        return sum(works[k] for k in at_once) / max(sum(works), 1.0)

    @property
    def parallel(self) -> bool:
        """Whether no recurrence is left."""
        return not any(group.serial for group in self.groups)

    @property
    def is_plain_batch(self) -> bool:
        """Whether no iteration depends on another but by counting."""
        others = [c for c in self._components if c.carries and not self.is_counter(c)]
        read = any(self.facts.uses[self.facts.carry[k]] for c in others for k in c.carries)
        return self.parallel and not read

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """Which equations run at which level: equal for schedules that are the same program."""
        return tuple(tuple(sorted(places)) for places in self._places)

    @property
    def rounds_otherwise(self) -> bool:
        """Whether a sum or product is taken in another order than by the loop."""
        at_once = (c for group in self.groups if not group.serial for c in group.members)
        found = (self.reductions.get(k) for c in at_once if c.cyclic for k in c.carries)
        return any(r is not None and r.rounds for r in found)


def _weight_of(has_product: bool) -> Weight:
    return Weight.HEAVY if has_product else Weight.CHEAP


def _reads(group: list[Component]) -> list[Any]:
    own = {v for c in group for v in c.writes}
    return [v for c in group for v in c.reads if v not in own]
