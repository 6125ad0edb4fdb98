"""`vmap(b)`: a loop without a carried dependence, b iterations at a time as one batched body.

Like `lax.map(..., batch_size=b)`: a scan over batches, and one batch for the remainder; b equal to
the length makes the whole loop one batched body. A carry does not stand in the way if it is only
passed through, if it counts (value = init + step * t), or if each iteration writes it unread. Pays
for small bodies and wide devices; costs the memory of b bodies, and a `cond` whose predicate
differs between iterations runs both branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
from jax import lax

from autoloop import _jaxpr, _parts
from autoloop._atoms import live
from autoloop._carries import PASSED, Counter, carry_roles, carry_texts, flatten, why_not_at_once
from autoloop._form import Form, Site
from autoloop._loops import Loop
from autoloop._plan import Parameter

_BATCHES = (8, 32, 128)

# Calls to look into. Custom derivatives stay whole: a carry that only passes through such a call
# has its derivative changed every iteration.
_CALLS = frozenset({"jit", "pjit", "closed_call", "eval_jaxpr", "remat2", "checkpoint"})


@final
class Vmap(Form):
    """The batched loop."""

    name = "vmap"
    takes = "NUMBER"
    least: ClassVar[Parameter] = 1
    comes_first: ClassVar[bool] = True

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        if not isinstance(parameter, int) or not 1 <= parameter <= max(loop.length, 1):
            return f"the iterations per batch must be a number from 1 to the length {loop.length}; got {parameter}"
        return why_not_at_once(loop) or _why_dependent(loop.scan)

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        if loop.length < 2 or self.why_not(loop, loop.length):
            return ()
        return ((loop.length,), tuple(b for b in _BATCHES if b < loop.length))

    def copies(self, loop: Loop, parameter: Parameter) -> int:
        assert isinstance(parameter, int)
        return 2 if parameter < loop.length and loop.length % parameter else 1

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        assert isinstance(parameter, int)
        _, carry, _ = site.scan.split_inputs(values)
        if not site.scan.length:
            _, ys = site.scan.split_outputs(_jaxpr.out_avals(site.scan.body))
            return [*carry, *(_parts.empty(y, 0) for y in ys)]
        return _Batches(site, values).run(parameter)


def _why_dependent(scan: _jaxpr.Scan) -> str | None:
    _, carry, _ = scan.split_inputs(scan.body.jaxpr.invars)
    flat = flatten(scan.body, carry, _CALLS)
    roles = carry_roles(scan, flat)
    new, y = scan.split_outputs(flat.outvars)
    _, wanted = live(flat.eqns, [*y, *(v for v, role in zip(new, roles, strict=True) if role is None)])
    for index, (var, role) in enumerate(zip(carry, roles, strict=True)):
        if role is None and var in wanted:
            return f"iteration t reads {carry_texts(scan)[index]} written by t-1"
    return None


class _Batches:
    """One loop being emitted: the iterations in the order of the positions they read and write."""

    def __init__(self, site: Site, values: Sequence[Any]) -> None:
        self._site, self._scan = site, site.scan
        self._consts, init, self._xs = site.scan.split_inputs(values)
        invars = site.scan.body.jaxpr.invars
        _, carry, _ = site.scan.split_inputs(invars)
        self._avals = [v.aval for v in carry]
        self._init = _jaxpr.conform_all(init, self._avals)
        self._inputs = dict(zip(invars, [*self._consts, *self._init], strict=False))
        self._roles = carry_roles(site.scan, flatten(site.scan.body, carry, _CALLS))

    def run(self, size: int) -> list[Any]:
        """The loop's flat outputs, `size` iterations at a time."""
        length = self._scan.length
        times = jnp.arange(length)
        inputs = [times[::-1] if self._scan.reverse else times, *self._xs]
        last, ys = self._batch(inputs) if size == length else self._scan_batches(size, inputs)
        return [*self._finals(last), *ys]

    def _batch(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(what the last of these iterations writes to the unread carries, all their ys)."""
        written, ys = jax.vmap(self._one)(*inputs)
        row = 0 if self._scan.reverse else -1
        avals = [a for a, role in zip(self._avals, self._roles, strict=True) if role is None]
        return _jaxpr.conform_all([lax.index_in_dim(w, row, 0, False) for w in written], avals), ys

    def _one(self, time: Any, *x: Any) -> tuple[list[Any], list[Any]]:
        carry = [
            role.at(init, self._inputs, time) if isinstance(role, Counter) else init
            for init, role in zip(self._init, self._roles, strict=True)
        ]
        new, y = self._scan.split_outputs(self._site.body(*self._consts, *carry, *x))
        return [v for v, role in zip(new, self._roles, strict=True) if role is None], y

    def _scan_batches(self, size: int, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Full batches in the loop's own direction, then the remainder, which runs last."""
        scan = self._scan
        rounds, rest = divmod(scan.length, size)
        at = rest if scan.reverse else scan.length - rest
        low, high = [v[:at] for v in inputs], [v[at:] for v in inputs]
        full, tail = (high, low) if scan.reverse else (low, high)
        last = [v for v, role in zip(self._init, self._roles, strict=True) if role is None]
        batches = [v.reshape(rounds, size, *v.shape[1:]) for v in full]
        last, ys = lax.scan(lambda _, batch: self._batch(batch), last, batches, reverse=scan.reverse)
        ys = [y.reshape(rounds * size, *y.shape[2:]) for y in ys]
        if rest:
            last, more = self._batch(tail)
            pairs = zip(more, ys, strict=True) if scan.reverse else zip(ys, more, strict=True)
            ys = [jnp.concatenate(pair) for pair in pairs]
        return last, ys

    def _finals(self, last: Sequence[Any]) -> list[Any]:
        """The carry after the last iteration."""
        todo = list(last)
        length = jnp.uint32(self._scan.length)
        finals = []
        for init, role in zip(self._init, self._roles, strict=True):
            if isinstance(role, Counter):
                finals.append(role.at(init, self._inputs, length))
            else:
                finals.append(init if role == PASSED else todo.pop(0))
        return finals
