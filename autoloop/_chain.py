"""By how many elementwise equations one iteration of a loop lengthens a chain of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoloop import _jaxpr

#: Equations that XLA computes by themselves: a chain ends there.
_ENDS = frozenset(("dot_general", "conv_general_dilated", "sort", "fft", "cholesky", "triangular_solve"))


def through(scan: _jaxpr.Scan) -> int:
    """Equations of the longest chain from the carry that a body takes to the carry it returns; 0: all end inside."""
    consts, carry, xs = scan.split_inputs([0] * len(_jaxpr.in_avals(scan.body)))
    after, _ = scan.split_outputs(_depths(scan.body, [*consts, *(1 for _ in carry), *xs]))
    return int(max([1, *after])) - 1


def _depths(body: _jaxpr.Jaxpr, given: Sequence[int]) -> list[int]:
    """The length of the longest chain that comes to each output; 0 if none of those given does."""
    program = _jaxpr.inner(body)
    known: dict[int, int] = dict(zip(map(id, program.invars), given, strict=True))
    for eqn in _jaxpr.direct_equations(body):
        depths = _after(eqn, [known.get(id(atom), 0) for atom in eqn.invars])
        known.update(zip(map(id, eqn.outvars), depths, strict=True))
    return [known.get(id(atom), 0) for atom in program.outvars]


def _after(eqn: Any, depths: Sequence[int]) -> list[int]:
    name, inside = eqn.primitive.name, _jaxpr.bodies(eqn)
    if name in _jaxpr.CALLS and inside:
        return _depths(inside[0], depths)
    goes_on = any(depths) and name not in _ENDS and not inside
    return [max(depths) + 1 if goes_on else 0] * len(eqn.outvars)
