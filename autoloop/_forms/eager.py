"""`eager`: a Python loop with no jit around the body; each operation is dispatched by itself.

Inner loops are still compiled, one by one. Pays for runs that happen once, where compiling is the
cost: an operation compiles in milliseconds, and is shared with other programs of the process.
"""

from __future__ import annotations

from typing import final

from autoloop import _host, _jaxpr
from autoloop._form import Form, HostSite
from autoloop._loops import Loop
from autoloop._plan import Parameter


@final
class Eager(Form):
    """The fully eager outer loop."""

    name = "eager"
    on_host = True
    takes_options = False

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        return None

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        return ((None,),) if loop.length else ()

    def dispatches(self, loop: Loop, parameter: Parameter) -> float:
        return loop.length * (2 + len(_jaxpr.direct_equations(loop.scan.body)))

    def holds_host_loops(self, parameter: Parameter) -> bool:
        return True

    def build(self, site: HostSite, parameter: Parameter) -> _host.Runnable:
        return _host.SteppedLoop(site.scan, site.eager, site.pace)
