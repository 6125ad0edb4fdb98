"""What a program offers to a search: each loop's forms with their parameters, and XLA options."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from autoloop import _space
from autoloop._loops import Loop
from autoloop._options import Options
from autoloop._plan import COMPILER_OPTIONS, Choice
from autoloop._plans import ALL_FORMS
from autoloop._program import Program

#: Loops that do less than this part of a program's work are not worth trials of their own.
LEAST_SHARE = 0.01


def space(program: Program, options: Options, platform: str) -> _space.Space:
    """What may be tried for a program: each loop's ladders in the allowed forms, and XLA options."""
    total = max((loop.work for loop in program.loops), default=1.0)
    worth = [loop for loop in program.loops if loop.work >= LEAST_SHARE * total]
    axes = tuple(_axis(loop, program.loops, options) for loop in worth)
    singles = tuple(((name, value),) for name, value in COMPILER_OPTIONS.get(platform, ()))
    wanted = singles if options.forms is None else ()
    # Each plan is asked about again and again, to foretell others: in a program of 50 loops for seconds in all.
    size, dispatches = functools.cache(program.size), functools.cache(program.dispatches)
    return _space.Space(axes, wanted, program.why_not, size, dispatches, functools.cache(program.chain))


def _axis(loop: Loop, loops: Sequence[Loop], options: Options) -> _space.Axis:
    ladders = _ladders(loop, options)
    first = [ladder for ladder in ladders if ALL_FORMS[ladder[0].form].comes_first]
    rest = [ladder for ladder in ladders if ladder not in first]
    together = tuple(c for ladder in rest for c in ladder if ALL_FORMS[c.form].goes_together)
    return _space.Axis(loop.path, _own_work(loop, loops), (*first, *rest), len(first), loop.length, together)


def _own_work(loop: Loop, loops: Sequence[Loop]) -> float:
    """A loop's work without that of the loops inside it, which are searched for themselves."""
    return loop.work - sum(inner.work for inner in loops if inner.path[:-1] == loop.path)


def _ladders(loop: Loop, options: Options) -> tuple[tuple[Choice, ...], ...]:
    found = []
    for name in options.allowed_forms:
        form = ALL_FORMS[name]
        for ladder in form.ladders(loop):
            exact = [p for p in ladder if not (options.bitwise and form.reassociates(loop, p))]
            found.append(tuple(Choice(loop.path, name, p) for p in exact))
    return tuple(ladder for ladder in found if ladder)
