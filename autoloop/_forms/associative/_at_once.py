"""The emission: every variable of the body in all iterations at once, step by step of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoloop import _jaxpr, _parts
from autoloop._carries import Counter
from autoloop._forms.associative._linear import Pair, Ring, Rules, Stack, apply, as_fun
from autoloop._forms.associative._schedule import Schedule, Solved
from autoloop._jaxpr import jec


class AllAtOnce:
    """One loop being emitted: the values of its variables in all iterations."""

    def __init__(self, scan: _jaxpr.Scan, schedule: Schedule, values: Sequence[Any]) -> None:
        self._scan, self._schedule, self._body = scan, schedule, schedule.flat.jaxpr
        top = self._body.jaxpr
        values = _jaxpr.conform_all(values, [v.aval for v in top.invars])
        _, self._init, _ = scan.split_inputs(values)
        self._inputs = dict(zip(top.invars, values, strict=True))
        fixed = scan.num_consts + scan.num_carry
        self._env = {v: Stack(c) for v, c in zip(top.constvars, self._body.consts, strict=True)}
        self._env |= {v: Stack(value, k >= fixed) for k, (v, value) in enumerate(self._inputs.items())}
        # Positions of the first and the last iteration.
        self._first, self._last = (scan.length - 1, 0) if scan.reverse else (0, scan.length - 1)

    def run(self) -> list[Any]:
        """The loop's flat outputs."""
        finals: list[Any] = [self._start(index) for index in range(self._scan.num_carry)]
        for part in self._schedule.steps:
            self._evaluate(part.eqns)
            for solved in part.solved:
                finals[solved.index] = self._solve(solved)
        return [*finals, *(self._stacked(self._read(y)) for y in self._schedule.y)]

    def _start(self, index: int) -> Any:
        """The final value of a carry that counts; the init of any other, final if passed through."""
        var, role, init = self._schedule.carry[index], self._schedule.roles[index], self._init[index]
        if not isinstance(role, Counter):
            return init
        times = jnp.arange(self._scan.length)
        times = times[::-1] if self._scan.reverse else times
        self._env[var] = Stack(jax.vmap(lambda t: role.at(init, self._inputs, t))(times), True)
        return role.at(init, self._inputs, jnp.uint32(self._scan.length))

    def _read(self, atom: Any) -> Stack:
        return Stack(_parts.literal(atom)) if isinstance(atom, jec.Literal) else self._env[atom]

    def _stacked(self, stack: Stack) -> Any:
        value = stack.value
        return value if stack.many else jnp.broadcast_to(value, (self._scan.length, *value.shape))

    def _evaluate(self, eqns: Sequence[Any]) -> None:
        """Equations whose inputs are known; what is the same in all iterations is computed once."""
        many = {v for v, stack in self._env.items() if stack.many}
        fixed, moving = [], []
        for eqn in eqns:
            if any(not isinstance(v, jec.Literal) and v in many for v in eqn.invars):
                moving.append(eqn)
                many.update(eqn.outvars)
            else:
                fixed.append(eqn)
        for group in (fixed, moving):
            outs = [v for e in group for v in e.outvars]
            read = {v for e in group for v in e.invars if not isinstance(v, jec.Literal)}
            inputs = [v for v in self._env if v in read]
            done = apply(as_fun(group, inputs, outs, self._body), *(self._env[v] for v in inputs))
            self._env |= {v: Stack(value, done.many) for v, value in zip(outs, done.value, strict=True)}

    def _solve(self, solved: Solved) -> Any:
        """Binds a carry before and after each iteration; returns it after the last."""
        var, new = self._schedule.carry[solved.index], self._schedule.new[solved.index]
        if solved.ring is None:
            after = self._stacked(self._read(new))
        else:
            parts = self._parts(solved, solved.ring)
            if solved.final_only and list(parts) == ["b"]:  # a sum whose terms nothing else reads
                return solved.ring.total(parts["b"])
            after = lax.associative_scan(solved.ring.combine, parts, reverse=self._scan.reverse)["b"]
            self._env[new] = Stack(_jaxpr.conform(after, new.aval), True)
        init = jnp.expand_dims(self._init[solved.index], 0)
        pieces = [after[1:], init] if self._scan.reverse else [init, after[:-1]]
        self._env[var] = Stack(_jaxpr.conform(jnp.concatenate(pieces), var.aval), True)
        return after[self._last]

    def _parts(self, solved: Solved, ring: Ring) -> dict[str, Any]:
        """The recurrence's a, b, cut of all iterations, with the init in the first iteration's b.

        An a product of all iterations up to the t-th is then never used, so it may overflow.
        """
        var, new = self._schedule.carry[solved.index], self._schedule.new[solved.index]
        init = self._init[solved.index]
        rules, pairs = Rules(ring, init, self._body), {var: Pair()}
        for eqn in solved.path:
            pairs[eqn.outvars[0]] = rules.step(eqn, [self._operand(v, pairs) for v in eqn.invars])
        pair = pairs[new]
        found = {"b": pair.b or rules.zero(init.shape), "a": pair.a, "cut": pair.cut}
        parts = {name: self._stacked(stack) for name, stack in found.items() if stack is not None}
        first = {name: value[self._first] for name, value in parts.items()}
        start = ring.combine({**first, "b": init}, first)["b"]
        return {**parts, "b": lax.dynamic_update_index_in_dim(parts["b"], start, self._first, 0)}

    def _operand(self, atom: Any, pairs: dict[Any, Pair]) -> Stack | Pair:
        if not isinstance(atom, jec.Literal) and atom in pairs:
            return pairs[atom]
        return self._read(atom)
