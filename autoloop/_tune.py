"""One tuning, from a traced program to a record: forms propose, the search asks, trials answer."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoloop import _search, _trial
from autoloop._loops import Loop
from autoloop._options import Options
from autoloop._plan import Choice, Plan
from autoloop._program import ALL_FORMS, Args, Kwargs, OneProgram, Program
from autoloop._records import Budget, Record, Trial

#: Loops that do less than this part of a program's work are not worth trials of their own.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Tuned:
    """A finished tuning: the record, and the winner compiled, where it is one XLA program."""

    record: Record
    winner: OneProgram | None


def space(program: Program, options: Options) -> _search.Space:
    """What may be tried for a program: each loop's ladders, in the allowed forms."""
    total = max((loop.work for loop in program.loops), default=1.0)
    worth = [loop for loop in program.loops if loop.work >= _LEAST_SHARE * total]
    axes = tuple(_search.Axis(loop.path, loop.work, _ladders(loop, options)) for loop in worth)
    return _search.Space(axes, program.why_not, program.size, program.dispatches)


def _ladders(loop: Loop, options: Options) -> tuple[tuple[Choice, ...], ...]:
    found = []
    for name in options.allowed_forms:
        form = ALL_FORMS[name]
        for ladder in form.ladders(loop):
            exact = [p for p in ladder if not (options.bitwise and form.reassociates(loop, p))]
            found.append(tuple(Choice(loop.path, name, p) for p in exact))
    return tuple(ladder for ladder in found if ladder)


def tune(
    program: Program,
    args: Args,
    kwargs: Kwargs,
    options: Options,
    key: Mapping[str, str],
    device: Any,
    budget_s: float,
    notes: Sequence[str] = (),
) -> Tuned:
    """Trials the candidate plans on these arguments and returns the record.

    Raises:
        Exception: what the function as written raises on these arguments.
    """
    budget = Budget(budget_s, options.max_memory_bytes)
    bench = _bench(program, args, kwargs, options, budget, device)
    outcome = _search.search(space(program, options), bench.measure, budget, options.rules)
    record = _record(program, outcome, bench, key, budget_s, options, notes)
    candidate = bench.candidate(Plan.parse(outcome.winner))
    return Tuned(record, candidate if isinstance(candidate, OneProgram) else None)


def _bench(
    program: Program, args: Args, kwargs: Kwargs, options: Options, budget: Budget, device: Any
) -> _trial.Bench:
    function = program.function
    leaves, tree, static = function.flatten(args, kwargs)

    def rebuild(values: Sequence[Any]) -> tuple[Args, Kwargs]:
        return function.unflatten(values, tree, static)

    inputs = _trial.Inputs(leaves, program.traced.donated, rebuild)
    return _trial.Bench(program.candidate, inputs, options.tolerance, budget, options.margin, device)


def _record(
    program: Program,
    outcome: _search.Outcome,
    bench: _trial.Bench,
    key: Mapping[str, str],
    budget_s: float,
    options: Options,
    notes: Sequence[str],
) -> Record:
    return Record(
        function=program.function.name,
        key=dict(key),
        winner=outcome.winner,
        trials=outcome.trials,
        verdict=outcome.verdict,
        complete=outcome.complete,
        spent_s=bench.spent_s(),
        budget_s=budget_s,
        expected_calls=options.expected_calls,
        created=now(),
        notes=tuple(notes),
        environment={name: key[name] for name in ("device", "host", "versions", "arguments") if name in key},
    )


def untuned(program: Program, key: Mapping[str, str], reason: str) -> Record:
    """The record of a program that is not tuned, with the reason."""
    return Record(
        function=program.function.name,
        key=dict(key),
        winner=str(Plan()),
        trials=(Trial(str(Plan()), reason=reason),),
        verdict=f"not tuned: {reason}",
        created=now(),
    )


def now(clock: Callable[..., datetime.datetime] = datetime.datetime.now) -> str:
    """The present moment, UTC, to the second, as ISO 8601."""
    return clock(datetime.UTC).isoformat(timespec="seconds")
