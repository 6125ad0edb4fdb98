"""Decisions in a program of several processes: one process decides, all take it or run as written.

The lowest rank of those that make the call decides, from its memory, its store or a tuning in which
all take part. It tells the others the record; each checks that the plan fits its own program and votes
with a hash of both. Only when all hashes are equal does the plan come into force, everywhere.
"""

from __future__ import annotations

import collections
import json
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autoloop import _lockstep, _signature, _together, _tune
from autoloop._call import Call
from autoloop._decision import AS_WRITTEN, Decision, of_record, parsed, untuned
from autoloop._plan import Plan
from autoloop._processes import Group, group
from autoloop._program import OneProgram, Program
from autoloop._records import Record, RecordError
from autoloop._together import Stopped, Talk

_log = logging.getLogger("autoloop")

#: Seconds to wait for the others where no argument is spread over processes: they may never make the call.
_JOIN_S = 10.0
#: Budgets to wait for the others where all must make the call anyway.
_JOIN_BUDGETS = 2.0
#: Budgets, and seconds more, that one step of a tuning may take: a wait for the device, or a long compile.
_STEP_BUDGETS = 2.0
_STEP_SLACK_S = 60.0

#: Parts of a signature that are the same in all processes of a program: not the host, nor device numbers.
_COMMON_PARTS = ("program", "arguments", "statics", "device", "context", "schema")


class _Names:
    """Names for talks: the n-th about the same thing has the same name in all processes."""

    def __init__(self) -> None:
        self._held: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def next(self, name: str) -> str:
        with self._lock:
            self._held[name] += 1
            return f"{name}/{self._held[name]}"


#: One for the process: two wrappers of one function may ask about the same program.
_NAMES = _Names()


@dataclass(frozen=True)
class Question:
    """What is to be decided, in each of the processes.

    Attributes:
        call: the call.
        program: the function traced for it.
        parts: its signature's named parts.
        budget_s: seconds that a tuning may take.
        request: the tuning, for those who follow one.
    """

    call: Call
    program: Program
    parts: dict[str, str]
    budget_s: float
    request: Callable[[], _tune.Request]

    @property
    def kind(self) -> str:
        """What sort of decision: in a trace nothing is tuned."""
        return "trace" if self.call.in_trace else "call"


#: Decides in this process, with this crew.
Alone = Callable[[_lockstep.Leader], Decision]


