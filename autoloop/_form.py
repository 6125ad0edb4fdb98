"""What a form must offer, and what it is given where it stands in for a loop."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from autoloop import _host, _jaxpr, _outline
from autoloop._loops import Loop
from autoloop._pace import Pace
from autoloop._plan import Parameter


@dataclass(frozen=True)
class Site:
    """A loop where a form stands: its equation, and its body with the choices inside applied.

    Attributes:
        scan: what the equation means.
        node: the equation.
        body: (consts, carry, x) -> (carry, y), flat, to be called in a trace.
        body_changed: whether `body` differs from the body as written.
    """

    scan: _jaxpr.Scan
    node: _outline.Node
    body: _jaxpr.Flat
    body_changed: bool

    def rescan(self, values: Sequence[Any], **params: Any) -> list[Any]:
        """The scan equation itself, with its body as chosen and some parameters changed."""
        body = self.scan.body
        if self.body_changed:
            body = _jaxpr.close(self.body, _jaxpr.in_avals(body))
        return list(_jaxpr.rebuild(self.node.eqn, [body], **params)(*values))


@dataclass(frozen=True)
class HostSite:
    """A loop that a host form runs.

    Attributes:
        site: the loop, where all choices inside it can be part of one program; else None.
        scan: what the equation means.
        compiled: the body in compiled pieces.
        eager: the body operation by operation.
        options: XLA options to compile pieces with.
        pace: what a loop that somebody watches tells of its steps; None where nobody does.
    """

    site: Site | None
    scan: _jaxpr.Scan
    compiled: _host.Runnable
    eager: _host.Runnable
    options: tuple[tuple[str, str], ...] = ()
    pace: Pace | None = None


class Form(abc.ABC):
    """A way to run one loop. Subclasses are final, hold no state, and do not know each other."""

    #: The name in a plan's text: lower-case letters.
    name: ClassVar[str]
    #: What may stand in the brackets of a choice, for messages: "" for nothing, else like "NUMBER".
    takes: ClassVar[str] = ""
    #: What to put there to ask whether it is legal at all: legal with that if legal with anything.
    least: ClassVar[Parameter] = None
    #: Whether it runs in Python: only for loops on the spine, at top level, with concrete arguments.
    on_host: ClassVar[bool] = False
    #: Whether its operations are compiled together: XLA options reach no others.
    takes_options: ClassVar[bool] = True
    #: Whether a body with side effects has them as often, and in the same order, in this form.
    keeps_effects: ClassVar[bool] = False
    #: Whether JAX can differentiate this form in reverse.
    reverse_differentiable: ClassVar[bool] = True
    #: Whether it is tried on every loop before the forms that only copy the body: it has few parameters
    #: and may gain large factors.
    comes_first: ClassVar[bool] = False
    #: Whether loops of one length that stand side by side are tried in it together: a backward pass reads what
    #: the forward pass stacked, so that neither gains much alone.
    goes_together: ClassVar[bool] = False
    #: Whether it stops on a condition, so that its time depends on values.
    stops_early: ClassVar[bool] = False

    @abc.abstractmethod
    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        """Why this form may not run `loop`, as one sentence; None if it may."""

    @abc.abstractmethod
    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        """Parameters worth a trial: ladders whose rungs cost ever more; () if none is.

        A rung that loses by far ends its ladder. Every rung must be legal for `why_not`.
        """

    def copies(self, loop: Loop, parameter: Parameter) -> int:
        """How many copies of the body the compiled program holds."""
        return 1

    def dispatches(self, loop: Loop, parameter: Parameter) -> float:
        """How many calls into the device runtime one run of the loop makes, at least."""
        return 1

    def reassociates(self, loop: Loop, parameter: Parameter) -> bool:
        """Whether it sums or multiplies in another order than the loop does; not for `bitwise=True`."""
        return False

    def holds_host_loops(self, parameter: Parameter) -> bool:
        """Whether a host form may run a loop inside this one."""
        return False

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        """The loop in this form, in a trace: flat inputs of the equation to its flat outputs."""
        raise NotImplementedError(f"{self.name} runs on the host only")

    def build(self, site: HostSite, parameter: Parameter) -> _host.Runnable:
        """The loop in this form, on the host: flat inputs of the equation to its flat outputs."""
        raise NotImplementedError(f"{self.name} runs in a trace only")


Forms = Mapping[str, Form]
