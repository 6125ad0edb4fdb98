"""`python(k)`: a Python loop over a jitted step that itself scans k iterations.

k = 1 is the classic: the body is compiled once, by itself. Pays where compiling the whole nest is
the cost, for huge bodies, and on devices where a step takes longer than its dispatch. The carry
and the outputs are donated from step to step, xs are indexed inside the step and ys written in
place, so nothing is copied per iteration on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import jax
from jax import lax

from autoloop import _host, _jaxpr
from autoloop._form import Form, HostSite, Site
from autoloop._loops import Loop
from autoloop._pace import Pace
from autoloop._plan import Parameter

_CHUNKS = (1, 16)


@final
class Python(Form):
    """The Python outer loop."""

    name = "python"
    takes = "NUMBER"
    least: ClassVar[Parameter] = 1
    on_host = True

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        if not isinstance(parameter, int) or not 1 <= parameter <= max(loop.length, 1):
            return f"the iterations per step must be a number from 1 to the length {loop.length}; got {parameter}"
        return None

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        return tuple((k,) for k in _CHUNKS if k < loop.length)

    def dispatches(self, loop: Loop, parameter: Parameter) -> float:
        assert isinstance(parameter, int)
        return math.ceil(loop.length / parameter)

    def holds_host_loops(self, parameter: Parameter) -> bool:
        return parameter == 1

    def build(self, site: HostSite, parameter: Parameter) -> _host.Runnable:
        assert isinstance(parameter, int)
        if site.site is None:
            return _host.SteppedLoop(site.scan, site.compiled, site.pace)
        if site.pace is not None:
            return _WatchedLoop(site.site, parameter, site.options, site.pace)
        return _ChunkedLoop(site.site, parameter, site.options)


class _ChunkedLoop:
    """The scan equation as jitted steps of `chunk` iterations, and one step for the remainder."""

    def __init__(self, site: Site, chunk: int, options: Sequence[tuple[str, str]]) -> None:
        self._options = options
        self._scan, self._body = site.scan, site.body
        self._rounds, rest = divmod(self._scan.length, chunk)
        self._start = _host.starter(self._scan)
        self._step = self._make_step(chunk)
        self._rest = self._make_step(rest) if rest else None
        self._finish = _host.recast(self._scan, self._scan.split_outputs(self._scan.out_avals)[0])

    def _make_step(self, count: int) -> _host.Piece:
        _, ys = self._scan.split_outputs(self._scan.out_avals)

        def step(*values: Any) -> list[Any]:
            return self._run_step(count, values)

        state = range(1 + self._scan.num_carry + len(ys))
        return _host.Piece(step, f"step{count}", donate=state, options=self._options)

    def _run_step(self, count: int, values: Sequence[Any]) -> list[Any]:
        """(done, carry, ys, consts, xs) -> (done, carry, ys), `count` iterations later."""
        scan = self._scan
        state, inputs = self._unpack(values[1:])
        (carry, ys), (consts, xs) = state, inputs
        done = values[0]
        if count == 1:
            index = _host.position(scan, done)
            outs = self._body(*consts, *carry, *_host.take_one(xs, index))
            carry, y = scan.split_outputs(outs)
            return [done + 1, *self._as_taken(carry), *_host.put_one(ys, y, index)]
        index = _host.position(scan, done, count)
        chunk = [lax.dynamic_slice_in_dim(x, index, count, 0) for x in xs]
        carry, part = self._scan_chunk(consts, carry, chunk, count)
        new = [lax.dynamic_update_slice_in_dim(a, b, index, 0) for a, b in zip(ys, part, strict=True)]
        return [done + count, *self._as_taken(carry), *_jaxpr.conform_all(new, map(jax.typeof, ys))]

    def _as_taken(self, carry: list[Any]) -> list[Any]:
        """The carry with the weak types that a step takes, so that all steps are one program."""
        return _jaxpr.conform_all(carry, self._scan.split_inputs(_jaxpr.in_avals(self._scan.body))[1])

    def _scan_chunk(
        self, consts: list[Any], carry: list[Any], chunk: list[Any], count: int
    ) -> tuple[list[Any], list[Any]]:
        scan = self._scan

        def body(state: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            return scan.split_outputs(self._body(*consts, *state, *x))

        unroll = min(scan.unroll, count)
        return lax.scan(body, carry, chunk, count, scan.reverse, unroll)

    def _unpack(self, values: Sequence[Any]) -> tuple[tuple[list[Any], list[Any]], tuple[list[Any], list[Any]]]:
        scan = self._scan
        outs = len(scan.out_avals)
        inputs = list(values[outs:])
        return scan.split_outputs(values[:outs]), (inputs[: scan.num_consts], inputs[scan.num_consts :])

    def prepare(self, specs: Sequence[Any], cost: _host.Cost) -> list[Any]:
        consts, _, xs = self._scan.split_inputs(specs)
        state = self._start.prepare(specs, cost)
        for step in (self._step if self._rounds else None, self._rest):
            if step is not None:
                step.prepare([*state, *consts, *xs], cost)
        carry, ys = self._scan.split_outputs(state[1:])
        return [*(carry if self._finish is None else self._finish.prepare(carry, cost)), *ys]

    def __call__(self, *values: Any) -> list[Any]:
        consts, _, xs = self._scan.split_inputs(values)
        state = self._run(self._start.run(*values), (*consts, *xs))
        if self._finish is None:
            return list(state[1:])
        carry, ys = self._scan.split_outputs(state[1:])
        return [*self._finish(*carry), *ys]

    def _run(self, state: list[Any], inputs: Sequence[Any]) -> list[Any]:
        step = self._step.run
        for _ in range(self._rounds):
            state = step(*state, *inputs)
        return state if self._rest is None else self._rest.run(*state, *inputs)


class _WatchedLoop(_ChunkedLoop):
    """The same for a loop that somebody watches: its pace hears of each step, and may say how long they are."""

    def __init__(self, site: Site, chunk: int, options: Sequence[tuple[str, str]], pace: Pace) -> None:
        super().__init__(site, chunk, options)
        self._chunk, self._pace = chunk, pace
        self._steps = {chunk: self._step}

    def _run(self, state: list[Any], inputs: Sequence[Any]) -> list[Any]:
        left = self._scan.length
        self._pace.begin()
        while left:
            count = self._pace.step(self._chunk, left)
            if count not in self._steps:
                self._steps[count] = self._make_step(count)
            state = self._steps[count].run(*state, *inputs)
            self._pace.ran(count, state)
            left -= count
        return state
