"""Programs whose outer loops run in Python: compiled pieces, and the host code that strings them.

Decides how such a program is compiled ahead of its first run (piece by piece, each apart), and that
per iteration nothing happens on the host but the calls of compiled pieces: slices of xs are taken
and ys are written inside them, buffers donated, so that nothing is copied or stacked at the end.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from autoloop import _jaxpr, _parts
from autoloop._jaxpr import jec
from autoloop._pace import Pace

Values = Sequence[Any]


@dataclass
class Cost:
    """What compiling a program took, added up over its pieces.

    Attributes:
        trace_s: seconds of tracing and lowering.
        compile_s: seconds of compiling.
        peak_bytes: largest of the pieces' arguments, outputs and temporaries.
        lazy: whether some part compiles only while it runs, so that `compile_s` misses it.
    """

    trace_s: float = 0.0
    compile_s: float = 0.0
    peak_bytes: int = 0
    lazy: bool = False

    def lower(self, jitted: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Traces and lowers `jitted` for these arguments; returns what is lowered."""
        start = time.perf_counter()
        lowered = jitted.trace(*args, **kwargs).lower()
        self.trace_s += time.perf_counter() - start
        return lowered

    def compile(self, lowered: Any) -> Any:
        """Compiles what is lowered; returns what is compiled."""
        start = time.perf_counter()
        compiled = lowered.compile()
        self.compile_s += time.perf_counter() - start
        self.peak_bytes = max(self.peak_bytes, memory_bytes(compiled))
        return compiled


def memory_bytes(compiled: Any) -> int:
    """Device memory that a run of a compiled program needs, 0 where the back end does not tell."""
    stats = compiled.memory_analysis()
    if stats is None:
        return 0
    held = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return int(held - stats.alias_size_in_bytes)


class Runnable(Protocol):
    """A part of a host program, from flat values to flat values."""

    def prepare(self, specs: Values, cost: Cost) -> list[Any]:
        """Compiles for inputs like `specs` (arrays or `ShapeDtypeStruct`s); returns its outputs' specs."""

    def __call__(self, *values: Any) -> list[Any]:
        """Runs."""


def _without_donation(jaxpr: _jaxpr.Jaxpr) -> _jaxpr.Jaxpr:
    """The same program, the calls that it dispatches giving up none of their inputs."""
    eqns = [_keeping(eqn) for eqn in _jaxpr.inner(jaxpr).eqns]
    return jec.ClosedJaxpr(_jaxpr.inner(jaxpr).replace(eqns=eqns), jaxpr.consts)


def _keeping(eqn: Any) -> Any:
    if any(eqn.params.get("donated_invars", ())):
        return eqn.replace(params={**eqn.params, "donated_invars": (False,) * len(eqn.params["donated_invars"])})
    if eqn.primitive.name not in _jaxpr.CALLS or "donated_invars" in eqn.params:  # a jit runs as one program
        return eqn
    return eqn.replace(params=_jaxpr.with_bodies(eqn, [_without_donation(body) for body in _jaxpr.bodies(eqn)]))


class Piece:
    """A stretch of the program as one compiled program. `donate` names flat inputs to give up."""

    def __init__(
        self,
        fun: _jaxpr.Flat,
        name: str,
        donate: Sequence[int] = (),
        options: Sequence[tuple[str, str]] = (),
        keep_unused: bool = False,
    ) -> None:
        def piece(*values: Any) -> list[Any]:
            return list(fun(*values))

        piece.__name__ = piece.__qualname__ = f"autoloop_{name}"
        self.run: Callable[..., list[Any]] = jax.jit(
            piece,
            donate_argnums=tuple(donate),
            keep_unused=keep_unused,
            compiler_options=compiler_options(options),
        )

    def prepare(self, specs: Values, cost: Cost) -> list[Any]:
        specs = [spec_of(s) for s in specs]
        compiled = cost.compile(cost.lower(self.run, *specs))
        outs = self.run.eval_shape(*specs)  # type: ignore[attr-defined]  # a jitted function has it
        if all(getattr(s, "sharding", None) is None for s in specs):
            return list(outs)
        shardings = jax.tree.leaves(compiled.output_shardings)
        return [spec(o, s) for o, s in zip(outs, shardings, strict=True)]

    def __call__(self, *values: Any) -> list[Any]:
        return self.run(*values)