class Several:
    """What one decorated function agreed on with the other processes."""

    def __init__(self, find_group: Callable[..., Group | None] = group, names: _Names = _NAMES) -> None:
        self._find_group, self._names = find_group, names
        #: Why nobody is waited for any more, "" while they are.
        self._gave_up = ""

    def group(self, call: Call) -> Group | None:
        """The processes that must agree about a call; None where there is only one."""
        return self._find_group(call.places)

    def decide(self, found: Group, question: Question, alone: Alone) -> tuple[Decision, str]:
        """(the decision of all processes, "" or why there is none and all run as written).

        Raises:
            Exception: what `alone` raises where this process decides; the others then run as written.
        """
        try:
            talk = self._begin(found, question)
            return (self._lead if talk.leads else self._follow)(talk, question, alone), ""
        except Stopped as stop:
            _log.info("processes do not agree: %s", stop.reason)
            reason = f"the processes did not agree on a plan: {stop.reason}"
            if question.call.in_trace:
                return AS_WRITTEN, reason
            return untuned(question.program, question.parts, reason), reason

    def slowest(self, found: Group, question: Question, seconds: float) -> float:
        """The largest of all processes' seconds, in all of them; infinite where they can't agree."""
        if found.transport is None:
            return math.inf
        talk = self._talk(found, "confirm", question.parts)
        try:
            return _together.slowest(talk, seconds, _step_s(question))
        except Stopped:
            return math.inf

    def _talk(self, found: Group, kind: str, parts: dict[str, str]) -> Talk:
        """The next talk about a signature."""
        assert found.transport is not None
        common = _signature.digest({name: parts[name] for name in _COMMON_PARTS})
        who = "-".join(map(str, found.ranks)) if found.shared else "all"
        return Talk(found.transport, self._names.next(f"autoloop/{kind}/{who}/{common}"), found.ranks, found.own)

    def _begin(self, found: Group, question: Question) -> Talk:
        """A talk that all have joined; the leader's first line says so."""
        if found.transport is None:
            raise Stopped("they were not started by jax.distributed.initialize")
        talk = self._talk(found, question.kind, question.parts)
        if self._gave_up:
            talk.stop(self._gave_up)
        join_s = _JOIN_BUDGETS * question.budget_s + 1.0 if found.shared else _JOIN_S
        try:
            if talk.leads:
                talk.gather(join_s)
                talk.post("all are here")
            else:
                talk.vote("here")
                talk.next(2 * join_s)  # the leader may have come last, and waited for others since
        except Stopped as stop:
            self._gave_up = stop.reason
            raise
        return talk

    def _lead(self, talk: Talk, question: Question, alone: Alone) -> Decision:
        crew = _lockstep.Leader(talk, _step_s(question))
        try:
            decision = alone(crew)
            told = {
                "record": decision.record and decision.record.to_dict(),
                "whole_s": decision.whole_s,
                "trace": str(decision.trace_plan),
            }
            mine, votes = crew.do("adopt", lambda: _hash(question, decision), **told)
            for rank, vote in votes.items():
                if vote.get("hash") != mine:
                    raise Stopped(f"process {rank} {vote.get('odd') or 'runs another program'}")
            talk.post("agreed")
        except BaseException as error:
            talk.stop(error.reason if isinstance(error, Stopped) else f"{type(error).__name__}: {error}")
            raise
        return decision

    def _follow(self, talk: Talk, question: Question, alone: Alone) -> Decision:
        wait_s = _step_s(question)
        try:
            request = question.request()
            line, runner = _tune.follow(request, talk, wait_s, "adopt")
            runner = runner if request.program is question.program else None
            decision, odd = _told(question, line, runner)
            talk.vote(json.dumps({"odd": odd} if odd else {"hash": _hash(question, decision)}))
            talk.next(wait_s)
        except Stopped:
            raise
        except BaseException as error:
            talk.stop(f"{type(error).__name__}: {error}")
            raise
        return decision


def _step_s(question: Question) -> float:
    return _STEP_BUDGETS * question.budget_s + _STEP_SLACK_S


def _hash(question: Question, decision: Decision) -> str:
    """What must be equal in all processes: the program, the plan at top level and the one in a trace."""
    plans = {"plan": str(decision.plan), "trace": str(decision.trace_plan)}
    return _signature.digest({"program": question.parts["program"], **plans})


def _told(question: Question, line: dict[str, Any], runner: Any) -> tuple[Decision, str]:
    """(the decision that the leader told, "" or what is wrong with it here)."""
    inside = parsed(line["trace"])
    if inside is None or (reason := question.program.why_not(inside)):
        return AS_WRITTEN, f"can't run {line['trace']}: {'no such plan' if inside is None else reason}"
    if line["record"] is None:
        return replace(AS_WRITTEN, trace_plan=inside), ""
    try:
        record = Record.from_dict(line["record"])
    except RecordError as error:
        return AS_WRITTEN, f"can't read the record: {error}"
    plan = parsed(record.winner)
    if plan is None or (reason := question.program.why_not(plan)):
        return AS_WRITTEN, f"can't run {record.winner}: {'no such plan' if plan is None else reason}"
    decision = of_record(question.program, record, _compiled(runner, plan))
    return replace(decision, whole_s=line["whole_s"], trace_plan=inside), ""


def _compiled(runner: Any, plan: Plan) -> OneProgram | None:
    """The program of a plan that this process compiled when it followed a tuning of the whole function."""
    ready = None if runner is None else runner.ready.get(plan)
    return ready.candidate if ready is not None and isinstance(ready.candidate, OneProgram) else None
