"""One tuning, from a traced program to a record: forms propose, the search asks, trials answer."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from autoloop import _machine, _search, _shorten, _space, _trial, _why
from autoloop._inputs import Inputs
from autoloop._loops import Loop
from autoloop._options import Options
from autoloop._plan import COMPILER_OPTIONS, Choice, Plan
from autoloop._program import ALL_FORMS, Args, Kwargs, OneProgram, Program, runs_in_trace
from autoloop._progress import Progress
from autoloop._records import AS_WRITTEN, Budget, Record, Trial

#: Loops that do less than this part of a program's work are not worth trials of their own.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Request:
    """What is to be tuned, and how.

    Attributes:
        program: the traced function.
        args: values to run on.
        kwargs: values to run on.
        options: the decorator's.
        key: the named parts of the signature.
        device: where it runs.
        budget_s: seconds it may take.
        notes: what the record should say besides.
        partial: an unfinished record of the same signature, to go on from.
        hint: the winner of the same program with other sizes.
        also: plans to try in any case.
    """

    program: Program
    args: Args
    kwargs: Kwargs
    options: Options
    key: Mapping[str, str]
    device: Any
    budget_s: float
    notes: tuple[str, ...] = ()
    partial: Record | None = None
    hint: Plan | None = None
    also: tuple[Plan, ...] = ()


@dataclass(frozen=True)
class Tuned:
    """A finished tuning.

    Attributes:
        record: what was found.
        winner: the winner compiled, where it is one XLA program that was run whole.
        whole_s: for a program that was shortened, the seconds expected of a whole call as written.
    """

    record: Record
    winner: OneProgram | None
    whole_s: float | None = None


class Interrupted(KeyboardInterrupt):
    """The user stopped the tuning; `record` holds what was found, marked as partial."""

    def __init__(self, record: Record) -> None:
        super().__init__("tuning was interrupted")
        self.record = record


def space(program: Program, options: Options, platform: str) -> _space.Space:
    """What may be tried for a program: each loop's ladders in the allowed forms, and XLA options."""
    total = max((loop.work for loop in program.loops), default=1.0)
    worth = [loop for loop in program.loops if loop.work >= _LEAST_SHARE * total]
    axes = tuple(_space.Axis(loop.path, _own_work(loop, program.loops), _ladders(loop, options)) for loop in worth)
    singles = tuple(((name, value),) for name, value in COMPILER_OPTIONS.get(platform, ()))
    wanted = singles if options.forms is None else ()
    return _space.Space(axes, wanted, program.why_not, program.size, program.dispatches)


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


#: What does tunings instead, inside the blocks of `autoloop.testing`.
stand_in: ContextVar[Callable[[Request], Tuned] | None] = ContextVar("autoloop_stand_in", default=None)


def tune(request: Request) -> Tuned:
    """Trials the candidate plans and returns the record; raises as `trial_all` does."""
    other = stand_in.get()
    return trial_all(request) if other is None else other(request)


def trial_all(request: Request, retouch: Callable[[Trial], Trial] = lambda trial: trial) -> Tuned:
    """Trials the candidate plans and returns the record.

    Args:
        request: what is to be tuned.
        retouch: what the search gets to see of a trial; for tests.

    Raises:
        Interrupted: on `KeyboardInterrupt`, with the partial record.
        Exception: what the function as written raises on these arguments.
    """
    known = request.partial.trials if request.partial is not None else ()
    spent_s = request.partial.spent_s if request.partial is not None else 0.0
    started = time.perf_counter()
    calibration = _machine.calibrate(), _machine.load()
    fit = _fit(request)
    allowed_s = request.budget_s if fit is None else fit.budget_s
    spent_s += time.perf_counter() - started
    budget = Budget(max(0.0, allowed_s - spent_s), request.options.max_memory_bytes)
    bench = _bench(request, budget, fit)
    progress = Progress(request.program.function.name, budget.seconds, request.options.progress)

    def measure(plans: Sequence[Plan], best: float) -> list[Trial]:
        progress.step(str(plans[0]), best)
        return [retouch(trial) for trial in bench.measure(plans, best)]

    what = _space_for(request, fit)
    recorded = functools.partial(_record, request, bench, calibration, spent_s, fit)
    try:
        outcome = _search.search(what, measure, budget, request.options.rules, known, request.hint, request.also)
    except _space.SearchInterrupted as stop:
        raise Interrupted(recorded(stop.outcome).replace(interrupted=True)) from None
    finally:
        progress.close()
    if fit is not None:
        return Tuned(recorded(outcome), None, outcome.trials[0].run_s)
    candidate = bench.candidate(Plan.parse(outcome.winner))
    return Tuned(recorded(outcome), candidate if isinstance(candidate, OneProgram) else None)


