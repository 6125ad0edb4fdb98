"""The emission: group after group, each variable either the same in all iterations or stacked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoloop import _jaxpr, _parts
from autoloop._atoms import is_literal, variables
from autoloop._forms.distribute.graph import Component
from autoloop._forms.distribute.groups import Group, Schedule
from autoloop._forms.distribute.reductions import Totals


@dataclass(frozen=True)
class Stack:
    """A variable's value in all iterations: one for all, or `many` along a leading axis."""

    value: Any
    many: bool = False


class Distributed:
    """One distributed loop, or a block of its iterations, being emitted."""

    def __init__(self, schedule: Schedule, length: int, values: Sequence[Any]) -> None:
        self._schedule, self._facts, self._body = schedule, schedule.facts, schedule.body
        self._scan, self._length = schedule.facts.scan, length
        invars, source = self._body.invars, self._body.source
        values = _jaxpr.conform_all(values, [v.aval for v in invars])
        _, self._init, _ = self._scan.split_inputs(values)
        fixed = self._scan.num_consts + self._scan.num_carry
        self._env = {v: Stack(c) for v, c in zip(self._body.constvars, source.consts, strict=True)}
        for k, (v, value) in enumerate(zip(invars, values, strict=True)):
            if v not in self._facts.carried:
                self._env[v] = Stack(value, k >= fixed)
        self._finals = dict(enumerate(self._init))

    def run(self) -> list[Any]:
        """The flat outputs: the carry after the last iteration, and ys."""
        for c in self._schedule.graph.components:
            if self._schedule.is_counter(c):
                self._finals[c.carries[0]] = self._count(c, jnp.uint32(self._length))
        for group in self._schedule.groups:
            if group.serial:
                self._run_serial(group)
            else:
                self._run_at_once(group)
        carry = [_jaxpr.conform(self._finals[k], v.aval) for k, v in enumerate(self._facts.carry)]
        return [*carry, *(self._stacked(y) for y in self._facts.y)]

    # ------------------------------------------------------------ values

    def _value(self, atom: Any) -> Any:
        """A value that is the same in all iterations."""
        return _parts.literal(atom) if is_literal(atom) else self._env[atom].value

    def _stacked(self, atom: Any) -> Any:
        if not is_literal(atom) and self._env[atom].many:
            return self._env[atom].value
        value = self._value(atom)
        return jnp.broadcast_to(value, (self._length, *value.shape))

    def _read(self, inputs: Sequence[Any]) -> list[Any]:
        # A stack may have lost its weak type on the way.
        return [_jaxpr.conform(self._env[v].value, v.aval) for v in inputs]

    def _last(self, stack: Any) -> Any:
        return lax.index_in_dim(stack, 0 if self._scan.reverse else -1, 0, keepdims=False)

    # ------------------------------------------------------------ all iterations at once

    def _run_at_once(self, group: Group) -> None:
        pending: list[Component] = []
        for c in group.members:
            if c.carries:
                self._evaluate(pending, group)
                pending = []
                self._solve(c, group)
            else:
                pending.append(c)
        self._evaluate(pending, group)

    def _evaluate(self, components: Sequence[Component], group: Group) -> None:
        """Components without carries; what is the same in all iterations is computed once."""
        for is_fixed in (True, False):
            part = {c.index: c for c in components if self._schedule.is_fixed(c) is is_fixed}
            others = (c for c in group.members if c.index not in part)
            wanted = {*group.outputs, *(v for c in others for v in c.reads)}
            positions = sorted(k for c in part.values() for k in c.eqns)
            self._apply(positions, [v for c in part.values() for v in c.writes if v in wanted])

    def _apply(self, positions: Sequence[int], outputs: Sequence[Any]) -> None:
        """Evaluates equations, batched if any of their inputs is stacked."""
        if not outputs:
            return
        eqns = [self._body.eqns[k] for k in positions]
        inputs = _inputs(eqns)
        fun = self._body.as_fun(eqns, inputs, outputs)
        many = [self._env[v].many for v in inputs]
        if any(many):
            fun = jax.vmap(fun, in_axes=[0 if m else None for m in many], axis_size=self._length)
        results = fun(*self._read(inputs))
        self._env |= {v: Stack(value, any(many)) for v, value in zip(outputs, results, strict=True)}

    def _solve(self, c: Component, group: Group) -> None:
        """A carry, for all iterations."""
        (carry,) = c.carries
        var, init = self._facts.carry[carry], self._init[carry]
        reduction = self._schedule.reductions.get(carry) if c.cyclic else None
        if reduction is not None:
            totals = Totals(self._facts, self._stacked, self._value, self._length)
            self._finals[carry] = totals.run(reduction, init)
        elif c.cyclic:
            times = jnp.arange(self._length)
            times = times[::-1] if self._scan.reverse else times
            self._env[var] = Stack(jax.vmap(lambda t: self._count(c, t))(times), True)
            self._apply(c.eqns, self._body.eqns[c.eqns[0]].outvars)
        else:
            new = self._facts.new[carry]
            fixed = self._facts.is_fixed(new)
            self._finals[carry] = self._value(new) if fixed else self._last(self._stacked(new))
            if self._facts.uses[var]:
                self._env[var] = Stack(self._shifted(init, new), True)

    def _count(self, c: Component, times: Any) -> Any:
        """A counter's value after so many iterations."""
        init = self._init[c.carries[0]]
        step = self._facts.step(c.carries[0], c.eqns)
        assert step is not None
        moved = self._value(step.amount) * lax.convert_element_type(times, init.dtype)
        return init - moved if step.down else init + moved

    def _shifted(self, init: Any, new: Any) -> Any:
        """A carry before each iteration, which is what the iteration before it wrote."""
        after, first = self._stacked(new), jnp.expand_dims(init, 0)
        pieces = [after[1:], first] if self._scan.reverse else [first, after[:-1]]
        return jnp.concatenate(pieces)

    # ------------------------------------------------------------ a scan

    def _run_serial(self, group: Group) -> None:
        carries = sorted(k for c in group.members for k in c.carries)
        eqns = [self._body.eqns[k] for k in sorted(k for c in group.members for k in c.eqns)]
        before = [self._facts.carry[k] for k in carries]
        after = [self._facts.new[k] for k in carries]
        inputs = _inputs(eqns, before, [*after, *group.outputs])
        fixed = [v for v in inputs if not self._env[v].many]
        xs = [v for v in inputs if self._env[v].many]
        fun = self._body.as_fun(eqns, [*fixed, *before, *xs], [*after, *group.outputs])
        constants, avals = self._read(fixed), [v.aval for v in before]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            outs = fun(*constants, *carry, *x)
            return _jaxpr.conform_all(outs[: len(carry)], avals), list(outs[len(carry) :])

        last, ys = lax.scan(
            step,
            [self._init[k] for k in carries],
            self._read(xs),
            length=self._length,
            reverse=self._scan.reverse,
            unroll=max(min(self._scan.unroll, self._length), 1),
        )
        self._finals.update(zip(carries, last, strict=True))
        self._env |= {v: Stack(y, True) for v, y in zip(group.outputs, ys, strict=True)}