def compiler_options(options: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    """XLA options as `jax.jit` takes them: numbers as numbers."""
    return {name: int(v) if v.isdecimal() else v for name, v in options} or None


class Eager:
    """A stretch of the program operation by operation: each is dispatched, and compiled, by itself."""

    def __init__(self, jaxpr: _jaxpr.Jaxpr) -> None:
        self._jaxpr = jaxpr
        # Dispatched by itself, a call inside the body would really consume what it says it donates.
        self._fun = _jaxpr.as_fun(_without_donation(jaxpr))

    def prepare(self, specs: Values, cost: Cost) -> list[Any]:
        cost.lazy = True
        return [_jaxpr.struct(a) for a in _jaxpr.out_avals(self._jaxpr)]

    def __call__(self, *values: Any) -> list[Any]:
        return list(self._fun(*values))


class Chain:
    """Parts of a block, run one after the other; values that nothing reads again are let go."""

    def __init__(self, jaxpr: _jaxpr.Jaxpr, parts: Sequence[tuple[_parts.Part, Runnable]]) -> None:
        self._jaxpr = jaxpr
        self._parts = tuple(parts)
        self._wires = _parts.Wires(jaxpr, self._parts, _parts.bare)

    def prepare(self, specs: Values, cost: Cost) -> list[Any]:
        parts = [(part, functools.partial(_prepare, runnable, cost)) for part, runnable in self._parts]
        return _parts.Wires(self._jaxpr, parts).run(specs)

    def __call__(self, *values: Any) -> list[Any]:
        return self._wires.run(values)


def _prepare(runnable: Runnable, cost: Cost, *specs: Any) -> list[Any]:
    return runnable.prepare(specs, cost)


def spec(aval: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """What a piece is compiled for: shape, dtype, weak type, and the sharding of placed data."""
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak, sharding=sharding)


def spec_of(value: Any) -> Any:
    """The spec of an argument: its sharding counts only if the user placed it somewhere."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    array = jnp.asarray(value)
    placed = getattr(array, "committed", False)
    return spec(jax.typeof(array), array.sharding if placed else None)


# ---------------------------------------------------------------- parts that loops are made of


def starter(scan: _jaxpr.Scan) -> Piece:
    """(consts, init, xs) -> (iterations done, carry..., ys...): fresh buffers that steps may donate.

    The carry is copied, so that a step never consumes a buffer of the user's, nor one buffer twice. Consts
    and xs are not read, but they say on which devices buffers are made.
    """
    _, carry, _ = scan.split_inputs(_jaxpr.in_avals(scan.body))
    _, y = scan.split_outputs(_jaxpr.out_avals(scan.body))

    def start(*values: Any) -> list[Any]:
        _, init, _ = scan.split_inputs(values)
        fresh = [jnp.copy(_jaxpr.conform(v, a)) for v, a in zip(init, carry, strict=True)]
        return [jnp.int32(0), *fresh, *(_parts.empty(a, scan.length) for a in y)]

    return Piece(start, "start", keep_unused=True)


def position(scan: _jaxpr.Scan, done: Any, count: int = 1) -> Any:
    """Where the next `count` iterations lie on the leading axis, `done` of them having run."""
    return scan.length - count - done if scan.reverse else done


def take_one(xs: Values, index: Any) -> list[Any]:
    """Each x of one iteration, in a trace."""
    return [lax.dynamic_index_in_dim(x, index, 0, keepdims=False) for x in xs]


def put_one(ys: Values, y: Values, index: Any) -> list[Any]:
    """Stacked outputs with one iteration's written, in a trace; their weak types stay, so steps are one program."""
    updated = [lax.dynamic_update_index_in_dim(a, b, index, 0) for a, b in zip(ys, y, strict=True)]
    return _jaxpr.conform_all(updated, map(jax.typeof, ys))


def recast(scan: _jaxpr.Scan, avals: Sequence[Any]) -> Piece | None:
    """A piece that gives a carry the weak types of `avals`; None where a body keeps them anyway.

    A body may take a weak carry and return a strong one. A step must return what it takes.
    """
    _, taken, _ = scan.split_inputs(_jaxpr.in_avals(scan.body))
    given, _ = scan.split_outputs(scan.out_avals)
    if all(a.weak_type == b.weak_type for a, b in zip(taken, given, strict=True)):
        return None
    return Piece(lambda *carry: _jaxpr.conform_all(carry, avals), "recast")


class SteppedLoop:
    """A Python loop around a body that is not one compiled program: it slices, runs it, writes.

    Takes and returns the flat values of the scan equation: (consts, init, xs) -> (carry, ys).
    """

    def __init__(self, scan: _jaxpr.Scan, body: Runnable, pace: Pace | None = None) -> None:
        self._scan, self._body, self._pace = scan, body, pace
        self._start = starter(scan)
        _, ys = scan.split_outputs(scan.out_avals)
        self._take = Piece(self._take_x, "take")
        carry_avals, _ = scan.split_outputs(scan.out_avals)
        self._taken = recast(scan, scan.split_inputs(_jaxpr.in_avals(scan.body))[1])
        self._given = recast(scan, carry_avals)
        self._put = Piece(self._put_y, "put", donate=range(1 + len(ys)))

    def _take_x(self, done: Any, *xs: Any) -> list[Any]:
        return take_one(xs, position(self._scan, done))

    def _put_y(self, done: Any, *values: Any) -> list[Any]:
        half = len(values) // 2
        index = position(self._scan, done)
        return [done + 1, *put_one(values[:half], values[half:], index)]

    def prepare(self, specs: Values, cost: Cost) -> list[Any]:
        consts, _, xs = self._scan.split_inputs(specs)
        done, *state = self._start.prepare(specs, cost)
        carry, ys = self._scan.split_outputs(state)
        if self._scan.length:
            x = self._take.prepare([done, *xs], cost)
            outs = self._body.prepare([*consts, *carry, *x], cost)
            new, y = self._scan.split_outputs(outs)
            self._put.prepare([done, *ys, *y], cost)
            if self._taken is not None:
                self._taken.prepare(new, cost)
        if self._given is not None:
            carry = self._given.prepare(carry, cost)
        return [*carry, *ys]

    def __call__(self, *values: Any) -> list[Any]:
        scan = self._scan
        consts, _, xs = scan.split_inputs(values)
        done, *state = self._start(*values)
        carry, ys = scan.split_outputs(state)
        if self._pace is not None:
            self._pace.begin()
        for _ in range(scan.length):
            x = self._take(done, *xs)
            carry, y = scan.split_outputs(self._body(*consts, *carry, *x))
            carry = carry if self._taken is None else self._taken(*carry)
            done, *ys = self._put(done, *ys, *y)
            if self._pace is not None:
                self._pace.ran(1, (done, carry, ys))
        carry = carry if self._given is None else self._given(*carry)
        return [*carry, *ys]
