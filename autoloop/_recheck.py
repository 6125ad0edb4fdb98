"""Choices made on made-up arguments are checked again on the arguments of the first real call.

Where a call's time depends on values (a while, a cond, a masked scan that may stop early), trials on
arguments made from their specs show how many rounds those take, not the user's. The record then says
so, and the first call with values races the plans that did best once more, and only those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from autoloop import _jaxpr, _resume, _specs
from autoloop._call import Call
from autoloop._plan import Choice, Plan
from autoloop._plans import ALL_FORMS, is_known
from autoloop._program import Program
from autoloop._records import AS_WRITTEN, Record, Status, Trial
from autoloop._tune import Request
from autoloop._variants import GradProgram

MADE_UP = "arguments were made from their specs, not real"
DUE = f"{MADE_UP}: how long a call takes depends on values, so the first call with some checks the choice again"
DONE = "chosen on made-up arguments, and again on those of a call among the plans that did best"
#: How many plans are tried again.
_MOST = 5


def note(program: Program) -> str:
    """What a record says whose arguments were made up."""
    # Under `grad` no call comes to check: there the program is always part of another one.
    return DUE if _depends_on_values(program) and not isinstance(program, GradProgram) else MADE_UP


def due(record: Record | None, call: Call) -> bool:
    """Whether a call is the first real one after made-up arguments."""
    made_up = record is not None and DUE in record.notes
    return made_up and not _specs.has_specs(list(call.leaves)) and not call.in_trace


def adjusted(request: Request) -> Request:
    """The request; as one to check a choice again if that is what its partial record asks for."""
    earlier = request.partial
    if earlier is None or DUE not in earlier.notes or DUE in request.notes:
        return request
    plans = (plan for plan in dict.fromkeys(_worth_trying(earlier, request.program)) if request.options.allows(plan))
    again = tuple(plan for plan in plans if not plan.as_written and not request.program.why_not(plan))
    notes = (*request.notes, DONE)
    return dataclasses.replace(request, partial=None, hint=None, also=again[:_MOST], only=True, notes=notes)


def merged(record: Record, earlier: Record) -> Record:
    """The record of a check, with what the other plans had shown; those times are no longer compared."""
    known = {trial.plan for trial in record.trials}
    rest = tuple(_as_past(trial) for trial in earlier.trials if trial.plan not in known)
    return record.replace(
        trials=(*record.trials, *rest),
        complete=record.complete and earlier.complete,
        spent_s=record.spent_s + earlier.spent_s,
        environment=_resume.with_forms_of(record.environment, earlier),
    )


def _depends_on_values(program: Program) -> bool:
    names = {eqn.primitive.name for eqn in _jaxpr.equations(program.traced.jaxpr)}
    return not names.isdisjoint(("while", "cond")) or any(True for _ in _stopping(program))


def _stopping(program: Program) -> Iterator[Plan]:
    """The plans of one loop that stops on a condition."""
    for loop in program.loops:
        for form in ALL_FORMS.values():
            if form.stops_early:
                yield from (Plan((Choice(loop.path, form.name, p),)) for ladder in form.ladders(loop) for p in ladder)


def _worth_trying(record: Record, program: Program) -> Iterator[Plan]:
    """The winner, the best plan that stops early, and the others that did best."""
    timed = [t for t in record.trials if t.ok and t.ratio is not None and t.plan != AS_WRITTEN]
    plans = [Plan.parse(t.plan) for t in sorted(timed, key=lambda t: t.ratio or 0.0) if is_known(t.plan)]
    yield Plan.parse(record.winner)
    yield from [p for p in plans if any(ALL_FORMS[c.form].stops_early for c in p.choices)][:1]
    yield from _stopping(program)
    yield from plans


def _as_past(trial: Trial) -> Trial:
    if trial.ratio is None:
        return trial
    reason = f"took {trial.ratio:.3g}x the time as written on made-up arguments"
    return Trial(trial.plan, Status.SKIPPED, reason, trial.trace_s, trial.compile_s, peak_bytes=trial.peak_bytes)
