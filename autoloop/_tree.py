"""The nest of a program as a tree: what is known of each loop before anything runs, and which forms are legal there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from autoloop import _legal, _offer, _signature
from autoloop._call import Call
from autoloop._decision import why_untuned
from autoloop._form import Form
from autoloop._function import Function
from autoloop._loops import Loop, path_text, work
from autoloop._options import Options
from autoloop._plan import Choice, Parameter, Plan
from autoloop._plans import ALL_FORMS
from autoloop._program import Program
from autoloop._report import COLUMNS, size_text, wrapped
from autoloop._space import Space


@dataclass(frozen=True)
class LoopForm:
    """How a form stands to a loop.

    Attributes:
        form: its name.
        why_not: why it is not legal there, as one sentence; "" if it is.
        tried: its parameters that a tuning tries, None for a form without one; empty if it tries none.
        inside: the choices for the loops around without which it is not legal, "" if it needs none.
        why_untried: why a tuning tries none of it though it is legal, "" where it does.
    """

    form: str
    why_not: str = ""
    tried: tuple[Parameter, ...] = ()
    inside: str = ""
    why_untried: str = ""

    def __str__(self) -> str:
        numbers = ", ".join(str(parameter) for parameter in self.tried if parameter is not None)
        return f"{self.form}({numbers})" if numbers else self.form


@dataclass(frozen=True)
class LoopNode:
    """One loop, and those inside it.

    Attributes:
        path: as plans write it.
        length: trip count.
        reverse: whether it runs from the last iteration to the first.
        carry_bytes: bytes of the carry.
        stacked_bytes: bytes of all xs and ys.
        equations: equations in one body, inner loops counted once.
        share: its part of the equations that one call evaluates, loops inside included.
        own_share: the same without the loops inside.
        forms: how each form stands to it.
        loops: the loops inside.
    """

    path: str
    length: int
    reverse: bool
    carry_bytes: int
    stacked_bytes: int
    equations: int
    share: float
    own_share: float
    forms: tuple[LoopForm, ...]
    loops: tuple[LoopNode, ...]


@dataclass(frozen=True)
class LoopTree:
    """The loops of a function for some arguments; prints as a tree.

    Attributes:
        function: `module.qualname` of the decorated function.
        arguments: their shapes and dtypes.
        loops: the loops at top level.
        note: why there is nothing to tune, "" where there is.
    """

    function: str
    arguments: str
    loops: tuple[LoopNode, ...]
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{self.function}  [{self.arguments}]"]
        for loop in self.loops:
            lines += _lines(loop)
        return "\n".join([*lines, *([f"not tuned: {self.note}"] if self.note else [])])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """The tree as plain JSON types."""
        return dataclasses.asdict(self)


# ---------------------------------------------------------------- as text


def _lines(loop: LoopNode, columns: int = COLUMNS) -> Iterator[str]:
    iterations = f"{loop.length:,} iteration{'' if loop.length == 1 else 's'}{', backwards' if loop.reverse else ''}"
    own = f", {_percent(loop.own_share)} its own" if loop.loops else ""
    carry, stacked = size_text(loop.carry_bytes), size_text(loop.stacked_bytes)
    equations = f"{loop.equations:,} equation{'' if loop.equations == 1 else 's'}"
    share = f"{_percent(loop.share)} of the work{own}"
    yield f"{loop.path}: {iterations}, {carry} carried, {stacked} stacked, {equations}, {share}"
    bar = "│ " if loop.loops else "  "
    yield from (f"{bar} {line}" for line in wrapped(_form_lines(loop.forms), columns - len(bar) - 1))
    for number, inner in enumerate(loop.loops, 1):
        last = number == len(loop.loops)
        first, *rest = _lines(inner, columns - 3)
        yield f"{'└─' if last else '├─'} {first}"
        yield from (f"{'  ' if last else '│ '} {line}" for line in rest)


def _percent(share: float) -> str:
    return "under 1%" if 0 < share < 0.01 else f"{share:.0%}"


def _form_lines(forms: Sequence[LoopForm]) -> Iterator[str]:
    legal = [form for form in forms if not form.why_not]
    groups = {"legal": [str(f) for f in legal if f.tried and not f.inside]}
    for form in legal:
        if form.why_untried and not form.inside:
            groups.setdefault(f"legal, not tried ({form.why_untried})", []).append(form.form)
    for form in legal:
        if form.inside:
            groups.setdefault(f"legal inside {form.inside}", []).append(str(form))
    yield from (f"{what}: {', '.join(names)}" for what, names in groups.items() if names)
    yield from (f"`{form.form}`: {form.why_not}" for form in forms if form.why_not)


# ---------------------------------------------------------------- from a program


def _why_untried(form: Form, loop: Loop, options: Options, space: Space) -> str:
    """Why a tuning tries a form on a loop not at all, given that it does not."""
    if form.name not in options.allowed_forms:
        return "not among forms="
    if loop.path not in [axis.path for axis in space.axes]:
        return f"the loop does under {_offer.LEAST_SHARE:.0%} of the work"
    return "bitwise=True" if form.ladders(loop) else "nothing to gain"


def _form(form: Form, loop: Loop, tried: tuple[Parameter, ...], why_untried: str) -> LoopForm:
    parameter = tried[0] if tried else form.least
    if reason := _legal.loop_why_not(form, loop, parameter):
        return LoopForm(form.name, reason)
    # A Python loop needs Python loops around it.
    around = tuple(Choice(loop.path[:depth], "python", 1) for depth in range(1, len(loop.path))) if form.on_host else ()
    if reason := _legal.host_why_not(form, loop, Plan(around), ALL_FORMS):
        return LoopForm(form.name, reason)
    return LoopForm(form.name, "", tried, str(Plan(around)) if around else "", why_untried)


def _tried(space: Space) -> Mapping[tuple[tuple[int, ...], str], tuple[Parameter, ...]]:
    """The parameters that a tuning tries, by loop and form."""
    found: dict[tuple[tuple[int, ...], str], tuple[Parameter, ...]] = {}
    for axis in space.axes:
        for choice in (c for ladder in axis.ladders for c in ladder):
            key = (axis.path, choice.form)
            found[key] = (*found.get(key, ()), choice.parameter)
    return found


def _nodes(program: Program, options: Options, space: Space) -> tuple[LoopNode, ...]:
    """The loops at top level, with those inside."""
    total, tried = max(work(program.traced.jaxpr), 1.0), _tried(space)

    def inside(path: tuple[int, ...]) -> list[Loop]:
        return [loop for loop in program.loops if loop.path[:-1] == path and loop.path]

    def node(loop: Loop) -> LoopNode:
        inner = inside(loop.path)
        some = [(f, tried.get((loop.path, f.name), ())) for f in ALL_FORMS.values()]
        return LoopNode(
            path=path_text(loop.path),
            length=loop.length,
            reverse=loop.reverse,
            carry_bytes=loop.carry_bytes,
            stacked_bytes=loop.stacked_bytes,
            equations=loop.equations,
            share=loop.work / total,
            own_share=(loop.work - sum(other.work for other in inner)) / total,
            forms=tuple(_form(f, loop, t, "" if t else _why_untried(f, loop, options, space)) for f, t in some),
            loops=tuple(map(node, inner)),
        )

    return tuple(map(node, inside(())))


def tree(function: Function, options: Options, call: Call) -> LoopTree:
    """The loops of a function for the arguments of a call; nothing is tried."""
    program = Program.trace(function, call.key, call.args, call.kwargs)
    if program is None:
        return LoopTree(function.name, "", (), "the function closes over values of an outer trace")
    arguments = _signature.arguments_part(call.key)
    nodes = _nodes(program, options, _offer.space(program, options, call.device.platform))
    return LoopTree(function.name, arguments, nodes, why_untuned(program, options.allow_side_effects))
