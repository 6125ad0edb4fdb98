"""`vmap(b)`: a loop without a carried dependence, b iterations at a time as one batched body.

Like `lax.map(..., batch_size=b)`: a scan over batches, and one batch for the remainder; b equal to
the length makes the whole loop one batched body. A carry does not stand in the way if it is only
passed through, if it counts (value = init + step * t), or if each iteration writes it unread. Pays
for small bodies and wide devices; costs the memory of b bodies, and a `cond` whose predicate
differs between iterations runs both branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jec

from autoloop import _jaxpr, _parts
from autoloop._form import Form, Site
from autoloop._loops import Loop
from autoloop._plan import Parameter

_BATCHES = (16, 64, 256)

# Calls to look into. Custom derivatives stay whole: a carry that only passes through such a call
# has its derivative changed every iteration.
_CALLS = frozenset({"jit", "pjit", "closed_call", "eval_jaxpr", "remat2", "checkpoint"})


# ---------------------------------------------------------------- what a carry does
# TODO move to _jaxpr and _loops: everything down to `_carry_roles` stands in associative.py too.


@dataclass(frozen=True)
class _Flat:
    """A body with the calls that its carry enters replaced by their equations."""

    jaxpr: _jaxpr.Jaxpr
    eqns: tuple[Any, ...]
    outvars: tuple[Any, ...]


def _flatten(jaxpr: _jaxpr.Jaxpr, carry: Iterable[Any], calls: frozenset[str]) -> _Flat:
    inliner = _Inliner(calls, set(carry))
    outvars = inliner.run(jaxpr.jaxpr, {})
    return _Flat(jaxpr, tuple(inliner.eqns), tuple(outvars))


class _Inliner:
    """Collects equations under fresh names, because two calls may share one inner jaxpr."""

    def __init__(self, calls: frozenset[str], touched: set[Any]) -> None:
        self._calls, self._touched = calls, touched
        self.eqns: list[Any] = []

    def run(self, jaxpr: Any, names: dict[Any, Any]) -> list[Any]:
        """Adds a jaxpr whose inputs go by other names; returns what its outputs are called."""

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, jec.Literal) else names.get(atom, atom)

        for eqn in jaxpr.eqns:
            invars = [read(v) for v in eqn.invars]
            is_touched = any(not isinstance(v, jec.Literal) and v in self._touched for v in invars)
            if is_touched and eqn.primitive.name in self._calls and _is_plain_call(eqn):
                inner = _jaxpr.bodies(eqn)[0].jaxpr
                outs = self.run(inner, dict(zip(inner.invars, invars, strict=True)))
            else:
                outs = [jec.Var(v.aval) for v in eqn.outvars]
                self.eqns.append(eqn.replace(invars=invars, outvars=outs))
                self._touched.update(outs if is_touched else ())
            names.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]


def _is_plain_call(eqn: Any) -> bool:
    """Whether a call's equations say all that matters: a jit that asks for shardings says more."""
    asked = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    plain = all(type(s).__name__ == "UnspecifiedValue" for s in asked)
    return plain and not _jaxpr.bodies(eqn)[0].consts


def _live(eqns: Sequence[Any], roots: Iterable[Any]) -> tuple[list[Any], set[Any]]:
    """The equations that `roots` need, and all variables that are read on the way."""
    wanted = {v for v in roots if not isinstance(v, jec.Literal)}
    kept = []
    for eqn in reversed(eqns):
        if not wanted.isdisjoint(eqn.outvars):
            kept.append(eqn)
            wanted.update(v for v in eqn.invars if not isinstance(v, jec.Literal))
    return kept[::-1], wanted


@dataclass(frozen=True)
class _Counter:
    """A carry that grows by the same integer every iteration; exact, even where it wraps around."""

    step: Any
    down: bool

    def at(self, init: Any, inputs: dict[Any, Any], times: Any) -> Any:
        """Its value after so many iterations; `inputs` are the values of the body's inputs."""
        step = _parts.literal(self.step) if isinstance(self.step, jec.Literal) else inputs[self.step]
        moved = step * lax.convert_element_type(times, init.dtype)
        return init - moved if self.down else init + moved


