"""Why a record came out as it did: a few plain sentences, made from its figures alone.

Pure: no jax, no clock. A sentence is left out where the record holds no figures to support it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoloop._loops import Loop, path_text
from autoloop._plan import Choice, Plan
from autoloop._records import AS_WRITTEN, Record, Trial

#: The record's `environment` holds `describe(loops)` under this name.
LOOPS = "loops"

#: A rung that takes this much longer than the one before it is a cliff.
_CLIFF = 2.0
#: A Python loop whose whole interval lies above this shows its dispatches; wholly below the other it hid them.
_SHOWN, _HIDDEN = 1.03, 1.1
#: An interval of a ratio wider than this says too little.
_WIDE = 0.2
#: Where carries and stacked values alone move as many bytes a second, memory may be what bounds a loop:
#: about half of what one core reads from main memory, and half of what a GPU of 2018 does (V100: 0.9 TB/s).
_BANDWIDTH = {"cpu": 5e9, "gpu": 4.5e11}
#: Values of no more bytes stay in a cache from one iteration, or one run of the loop, to the next.
_CACHED_BYTES = {"cpu": 2**21, "gpu": 2**26}

_COPYING = ("unroll", "inline")
_ON_HOST = ("python", "eager")

_FACT = re.compile(r"([\d/]+): (\d+) iterations, (\d+) bytes carried, (\d+) bytes stacked\Z")


# ---------------------------------------------------------------- what a record knows of loops


@dataclass(frozen=True)
class _Fact:
    """A loop's trip count, and the bytes of its carry and of all its xs and ys."""

    length: int
    carry_bytes: int
    stacked_bytes: int


def describe(loops: Sequence[Loop]) -> str:
    """What the sentences want to know of the loops whose runs can be counted, as a text for a record."""
    return "; ".join(
        f"{loop.name}: {loop.length} iterations, {loop.carry_bytes} bytes carried, {loop.stacked_bytes} bytes stacked"
        for loop in loops
        if loop.on_spine
    )


def _facts(record: Record) -> dict[str, _Fact]:
    found = map(_FACT.match, record.environment.get(LOOPS, "").split("; "))
    return {m[1]: _Fact(int(m[2]), int(m[3]), int(m[4])) for m in found if m}


def _iterations(facts: Mapping[str, _Fact], path: tuple[int, ...]) -> int | None:
    """How many iterations of the loop one call runs, None if that is not known."""
    lengths = [facts.get(path_text(path[:depth])) for depth in range(1, len(path) + 1)]
    counts = [fact.length for fact in lengths if fact is not None]
    return math.prod(counts) if len(counts) == len(lengths) and all(counts) else None


# ---------------------------------------------------------------- words


def seconds_text(value_s: float) -> str:
    """Seconds in a unit that keeps the number short: `1.72 ms`."""
    for unit, size, least in (("s", 1.0, 0.1), ("ms", 1e-3, 0.9995), ("us", 1e-6, 0.9995)):
        if value_s >= least * size:
            return f"{value_s / size:.3g} {unit}"
    return f"{value_s / 1e-9:.3g} ns"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.3g}x"


def _narrow(trial: Trial) -> bool:
    """Whether the interval of a ratio tells enough."""
    return trial.ratio is None or (trial.ratio_high or trial.ratio) - (trial.ratio_low or trial.ratio) <= _WIDE


def _ends(trial: Trial) -> str:
    """A ratio by the ends of its interval."""
    low, high = trial.ratio_low or trial.ratio or 0.0, trial.ratio_high or trial.ratio or 0.0
    return f"{_times(low)} to {_times(high)} the time as written"


# ---------------------------------------------------------------- the sentences


def _build_or_run(written: Trial, timed: Sequence[Trial]) -> str:
    """Where the time goes, and what a single call would choose."""
    run_s, build_s = written.run_s or 0.0, written.build_s
    calls = build_s / run_s if run_s > 0 else 0.0
    if calls >= 2:
        where = f"building takes {seconds_text(build_s)}, as long as {calls:,.0f} calls of {seconds_text(run_s)}"
        balance = "compiling is most of the time until then, running afterwards"
    else:
        where = f"a call takes {seconds_text(run_s)}, building {seconds_text(build_s)}"
        balance = "running is most of the time from the first call on"
    once = min(timed, key=lambda t: t.build_s + (t.run_s or 0.0))
    single = f"for a single call {once.plan} would have been chosen, {seconds_text(once.build_s + (once.run_s or 0.0))}"
    return f"As written, {where}: {balance}; {single} to build and run."


def _body(written: Trial, choices: Mapping[Choice, Trial], facts: Mapping[str, _Fact], platform: str) -> str | None:
    """Whether the body is too small or too large to gain from copies, or may be bound by memory."""
    copied = {c: t for c, t in choices.items() if c.form in _COPYING}
    if not copied:
        return None
    choice, best = min(copied.items(), key=lambda pair: pair[1].ratio or math.inf)
    count = _iterations(facts, choice.path)
    each = "" if count is None else f", at most {seconds_text((written.run_s or 0.0) / count)} an iteration"
    assert best.ratio is not None
    if (best.ratio_high or best.ratio) < 1:
        what = f"small{each}: part of the time is the loop's own, and {best.plan} saves {1 - best.ratio:.0%} of it all"
    elif (best.ratio_low or best.ratio) > 1:
        much = f"{_times(best.ratio)} the time as written" if _narrow(best) else _ends(best)
        lost = f"the best of its copies, {best.plan}, takes {much}"
        what = f"too large to copy{each}: {lost}{_memory(written, facts, platform)}"
    elif not _narrow(best):
        name = path_text(choice.path)
        return f"Too noisy to tell whether the body of loop {name} is small: {best.plan} takes {_ends(best)}."
    else:
        what = (
            f"large enough{each}: copies of it gain nothing that could be measured{_memory(written, facts, platform)}"
        )
    return f"The body of loop {path_text(choice.path)} is {what}."


