"""Finds the loops of a traced program and says what is known about each before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from autoloop import _chain, _jaxpr, _outline


@dataclass(frozen=True)
class Loop:
    """One `scan` equation of a traced program.

    Attributes:
        path: `(0,)` is the first loop at top level, `(0, 1)` the second loop inside it; `jit`,
            `remat`, `cond` and `while` on the way add nothing.
        length: trip count.
        reverse: whether it runs from the last iteration to the first.
        unroll: body copies per step, as the user wrote it.
        num_consts: inputs that every iteration reads unchanged.
        num_carry: values handed from one iteration to the next.
        num_xs: inputs of which each iteration reads its own slice.
        num_ys: outputs of which each iteration writes its own slice.
        carry_bytes: bytes of the carry.
        stacked_bytes: bytes of all xs and ys.
        equations: equations in one body, inner loops counted once, not unrolled.
        work: equations that one run of the whole program evaluates in this loop: the trip counts of
            this loop and of all around it times the body's work.
        on_spine: whether a Python loop could run it: every loop around it could too, and only calls
            that run exactly once (`jit`, `remat`, custom derivatives) stand between.
        effects: side effects of the body, empty for a pure one.
        chain: elementwise equations by which an iteration lengthens the longest chain through the carry.
        scan: what the equation means, with the body's jaxpr, for forms that look into it.
    """

    path: tuple[int, ...]
    length: int
    reverse: bool
    unroll: int
    num_consts: int
    num_carry: int
    num_xs: int
    num_ys: int
    carry_bytes: int
    stacked_bytes: int
    equations: int
    work: float
    on_spine: bool
    effects: tuple[str, ...]
    chain: int
    scan: _jaxpr.Scan = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The path as plans print it, for example `0/1`."""
        return path_text(self.path)


def path_text(path: tuple[int, ...]) -> str:
    """`(0, 1)` as `0/1`."""
    return "/".join(map(str, path))


def find_loops(block: _outline.Block) -> tuple[Loop, ...]:
    """All loops of an outlined program, outer before inner, in the order of the program."""
    return tuple(_find(block, times=1.0, on_spine=True))


def _find(block: _outline.Block, times: float, on_spine: bool) -> Iterator[Loop]:
    for node in block.nodes:
        if node.path is not None:
            loop = _describe(node, times, on_spine)
            yield loop
            yield from _find(node.blocks[0], times * max(loop.length, 1), on_spine)
        else:
            for inner in node.blocks:
                yield from _find(inner, times, on_spine and node.kind in _jaxpr.CALLS)


def _describe(node: _outline.Node, times: float, on_spine: bool) -> Loop:
    scan = node.scan
    _, carry, xs = scan.split_inputs(scan.in_avals)
    _, ys = scan.split_outputs(scan.out_avals)
    assert node.path is not None
    return Loop(
        path=node.path,
        length=scan.length,
        reverse=scan.reverse,
        unroll=scan.unroll,
        num_consts=scan.num_consts,
        num_carry=scan.num_carry,
        num_xs=len(xs),
        num_ys=len(ys),
        carry_bytes=sum(map(num_bytes, carry)),
        stacked_bytes=sum(map(num_bytes, [*xs, *ys])),
        equations=sum(1 for _ in _jaxpr.equations(scan.body)),
        work=times * scan.length * max(work(scan.body), 1.0),
        on_spine=on_spine,
        effects=_jaxpr.effects(scan.body),
        chain=_chain.through(scan),
        scan=scan,
    )


def num_bytes(aval: _jaxpr.Aval) -> int:
    """Bytes of one value (a typed key counts what its dtype says)."""
    return int(math.prod(aval.shape)) * int(getattr(aval.dtype, "itemsize", 1))


def work(jaxpr: _jaxpr.Jaxpr) -> float:
    """Equations that one run of a jaxpr evaluates: loops count once per iteration."""
    total = 0.0
    for eqn in _jaxpr.direct_equations(jaxpr):
        inner = sum(work(body) for body in _jaxpr.bodies(eqn))
        trips = _jaxpr.read_scan(eqn).length if eqn.primitive.name == "scan" else 1
        total += 1 + trips * inner
    return total