_PASSED = "passed"


def _carry_roles(scan: _jaxpr.Scan, flat: _Flat) -> list[Any]:
    """For each carry `_PASSED`, a `_Counter`, or None if iterations write it some other way."""
    consts, carry, _ = scan.split_inputs(flat.jaxpr.jaxpr.invars)
    outs = flat.outvars[: scan.num_carry]
    makers = {v: e for e in flat.eqns for v in e.outvars}
    invariant = {*consts, *(v for v, out in zip(carry, outs, strict=True) if v is out)}
    roles: list[Any] = []
    for var, out in zip(carry, outs, strict=True):
        maker = None if isinstance(out, jec.Literal) else makers.get(out)
        roles.append(_PASSED if var is out else _counter(var, maker, invariant))
    return roles


def _counter(var: Any, maker: Any, invariant: set[Any]) -> _Counter | None:
    """The carry `var` as a counter, if the equation that makes its next value says so."""
    if maker is None or maker.primitive.name not in ("add", "sub"):
        return None
    if not jnp.issubdtype(var.aval.dtype, jnp.integer) or maker.outvars[0].aval.shape != var.aval.shape:
        return None
    left, right = maker.invars
    down = maker.primitive.name == "sub"
    if right is var and not down:
        left, right = right, left
    if left is var and (isinstance(right, jec.Literal) or right in invariant):
        return _Counter(right, down)
    return None


def _why_not_at_once(loop: Loop) -> str | None:
    """Why no two iterations of this body may run at the same time, whatever its carry does."""
    if loop.effects:
        return f"the body has side effects ({', '.join(loop.effects)}), whose order would change"
    for eqn in _jaxpr.equations(loop.scan.body):
        name = eqn.primitive.name
        if "callback" in name or name.startswith(("ffi_call", "unvmap", "nonbatchable", "rng_uniform")):
            return f"the body holds {name}, which means something else for many iterations at once"
        if name == "rng_bit_generator" or (name.startswith("random_") and _has_odd_key(eqn)):
            return f"the body holds {name} with keys that are not threefry: its bits would change"
        inner = (e for body in _jaxpr.bodies(eqn) for e in _jaxpr.equations(body))
        if name == "cond" and any(e.primitive.name == "while" for e in inner):
            return "the body holds a while inside a cond: it may never end where its branch is not taken"
    return None


def _has_odd_key(eqn: Any) -> bool:
    kinds = {str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "dtype")}
    return any(k.startswith("key<") and k != "key<fry>" for k in kinds)


# ---------------------------------------------------------------- the form


@final
class Vmap(Form):
    """The batched loop."""

    name = "vmap"
    takes = "NUMBER"

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        if not isinstance(parameter, int) or not 1 <= parameter <= max(loop.length, 1):
            return f"the iterations per batch must be a number from 1 to the length {loop.length}; got {parameter}"
        return _why_not_at_once(loop) or _why_dependent(loop.scan)

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
            return [*carry, *(_jaxpr.empty(y, 0) for y in ys)]
        return _Batches(site, values).run(parameter)


def _why_dependent(scan: _jaxpr.Scan) -> str | None:
    _, carry, _ = scan.split_inputs(scan.body.jaxpr.invars)
    flat = _flatten(scan.body, carry, _CALLS)
    roles = _carry_roles(scan, flat)
    new, y = scan.split_outputs(flat.outvars)
    _, wanted = _live(flat.eqns, [*y, *(v for v, role in zip(new, roles, strict=True) if role is None)])
    for index, (var, role) in enumerate(zip(carry, roles, strict=True)):
        if role is None and var in wanted:
            return f"iteration t reads carry {index}, which iteration t-1 wrote"
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
        self._roles = _carry_roles(site.scan, _flatten(site.scan.body, carry, _CALLS))

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
            role.at(init, self._inputs, time) if isinstance(role, _Counter) else init
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
            if isinstance(role, _Counter):
                finals.append(role.at(init, self._inputs, length))
            else:
                finals.append(init if role == _PASSED else todo.pop(0))
        return finals