def _memory(written: Trial, facts: Mapping[str, _Fact], platform: str) -> str:
    """What to add where carries and stacked values that fit no cache keep the memory busy by themselves."""
    cached, most = _CACHED_BYTES.get(platform, math.inf), 0.0
    for name, fact in facts.items():
        count = _iterations(facts, tuple(map(int, name.split("/"))))
        if count:
            carried = 2 * count * fact.carry_bytes if fact.carry_bytes > cached else 0
            stacked = count // fact.length * fact.stacked_bytes if fact.stacked_bytes > cached else 0
            most = max(most, float(carried + stacked))
    rate = most / written.run_s if written.run_s else 0.0
    if rate < _BANDWIDTH.get(platform, math.inf):
        return ""
    return f"; carries and stacked values alone move {rate / 1e9:.3g} GB/s, so memory may be what bounds it"


def _python(written: Trial, choices: Mapping[Choice, Trial], facts: Mapping[str, _Fact]) -> str | None:
    """Whether a Python loop hid its dispatches behind the device's work."""
    host = {c: t for c, t in choices.items() if c.form in _ON_HOST}
    if not host:
        return None
    classic = [c for c in host if c.form == "python" and c.parameter == 1]
    choice = classic[0] if classic else min(host, key=lambda c: host[c].ratio or math.inf)
    trial = host[choice]
    assert trial.ratio is not None
    if (trial.ratio_low or trial.ratio) > _SHOWN:
        shown = _dispatch_cost(written, trial, _steps(choice, facts))
        return (
            f"The Python loop {choice} did not hide its dispatches: {_times(trial.ratio)} the time as written{shown}."
        )
    if (trial.ratio_high or trial.ratio) <= _HIDDEN:
        return f"The Python loop {choice} hid its dispatches behind the device: {_ends(trial)}."
    return f"Too noisy to tell whether the Python loop {choice} hid its dispatches: {_ends(trial)}."


def _steps(choice: Choice, facts: Mapping[str, _Fact]) -> int | None:
    count = _iterations(facts, choice.path)
    return math.ceil(count / choice.parameter) if count and isinstance(choice.parameter, int) else count


def _dispatch_cost(written: Trial, trial: Trial, steps: int | None) -> str:
    if not steps or not written.run_s or trial.ratio is None:
        return ""
    work_s = written.run_s / steps
    extra = seconds_text((trial.ratio - 1) * work_s)
    return f", {extra} more for each of its {steps:,} steps, whose work takes {seconds_text(work_s)}"


def _cliff(plans: Mapping[Plan, Trial]) -> str | None:
    """The steepest step between two neighbouring rungs of a ladder."""
    falls = [
        (below.ratio / above.ratio, above, below) for above, below in _neighbours(plans) if above.ratio and below.ratio
    ]
    if not falls or (worst := max(falls, key=lambda fall: fall[0]))[0] < _CLIFF:
        return None
    _, above, below = worst
    before, after = _times(above.ratio or 0.0), _times(below.ratio or 0.0)
    return f"There is a cliff: {above.plan} takes {before} the time as written, {below.plan} {after}."


def _neighbours(plans: Mapping[Plan, Trial]) -> Iterator[tuple[Trial, Trial]]:
    """Pairs of trials that differ in a form's number only, with no number between them tried."""
    ladders: dict[tuple[Plan, str, tuple[int, ...]], list[tuple[int, Trial]]] = {}
    for plan, trial in plans.items():
        for choice in plan.choices:
            if isinstance(choice.parameter, int):
                ladder = ladders.setdefault((plan.without(choice.path), choice.form, choice.path), [])
                ladder.append((choice.parameter, trial))
    for rungs in ladders.values():
        ordered = sorted(rungs, key=lambda rung: rung[0])
        yield from ((lower, upper) for (_, lower), (_, upper) in itertools.pairwise(ordered))


def _plans(timed: Sequence[Trial]) -> dict[Plan, Trial]:
    found = {}
    for trial in timed:
        with contextlib.suppress(ValueError):  # the text of a newer autoloop
            found[Plan.parse(trial.plan)] = trial
    return found


def sentences(record: Record) -> list[str]:
    """Two to four sentences on where the time goes and why forms won or lost; none of an untuned record."""
    written = record.trial(AS_WRITTEN)
    timed = [t for t in record.trials if t.ok and t.run_s is not None and t.ratio is not None]
    if written is None or written.run_s is None or len(timed) < 2:
        return []
    plans, facts = _plans(timed), _facts(record)
    choices = {p.choices[0]: t for p, t in plans.items() if len(p.choices) == 1 and not p.options}
    platform = record.key.get("device", "").split(" ")[0]
    found = [
        _build_or_run(written, timed),
        _body(written, choices, facts, platform),
        _python(written, choices, facts),
        _cliff(plans),
    ]
    return [sentence for sentence in found if sentence]
