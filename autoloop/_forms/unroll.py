"""`unroll(k)`: the scan with k copies of its body per step, through `lax.scan`'s own parameter.

Pays for small bodies, where a step costs more than its work. Beware cliffs: on a 2-core CPU a
scalar loop of 200 ran 2.1x faster with 8 copies and 20 to 40x slower with 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

from autoloop._form import Form, Site
from autoloop._loops import Loop
from autoloop._plan import Parameter

_FACTORS = (2, 4, 8, 16)


@final
class Unroll(Form):
    """k bodies per step; k need not divide the length."""

    name = "unroll"
    takes = "NUMBER"
    least: ClassVar[Parameter] = 1
    keeps_effects = True

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        if not isinstance(parameter, int) or not 1 <= parameter <= max(loop.length, 1):
            return f"the bodies per step must be a number from 1 to the length {loop.length}; got {parameter}"
        return None

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        partial = tuple(k for k in _FACTORS if k < loop.length and k != loop.unroll)
        full = (loop.length,) if loop.length > 1 and loop.unroll != loop.length else ()
        return (partial, full)

    def copies(self, loop: Loop, parameter: Parameter) -> int:
        # A remainder is unrolled too, after the while loop.
        assert isinstance(parameter, int)
        k = parameter
        return k + loop.length % k if k < loop.length else loop.length

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        return site.rescan(values, unroll=parameter)
