"""`associative`: a loop whose carries are affine recurrences, as `lax.associative_scan`.

Each carry that iterations change must be h' = a * h + b, or h' = max(a + h, b), or the same with
min, element by element, where a and b do not depend on h (they may depend on carries that are
solved before it). a and b are computed for all iterations at once, h for all iterations by an
associative scan (Blelloch, "Prefix sums and their applications", 1990), then everything else for
all iterations at once. Pays for long recurrences on accelerators; on 2 CPU cores it lost 3x.

Sums and products are taken in another order, so results differ by rounding, and products of many
a may overflow where h itself would not; where a max ties, its gradient may be shared out otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

from autoloop import _jaxpr, _parts
from autoloop._carries import why_not_at_once
from autoloop._form import Form, Site
from autoloop._forms.associative._at_once import AllAtOnce
from autoloop._forms.associative._schedule import Schedule
from autoloop._loops import Loop
from autoloop._plan import Parameter

#: A loop is not tried so where a and b of all iterations take more bytes: each iteration is wide enough to keep
#: a device busy by itself, and one try can be 50 times as slow as the loop (a million numbers carried over 100
#: iterations, on 2 cores), which no budget can cut short.
_MOST_BYTES = 2**28


@final
class Associative(Form):
    """The solved recurrence."""

    name = "associative"
    comes_first: ClassVar[bool] = True

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        return why_not_at_once(loop) or Schedule(loop.scan, loop.scan.body).why_not

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        # With no recurrence to solve it would be the same program as vmap of the whole loop.
        if loop.length < 2 or 2 * loop.length * loop.carry_bytes > _MOST_BYTES or why_not_at_once(loop):
            return ()
        schedule = Schedule(loop.scan, loop.scan.body)
        return ((None,),) if schedule.recurrent and schedule.why_not is None else ()

    def reassociates(self, loop: Loop, parameter: Parameter) -> bool:
        return True

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        scan, body = site.scan, site.scan.body
        if not scan.length:
            _, carry, _ = scan.split_inputs(values)
            _, ys = scan.split_outputs(_jaxpr.out_avals(body))
            return [*carry, *(_parts.empty(y, 0) for y in ys)]
        if site.body_changed:
            body = _jaxpr.close(site.body, _jaxpr.in_avals(body))
        schedule = Schedule(scan, body)
        if schedule.why_not:
            raise ValueError(f"with the choices inside the loop, {schedule.why_not}")
        return AllAtOnce(scan, schedule, values).run()
