"""A rough guess of a program's run time from its jaxpr, before anything is compiled.

It only decides whether a program may be run whole, or must be shortened and timed first: on the high
side for a CPU, by three to ten, for loops of scalars by some hundred.
"""

from __future__ import annotations

import math
from typing import Any

from autoloop import _jaxpr
from autoloop._loops import num_bytes

#: Of one core: an equation's overhead in a loop, its memory traffic, its arithmetic.
_EQUATION_S = 0.5e-6
_BYTES_PER_S = 4e9
_FLOPS_PER_S = 10e9


def seconds(jaxpr: _jaxpr.Jaxpr) -> float:
    """Seconds that one run may take; a `while` counts as one round."""
    total = 0.0
    for eqn in _jaxpr.direct_equations(jaxpr):
        inner = sum(map(seconds, _jaxpr.bodies(eqn)))
        trips = _jaxpr.read_scan(eqn).length if eqn.primitive.name == "scan" else 1
        total += trips * inner if inner else _equation(eqn)
    return total


def _equation(eqn: Any) -> float:
    moved = sum(num_bytes(v.aval) for v in eqn.outvars if hasattr(v.aval, "shape"))
    return _EQUATION_S + moved / _BYTES_PER_S + _flops(eqn) / _FLOPS_PER_S


def _flops(eqn: Any) -> float:
    name = eqn.primitive.name
    out = float(math.prod(getattr(eqn.outvars[0].aval, "shape", ()) if eqn.outvars else ()))
    if name == "dot_general":
        contracted = eqn.params["dimension_numbers"][0][0]
        return 2.0 * out * float(math.prod(eqn.invars[0].aval.shape[d] for d in contracted))
    if name == "conv_general_dilated":
        return 2.0 * out * float(math.prod(eqn.invars[1].aval.shape[1:]))
    return 0.0
