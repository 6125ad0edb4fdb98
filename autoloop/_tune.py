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

from autoloop import _lockstep, _machine, _offer, _resume, _search, _shorten, _space, _trial, _why
from autoloop._crew import ALONE, Crew
from autoloop._function import Args, Kwargs
from autoloop._inputs import Inputs
from autoloop._options import Options
from autoloop._plan import Plan
from autoloop._plans import runs_in_trace
from autoloop._program import OneProgram, Program
from autoloop._progress import Progress
from autoloop._records import AS_WRITTEN, Budget, Record, Trial
from autoloop._runner import Runner
from autoloop._together import Talk


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
        crew: who measures.
        only: nothing but those and as written.
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
    crew: Crew = ALONE
    only: bool = False


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
    before, fresh = request.partial, _resume.new_forms(request.partial, request.options)
    started = time.perf_counter()
    calibration = _machine.calibrate(), _machine.load()
    fit = _fit(request) if request.program.shortens else None
    allowed_s = request.budget_s if fit is None else fit.budget_s
    before_s, setup_s = (before.spent_s if before is not None else 0.0), time.perf_counter() - started
    # What an earlier tuning spent counts, but not where only forms that it did not know are to be timed.
    left_s = allowed_s - setup_s - (0.0 if fresh else before_s)
    budget = Budget(max(0.0, left_s), request.options.max_memory_bytes)
    bench = _bench(request, budget, fit)
    request.crew.begin(fit is not None)
    progress = Progress(request.program.function.name, budget.seconds, request.options.progress)

    def measure(plans: Sequence[Plan], best: float) -> list[Trial]:
        progress.step(str(plans[0]), best)
        return [retouch(trial) for trial in bench.measure(plans, best)]

    what, known = _resume.only(_space_for(request, fit), fresh), _resume.known(before, request.program)
    recorded = functools.partial(_record, request, bench, calibration, before_s + setup_s, fit)
    search = functools.partial(_search.search, what, measure, budget, request.options.rules)
    try:
        outcome = search(known, request.hint, request.also, settled=bool(fresh))
    except _space.SearchInterrupted as stop:
        kept = before if before is not None and fresh else recorded(stop.outcome).replace(interrupted=True)
        raise Interrupted(kept) from None
    finally:
        progress.close()
    if fit is not None:
        return Tuned(recorded(outcome), None, outcome.trials[0].run_s)
    candidate = bench.candidate(Plan.parse(outcome.winner))
    return Tuned(recorded(outcome), candidate if isinstance(candidate, OneProgram) else None)


def _fit(request: Request) -> _shorten.Fit | None:
    """How to shorten a program of which one call would take too much of the budget."""
    time_call = _timer(request)

    def time_all(short: Program, share: float) -> float:
        return request.crew.time(share, lambda: time_call(short))

    return _shorten.fit(request.program, request.budget_s, time_all)


def _timer(request: Request) -> Callable[[Program], float]:
    leaves, _, _ = request.program.function.flatten(request.args, request.kwargs)
    return _shorten.timer(leaves, request.program.traced.donated)


def _space_for(request: Request, fit: _shorten.Fit | None) -> _space.Space:
    """What may be tried: where the program is shortened, what is legal there too."""
    whole = _offer.space(request.program, request.options, request.device.platform)
    whole = dataclasses.replace(whole, axes=(), options=()) if request.only else whole
    if fit is None:
        return whole
    short = fit.program
    return dataclasses.replace(whole, why_not=lambda plan: whole.why_not(plan) or short.why_not(plan))


def _bench(request: Request, budget: Budget, fit: _shorten.Fit | None) -> _trial.Bench:
    candidate_for, inputs = _runnable(request, None if fit is None else fit.program)
    options, scale = request.options, float if fit is None else fit.scale
    given = candidate_for, inputs, options.tolerance, budget, options.rules, request.device, scale
    return _trial.Bench(*given, crew=request.crew)


def _runnable(request: Request, short: Program | None) -> tuple[Callable[[Plan], Any], Inputs]:
    """(what makes candidates, what they run on): of the whole program, or of a shortened one on flat leaves."""
    program = request.program
    leaves, tree, static = program.function.flatten(request.args, request.kwargs)
    if short is not None:
        return short.candidate, Inputs(leaves, program.traced.donated, lambda values: (tuple(values), {}))

    def rebuild(values: Sequence[Any]) -> tuple[Args, Kwargs]:
        return program.function.unflatten(values, tree, static)

    return program.candidate, Inputs(leaves, program.traced.donated, rebuild)


def follow(request: Request, talk: Talk, wait_s: float, last: str) -> tuple[dict[str, Any], Runner | None]:
    """Takes part in a tuning that another process leads, up to its line `last`.

    Returns:
        (that line, what ran the plans here; None if nothing was tried or only a shortened program).
    """
    time_call, options, program, shorts = _timer(request), request.options, request.program, list[Program]()

    def time_short(share: float) -> float:
        shorts.append(_shorten.shortened(program, _shorten.lengths(program.loops, share)))
        return time_call(shorts[-1])

    def runner(shortened: bool) -> Runner:
        given = _runnable(request, shorts[-1] if shortened else None)
        return Runner(*given, options.tolerance, options.max_memory_bytes, request.device)

    follower = _lockstep.Follower(talk, wait_s, runner, time_short)
    line = follower.until(last)
    return line, None if follower.shortened else follower.runner


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
    notes = [*request.notes, *(note for note in (long, request.crew.note, busy, _trace_note(outcome)) if note)]
    record = Record(
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
    return _resume.joined(record, request.partial, _resume.new_forms(request.partial, request.options))


def _trace_note(outcome: _space.Outcome) -> str:
    if runs_in_trace(Plan.parse(outcome.winner)):
        return ""
    return f"{outcome.winner} is legal only at top level; inside a trace the best other plan is used"


def _environment(request: Request) -> dict[str, str]:
    xla_flags = os.environ.get("XLA_FLAGS", "")
    names = ("device", "host", "versions", "arguments")
    found = {name: request.key[name] for name in names if name in request.key}
    sizes, forms = _why.describe(request.program.loops), " ".join(request.options.allowed_forms)
    return {**found, "XLA_FLAGS": xla_flags, _why.LOOPS: sizes, _resume.FORMS: forms}


def untuned(program: Program, key: Mapping[str, str], reason: str, expires: str = "") -> Record:
    """The record of a program that is not tuned, with the reason."""
    return untuned_function(program.function.name, key, reason, expires)


def untuned_function(name: str, key: Mapping[str, str], reason: str, expires: str = "") -> Record:
    """The record of a function that is not tuned, with the reason."""
    return Record(
        function=name,
        key=dict(key),
        winner=AS_WRITTEN,
        trials=(Trial(AS_WRITTEN, reason=reason),),
        verdict=f"not tuned: {reason}",
        created=now(),
        expires=expires,
    )


def now(later_s: float = 0.0, clock: Callable[..., datetime.datetime] = datetime.datetime.now) -> str:
    """The present moment, or one some seconds later, UTC, to the second, as ISO 8601."""
    return (clock(datetime.UTC) + datetime.timedelta(seconds=later_s)).isoformat(timespec="seconds")