def _inputs(eqns: Iterable[Any], own: Sequence[Any] = (), outputs: Sequence[Any] = ()) -> list[Any]:
    """The variables that equations read from outside; outputs may be inputs handed on."""
    eqns = list(eqns)
    made = {*own, *(v for e in eqns for v in e.outvars)}
    read = [v for e in eqns for v in variables(e.invars)]
    return list(dict.fromkeys(v for v in [*read, *variables(outputs)] if v not in made))


def run_in_blocks(schedule: Schedule, block: int, values: Sequence[Any]) -> list[Any]:
    """The loop distributed within blocks of iterations, which run one after the other.

    Full blocks come first in the loop's own direction, then the remainder.
    """
    scan = schedule.facts.scan
    consts, init, xs = scan.split_inputs(values)
    init = _jaxpr.conform_all(init, [v.aval for v in schedule.facts.carry])
    rounds, rest = divmod(scan.length, block)
    at = rest if scan.reverse else scan.length - rest
    low, high = [x[:at] for x in xs], [x[at:] for x in xs]
    full, tail = (high, low) if scan.reverse else (low, high)
    blocks = [x.reshape(rounds, block, *x.shape[1:]) for x in full]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        return scan.split_outputs(Distributed(schedule, block, [*consts, *carry, *x]).run())

    carry, ys = lax.scan(step, init, blocks, length=rounds, reverse=scan.reverse)
    ys = [y.reshape(rounds * block, *y.shape[2:]) for y in ys]
    if rest:
        carry, more = scan.split_outputs(Distributed(schedule, rest, [*consts, *carry, *tail]).run())
        pairs = zip(more, ys, strict=True) if scan.reverse else zip(ys, more, strict=True)
        ys = [jnp.concatenate(pair) for pair in pairs]
    return [*carry, *ys]
