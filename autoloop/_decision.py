"""What is decided for one signature, and what a record says must be run."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from autoloop import _choose, _prints, _report, _signature, _tune
from autoloop._call import Call
from autoloop._config import Settings
from autoloop._plan import Plan
from autoloop._plans import runs_in_trace
from autoloop._program import HostProgram, OneProgram, Program
from autoloop._records import Record
from autoloop._store import Store
from autoloop._stores import store_of

_log = logging.getLogger("autoloop")


#: Effects that trials may repeat where the user allows it; state, as of mutable refs, is not among them.
_REPEATABLE = {"IO", "OrderedIO"}


@dataclass(frozen=True)
class Decision:
    """The plan for one signature.

    Attributes:
        plan: the plan in force.
        trace_plan: the plan in a trace, where only one program will do.
        record: the record behind it; None where the call runs as written for want of one.
        candidate: what runs `plan`; None for as written without a record.
        whole_s: seconds expected of a call as written, where a plan was tried only on a shortened
            program and is still to be confirmed by a real call.
        settled: whether later calls of the signature may take it without asking.
        repeatable: whether a call of it that failed may be run again: it has no side effects.
    """

    plan: Plan
    trace_plan: Plan
    record: Record | None
    candidate: OneProgram | HostProgram | None
    whole_s: float | None = None
    settled: bool = True
    repeatable: bool = True


AS_WRITTEN = Decision(Plan(), Plan(), None, None)
#: For this call only: the next one is to ask again.
FOR_NOW = replace(AS_WRITTEN, settled=False)


def why_untuned(program: Program, allow_side_effects: bool) -> str:
    """Why a program is not tuned at all, or "". Prints are left out of trials, other effects can't be."""
    if not program.loops:
        return "there is no loop in the program"
    effects = set(program.effects) - _prints.PRINT_EFFECTS
    if effects and not (allow_side_effects and effects <= _REPEATABLE):
        return (
            f"the program has side effects ({', '.join(sorted(effects))}), which trials would repeat; "
            f"allow_side_effects=True allows it for io_callback"
        )
    return ""


def untuned(program: Program, key: dict[str, str], reason: str) -> Decision:
    """The decision for a program that is not tuned, with the reason in its record."""
    _log.info("%s: %s; runs as written", program.function.name, reason)
    record = _tune.untuned(program, key, reason)
    repeatable = not program.effects
    return replace(AS_WRITTEN, record=record, candidate=program.candidate(Plan()), repeatable=repeatable)


def of_record(program: Program, record: Record, winner: OneProgram | HostProgram | None) -> Decision:
    """What a record says must be run; `winner` is its plan compiled, if a trial just did that."""
    plan = Plan.parse(record.winner)
    candidate = winner or program.candidate(plan)
    return Decision(plan, _trace_plan(program, record), record, candidate, repeatable=not program.effects)


def _trace_plan(program: Program, record: Record) -> Plan:
    """The best plan that is one program, of those that the record holds."""
    plans = {trial.plan: parsed(trial.plan) for trial in record.trials}  # None: of a newer autoloop
    if (winner := plans[record.winner]) is not None and runs_in_trace(winner):
        return winner
    legal = [t for t in record.trials if (p := plans[t.plan]) and not program.why_not(p) and runs_in_trace(p)]
    if not legal or legal[0].plan != str(Plan()):
        return Plan()
    best, _ = _choose.choose(legal, _choose.Rules(expected_calls=record.expected_calls))
    return plans[best.plan] or Plan()


def with_forced(record: Record, plan: str) -> Record:
    """The record for a reader who is to know that another plan than its winner is forced."""
    return record.replace(environment={**record.environment, _report.FORCED: plan})


def parsed(text: str) -> Plan | None:
    """The plan of a text, None if it is none that we know."""
    try:
        return Plan.parse(text)
    except ValueError:
        return None


def unusable(program: Program, record: Record) -> str:
    """Why a stored record can't be used for a program, "" if it can."""
    if record.expires and record.expires <= _tune.now():
        return f"it was to be forgotten at {record.expires}"
    plan = parsed(record.winner)
    if plan is None:
        return f"its plan {record.winner!r} is of another version of autoloop"
    reason = program.why_not(plan)
    return f"its plan {record.winner!r} does not fit the program: {reason}" if reason else ""


@dataclass(frozen=True)
class Case:
    """A call about which to decide: its program, the named parts of its signature, the settings in force."""

    program: Program
    parts: dict[str, str]
    call: Call
    settings: Settings

    @property
    def store(self) -> Store:
        """Where its records live."""
        return store_of(self.settings)

    def stored(self) -> Record | None:
        """The stored record of its signature, if it can be used."""
        record = self.store.get(_signature.digest(self.parts))
        if record is not None and (reason := unusable(self.program, record)):
            _log.info("a stored record is not used: %s", reason)
            return None
        return record
