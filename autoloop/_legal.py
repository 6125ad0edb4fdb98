"""Whether a plan fits a program, and what it would compile and dispatch, before anything is built."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoloop._config import did_you_mean
from autoloop._form import Form, Forms
from autoloop._loops import Loop, path_text
from autoloop._plan import COMPILER_OPTIONS, Choice, Parameter, Plan


def form_why_not(choice: Choice, forms: Forms) -> str | None:
    """What is wrong with a choice whatever the program: its form, or whether it takes a parameter."""
    if choice.form not in forms:
        near = did_you_mean(choice.form, forms)
        return f"{choice}: there is no form {choice.form!r}; the forms are: {', '.join(forms)}{near}"
    form = forms[choice.form]
    if bool(form.takes) != (choice.parameter is not None):
        usage = f"{form.name}({form.takes})" if form.takes else form.name
        return f"{choice}: write {path_text(choice.path)}={usage}"
    return None


def option_why_not(plan: Plan) -> str | None:
    """Which XLA option a plan may not carry; None if it may carry all of its own."""
    allowed = [option for options in COMPILER_OPTIONS.values() for option in options]
    for name, value in plan.options:
        if (name, value) not in allowed:
            listed = ", ".join(f"{n}={v}" for n, v in allowed)
            return f"{name}={value}: the XLA options that a plan may carry are: {listed}"
    return None


def why_not(plan: Plan, loops: Sequence[Loop], forms: Forms) -> str | None:
    """Why `plan` can't be applied to a program with these loops, as one sentence; None if it can."""
    if reason := option_why_not(plan):
        return reason
    by_path = {loop.path: loop for loop in loops}
    for choice in plan.choices:
        if reason := form_why_not(choice, forms):
            return reason
        if choice.path not in by_path:
            have = ", ".join(loop.name for loop in loops) or "none"
            return f"{choice}: there is no loop {path_text(choice.path)}; the loops are: {have}"
        form, loop = forms[choice.form], by_path[choice.path]
        reason = options_why_not(form, plan) or loop_why_not(form, loop, choice.parameter)
        reason = reason or host_why_not(form, loop, plan, forms)
        if reason:
            return f"{choice}: {reason}"
    return None


def options_why_not(form: Form, plan: Plan) -> str | None:
    """Why a form may not stand in a plan with XLA options, as one sentence; None if it may, or there are none."""
    if not plan.options or form.takes_options:
        return None
    # It would be timed with what the same plan without options has compiled already, and seem to build in no time.
    return f"XLA options ({plan.options[0][0]}) do not reach operations that are dispatched one by one"


def loop_why_not(form: Form, loop: Loop, parameter: Parameter) -> str | None:
    """Why a form may not run a loop, whatever runs the loops around it, as one sentence; None if it may."""
    if loop.effects and not form.keeps_effects:
        return f"the body has side effects ({', '.join(loop.effects)}), which must stay as they are"
    return form.why_not(loop, parameter)


def host_why_not(form: Form, loop: Loop, plan: Plan, forms: Forms) -> str | None:
    """Why no Python loop may stand where a loop does in a plan, as one sentence; None if one may, or none would."""
    if not form.on_host:
        return None
    if not loop.on_spine:
        return "a Python loop can't stand inside a cond or while"
    for depth in range(1, len(loop.path)):
        outer = plan.choice(loop.path[:depth])
        if outer is None or not forms[outer.form].holds_host_loops(outer.parameter):
            return (
                f"a Python loop needs a Python loop around it; loop {path_text(loop.path[:depth])} "
                f"runs {'as written' if outer is None else f'as {outer}'}"
            )
    return None


def on_host(plan: Plan, forms: Forms) -> bool:
    """Whether the plan needs a Python loop, and so can't be part of an outer trace."""
    return any(forms[c.form].on_host for c in plan.choices)


def size(plan: Plan, loops: Sequence[Loop], forms: Forms) -> float:
    """Equations in the programs that the plan compiles: what its compile time grows with."""
    total = 0.0
    copies = {loop.path: _copies(loop, plan, forms) for loop in loops}
    for loop in loops:
        own = loop.equations - sum(o.equations for o in loops if o.path[:-1] == loop.path)
        total += own * math.prod(copies[loop.path[:depth]] for depth in range(1, len(loop.path) + 1))
    return total


def _copies(loop: Loop, plan: Plan, forms: Forms) -> int:
    """How many copies of a loop's body stand in a step of it."""
    choice = plan.choice(loop.path)
    return forms[choice.form].copies(loop, choice.parameter) if choice else max(loop.unroll, 1)


def chain(plan: Plan, loops: Sequence[Loop], forms: Forms) -> int:
    """Elementwise equations in the longest chain within one step of any loop that stays a loop in the plan."""
    copies = {loop.path: _copies(loop, plan, forms) for loop in loops}

    def steps(loop: Loop) -> int:
        inner = [o for o in loops if o.path[:-1] == loop.path and copies[o.path] >= o.length]
        return copies[loop.path] * (loop.chain + sum(map(steps, inner)))

    staying = [loop for loop in loops if copies[loop.path] < loop.length]
    return max(map(steps, staying), default=0)


def dispatches(plan: Plan, loops: Sequence[Loop], forms: Forms) -> float:
    """Calls into the device runtime that one run of the plan makes, at least."""
    total = 1.0
    for loop in loops:
        choice = plan.choice(loop.path)
        if choice is None or not forms[choice.form].on_host:
            continue
        around = [o.length for o in loops if o.path == loop.path[: len(o.path)] and o.path != loop.path]
        total += math.prod(around) * forms[choice.form].dispatches(loop, choice.parameter)
    return total
