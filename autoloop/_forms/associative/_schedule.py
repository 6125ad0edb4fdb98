"""In which order a body's carries are solved, and what can be evaluated for all iterations when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from autoloop import _jaxpr
from autoloop._atoms import live
from autoloop._carries import carry_roles, carry_texts, flatten
from autoloop._forms.associative._linear import AFFINE, MAX, MIN, Ring, why_not_linear
from autoloop._jaxpr import jec

# Calls to look into. Remat and custom derivatives stay whole: equations are evaluated apart from
# each other here, which would lose what those calls ask for.
_CALLS = frozenset({"jit", "pjit"})


@dataclass(frozen=True)
class Solved:
    """A carry known for all iterations: by a scan in `ring`, or because it is written unread.

    `path` holds the equations from its last value to its next. `final_only`: nothing else reads it.
    """

    index: int
    ring: Ring | None = None
    path: tuple[Any, ...] = ()
    final_only: bool = False


@dataclass(frozen=True)
class Step:
    """Equations to evaluate for all iterations at once, and the carries that this solves."""

    eqns: tuple[Any, ...]
    solved: tuple[Solved, ...]


class Schedule:
    """The steps that solve a body, unless `why_not` says which carry can't be solved."""

    def __init__(self, scan: _jaxpr.Scan, body: _jaxpr.Jaxpr) -> None:
        self._names, invars = carry_texts(scan), body.jaxpr.invars
        _, self.carry, _ = scan.split_inputs(invars)
        self.flat = flatten(body, self.carry, _CALLS)
        self.roles = carry_roles(scan, self.flat)
        self.new, self.y = scan.split_outputs(self.flat.outvars)
        self.steps: list[Step] = []
        self._todo = [i for i, role in enumerate(self.roles) if role is None]
        self._known = {*body.jaxpr.constvars, *invars} - {self.carry[i] for i in self._todo}
        self._pending: list[Any] = list(self.flat.eqns)
        self.why_not = self._solve_all()

    @property
    def recurrent(self) -> bool:
        """Whether there is anything to solve."""
        return len(self.steps) > 1

    def _solve_all(self) -> str | None:
        while True:
            eqns = self._take_ready()
            tries = [self._solve(i) for i in self._todo]
            solved = [s for s in tries if isinstance(s, Solved)]
            self.steps.append(Step(tuple(eqns), tuple(solved)))
            if not self._todo:
                return None
            if not solved:
                return str(tries[0])
            for s in solved:
                self._todo.remove(s.index)
                self._known.add(self.carry[s.index])
                if not isinstance(self.new[s.index], jec.Literal):
                    self._known.add(self.new[s.index])

    def _is_known(self, atom: Any) -> bool:
        return isinstance(atom, jec.Literal) or atom in self._known

    def _roots(self, without: int | None = None) -> list[Any]:
        """What is still to be computed, except for one carry."""
        return [*self.y, *(self.new[i] for i in self._todo if i != without)]

    def _take_ready(self) -> list[Any]:
        """Takes what can be evaluated now from the pending equations; drops what nothing needs."""
        missing = [e for e in self._pending if not self._known.issuperset(e.outvars)]
        ready, self._pending = [], []
        for eqn in live(missing, self._roots())[0]:
            if all(map(self._is_known, eqn.invars)):
                ready.append(eqn)
                self._known.update(eqn.outvars)
            else:
                self._pending.append(eqn)
        return ready

    def _solve(self, index: int) -> Solved | str:
        if self._is_known(self.new[index]):
            return Solved(index)
        failures = []
        for ring in (AFFINE, MAX, MIN):
            path, reason = self._follow(index, ring)
            if reason is None:
                return self._found(index, ring, path)
            failures.append((len(path), reason))
        return max(failures, key=lambda f: f[0])[1]  # of the ring that came furthest

    def _found(self, index: int, ring: Ring, path: list[Any]) -> Solved | str:
        var, new = self.carry[index], self.new[index]
        needed, _ = live(path, [new])
        summed = any(e.primitive.name in ring.scales for e in needed)
        if ring is not AFFINE and summed and jnp.issubdtype(var.aval.dtype, jnp.integer):
            return f"the integers of {self._names[index]} might overflow when summed in another order"
        _, read = live(self._pending, self._roots(without=index))
        return Solved(index, ring, tuple(needed), final_only=read.isdisjoint((var, new)))

    def _follow(self, index: int, ring: Ring) -> tuple[list[Any], str | None]:
        """The pending equations that keep a carry linear, and why its next value is not."""
        var, path, name = self.carry[index], [], self._names[index]
        blocked = {
            self.carry[i]: f"{name} depends on {self._names[i]}, which can't be solved before it"
            for i in self._todo
            if i != index
        }
        for eqn in self._pending:
            unknown = [(k, v) for k, v in enumerate(eqn.invars) if not self._is_known(v)]
            reason = next((blocked[v] for _, v in unknown if v in blocked), None)
            reason = reason or why_not_linear(ring, eqn, [k for k, _ in unknown], var.aval, name)
            if reason is None:
                path.append(eqn)
            else:
                blocked.update(dict.fromkeys(eqn.outvars, reason))
        return path, blocked.get(self.new[index])
