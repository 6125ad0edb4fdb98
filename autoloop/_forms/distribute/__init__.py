"""`distribute(what)`: the loop distributed over the parts of its body that need not run together.

Loop distribution after Allen and Kennedy, *Optimizing Compilers for Modern Architectures*, chapters
2, 5 and 6: what is in no recurrence runs for all iterations at once, before or after the scan of what
is; sums over iterations become one reduction, sums of matrix products one product. Pays for input and
readout products, random numbers, the accumulation of gradients; costs the memory of what is stacked.

`heavy` moves matrix products, random numbers, inner loops and the like; cheap work stays with its
consumers. `all` moves everything. A number moves everything within blocks of so many iterations.

Where values tie, the gradient of a maximum may be shared out otherwise than by the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

from autoloop import _jaxpr, _parts
from autoloop._form import Form, Site
from autoloop._forms.distribute.emit import Distributed, run_in_blocks
from autoloop._forms.distribute.groups import Schedule
from autoloop._forms.distribute.reasons import why_nothing_moves
from autoloop._loops import Loop
from autoloop._plan import Parameter

_BLOCK = 64  # iterations: long enough for products to be large, short enough for stacks to stay in cache
_WORTH_A_TRIAL = 0.02  # of the body's equations: around an inner loop, a few of the outer's own are nothing


@final
class Distribute(Form):
    """The distributed loop."""

    name = "distribute"
    takes = "heavy|all|NUMBER"
    least: ClassVar[Parameter] = "all"
    comes_first: ClassVar[bool] = True

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        if loop.effects:
            return f"the body has side effects ({', '.join(loop.effects)}), whose order would change"
        if parameter not in ("heavy", "all") and not _is_block(parameter, loop.length):
            return f"write heavy, all, or a number of iterations from 2 to the length {loop.length}; got {parameter}"
        return why_nothing_moves(_schedule(loop.scan, loop.scan.body, parameter))

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        if loop.length < 2 or loop.effects:
            return ()
        heavy, everything = (_schedule(loop.scan, loop.scan.body, p) for p in ("heavy", "all"))
        if everything.is_plain_batch:  # then vmap of the whole loop is the same program
            return ()
        found: list[Parameter] = ["heavy"] if why_nothing_moves(heavy) is None else []
        if why_nothing_moves(everything) is None and everything.share >= _WORTH_A_TRIAL:
            found += ["all"] if not found or heavy.shape != everything.shape else []
            found += [_BLOCK] if loop.length > _BLOCK else []
        return tuple((p,) for p in found)

    def copies(self, loop: Loop, parameter: Parameter) -> int:
        return 2 if isinstance(parameter, int) and parameter < loop.length and loop.length % parameter else 1

    def reassociates(self, loop: Loop, parameter: Parameter) -> bool:
        return _schedule(loop.scan, loop.scan.body, parameter).rounds_otherwise

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        scan, body = site.scan, site.scan.body
        if not scan.length:
            _, carry, _ = scan.split_inputs(values)
            _, ys = scan.split_outputs(_jaxpr.out_avals(body))
            return [*carry, *(_parts.empty(y, 0) for y in ys)]
        if site.body_changed:
            body = _jaxpr.close(site.body, _jaxpr.in_avals(body))
        schedule = _schedule(scan, body, parameter)
        if isinstance(parameter, int) and parameter < scan.length:
            return run_in_blocks(schedule, parameter, values)
        return Distributed(schedule, scan.length, values).run()


def _is_block(parameter: Parameter, length: int) -> bool:
    return isinstance(parameter, int) and 2 <= parameter <= length


def _schedule(scan: _jaxpr.Scan, body: _jaxpr.Jaxpr, parameter: Parameter) -> Schedule:
    return Schedule(scan, body, everything=parameter != "heavy")