def _fit(request: Request) -> _shorten.Fit | None:
    """How to shorten a program of which one call would take too much of the budget."""
    program = request.program
    leaves, _, _ = program.function.flatten(request.args, request.kwargs)
    time_call = _shorten.timer(leaves, program.traced.donated)
    return _shorten.fit(program, request.budget_s, time_call)


def _space_for(request: Request, fit: _shorten.Fit | None) -> _space.Space:
    """What may be tried: where the program is shortened, what is legal there too."""
    whole = space(request.program, request.options, request.device.platform)
    if fit is None:
        return whole
    short = fit.program
    return dataclasses.replace(whole, why_not=lambda plan: whole.why_not(plan) or short.why_not(plan))


def _bench(request: Request, budget: Budget, fit: _shorten.Fit | None) -> _trial.Bench:
    program = request.program
    leaves, tree, static = program.function.flatten(request.args, request.kwargs)

    def rebuild(values: Sequence[Any]) -> tuple[Args, Kwargs]:
        return program.function.unflatten(values, tree, static)

    inputs = Inputs(leaves, program.traced.donated, rebuild)
    options, device = request.options, request.device
    if fit is None:
        return _trial.Bench(program.candidate, inputs, options.tolerance, budget, options.margin, device)
    flat = Inputs(leaves, program.traced.donated, lambda values: (tuple(values), {}))
    short = fit.program.candidate
    return _trial.Bench(short, flat, options.tolerance, budget, options.margin, device, fit.scale)


def _record(
    request: Request,
    bench: _trial.Bench,
    calibration: tuple[float, float],
    before_s: float,
    fit: _shorten.Fit | None,
    outcome: _space.Outcome,
) -> Record:
    busy = _machine.busy_note(calibration[0], bench.spreads, calibration[1])
    long = "" if fit is None else fit.note
    notes = [*request.notes, *(note for note in (long, busy, _trace_note(outcome)) if note)]
    return Record(
        function=request.program.function.name,
        key=dict(request.key),
        winner=outcome.winner,
        trials=outcome.trials,
        verdict=outcome.verdict,
        complete=outcome.complete,
        spent_s=before_s + bench.spent_s(),
        budget_s=request.budget_s,
        expected_calls=request.options.expected_calls,
        created=now(),
        notes=tuple(notes),
        environment=_environment(request),
    )


def _trace_note(outcome: _space.Outcome) -> str:
    if runs_in_trace(Plan.parse(outcome.winner)):
        return ""
    return f"{outcome.winner} is legal only at top level; inside a trace the best other plan is used"


def _environment(request: Request) -> dict[str, str]:
    xla_flags = os.environ.get("XLA_FLAGS", "")
    names = ("device", "host", "versions", "arguments")
    found = {name: request.key[name] for name in names if name in request.key}
    return {**found, "XLA_FLAGS": xla_flags, _why.LOOPS: _why.describe(request.program.loops)}


def untuned(program: Program, key: Mapping[str, str], reason: str) -> Record:
    """The record of a program that is not tuned, with the reason."""
    return Record(
        function=program.function.name,
        key=dict(key),
        winner=AS_WRITTEN,
        trials=(Trial(AS_WRITTEN, reason=reason),),
        verdict=f"not tuned: {reason}",
        created=now(),
    )


def now(clock: Callable[..., datetime.datetime] = datetime.datetime.now) -> str:
    """The present moment, UTC, to the second, as ISO 8601."""
    return clock(datetime.UTC).isoformat(timespec="seconds")
