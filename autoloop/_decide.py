"""Which plan is in force for a call: from memory, else from the store, else from a tuning."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Hashable
from dataclasses import replace

from autoloop import _listeners, _miss, _signature, _tune, _variants, _wanted
from autoloop._call import Call
from autoloop._config import Settings
from autoloop._crew import ALONE, Crew
from autoloop._decision import AS_WRITTEN, FOR_NOW, Case, Decision, of_record, untuned, why_untuned
from autoloop._function import Function
from autoloop._options import Options
from autoloop._plan import Plan
from autoloop._plans import runs_in_trace
from autoloop._processes import Group
from autoloop._program import Program
from autoloop._records import MissError, Record, UnsupportedJaxError
from autoloop._several import Question, Several
from autoloop._stores import store_of
from autoloop._tuner import Tuner
from autoloop._warning import warn

_log = logging.getLogger("autoloop")

#: How many budgets another thread waits for a tuning to end before it runs as written.
_PATIENCE = 2.0

#: A plan tried on a shortened program is demoted if a whole call takes this much longer than foretold.
_DEMOTE_ABOVE = 1.1


class Decider:
    """Decisions of one decorated function."""

    def __init__(self, function: Function, options: Options) -> None:
        self._function, self._options = function, options
        self._tuner = Tuner(function, options)
        self._lock = threading.RLock()
        self._known: dict[Hashable, Decision] = {}
        self._warned: set[str] = set()
        self._several = Several()
        #: Calls in a trace about which the processes agreed that there is no plan.
        self._missed: dict[Hashable, Decision] = {}

    def known(self, call: Call, settings: Settings) -> Decision | None:
        """The decision remembered in memory or in the store; never tunes.

        In a program of several processes only what they agreed on counts, which stands in memory.
        """
        found = self._known.get(self._name(call, settings))
        if found is not None or self.group(call) is not None:
            return found
        with contextlib.suppress(UnsupportedJaxError):
            program = Program.trace(self._function, call.key, call.args, call.kwargs)
            if program is not None and program.loops:
                return self._from_store(self._case(program, call, settings))
        return None

    def in_memory(self, call: Call, settings: Settings) -> Decision | None:
        """The decision that calls of this signature run with; nothing is looked up."""
        return self._known.get(self._name(call, settings))

    def decide(self, call: Call, settings: Settings) -> Decision:
        """The decision for a call, tuned if need be and allowed.

        Raises:
            MissError: mode `strict` and nothing is remembered.
            Exception: what the user's function raises while it is traced or run.
        """
        found = self._remembered(call, settings)
        if found is not None:
            return found
        patience_s = _PATIENCE * self._tuner.budget_s(settings) + 1.0
        if not self._lock.acquire(timeout=patience_s):
            _log.warning("%s: another thread tunes for longer than %.0f s", self._function.name, patience_s)
            return FOR_NOW
        try:
            return self._decide(call, settings)
        except UnsupportedJaxError as error:
            return self._keep(call, settings, replace(AS_WRITTEN, record=self.unsupported(str(error))))
        finally:
            self._lock.release()

    def unsupported(self, problem: str) -> Record:
        """The record where the installed jax is one that we can't read, with one warning."""
        self._warn_once(f"{problem}; {self._function.name} runs as written")
        return _tune.untuned_function(self._function.name, {}, problem)

    def under_grad(self, call: Call, settings: Settings) -> Record | None:
        """The record of forward and backward pass tuned together, tuned now if need be and allowed.

        Raises:
            ValueError: there is nothing to differentiate, or no loop.
        """
        with self._lock:
            program = Program.trace(self._function, call.key, call.args, call.kwargs)
            if program is None or (reason := why_untuned(program, self._options.allow_side_effects)):
                raise ValueError(f"under='grad': {reason if program else 'the function closes over tracers'}")
            case = self._under_grad(self._case(_variants.under_grad(program), call, settings))
            alone = functools.partial(self._grad_alone, case)
            if (group := self.group(call)) is None:
                record = alone(ALONE).record
            else:
                record = self._several.decide(group, self._question(case), alone)[0].record
            self._known.pop(self._name(call, settings), None)  # decided before this was known
            return record

    def _grad_alone(self, case: Case, crew: Crew) -> Decision:
        record, tunes = case.stored(), case.settings.mode == "tune"
        if record is None and not tunes:
            return AS_WRITTEN
        if record is None or (tunes and self._tuner.worth_resuming(record, case.settings)):
            record = self._tuned(case, record, crew).record
        return of_record(case.program, record, None)

    def group(self, call: Call) -> Group | None:
        """The processes that must agree about a call; None where there is only one."""
        return self._several.group(call)

    def demote(self, call: Call, settings: Settings, reason: str) -> None:
        """Takes a plan that failed while it ran out of force, in memory and in the store, with one warning."""
        decision = self._known.get(self._name(call, settings), AS_WRITTEN)
        self._warn_once(f"{decision.plan} failed in {self._function.name} ({reason}); from now on it runs as written")
        demoted = AS_WRITTEN
        if decision.record is not None:
            record = _demoted(decision.record, f"it failed while it ran ({reason})")
            store_of(settings).put(_signature.digest(record.key), record)
            demoted = replace(AS_WRITTEN, record=record)
        self._keep(call, settings, demoted)

    def forced(self, call: Call, plan: Plan) -> Decision:
        """The decision to run a plan that was forced; where it does not fit, one warning and as written."""
        name = (*call.name, plan)
        if name not in self._known:
            try:
                program = Program.trace(self._function, call.key, call.args, call.kwargs)
            except UnsupportedJaxError as error:
                return replace(AS_WRITTEN, record=self.unsupported(str(error)))
            if program is None:
                return FOR_NOW
            if reason := program.why_not(plan):
                self._warn_once(f"the forced plan does not fit {self._function.name}: {reason}; runs as written")
                plan = Plan()
            inside = plan if runs_in_trace(plan) else Plan()
            self._known[name] = Decision(plan, inside, None, program.candidate(plan))
        return self._known[name]

    def confirm(self, call: Call, settings: Settings, seconds: float) -> Decision:
        """Takes in how long a first whole call took; a plan that is slower than as written is demoted."""
        decision = self._known.get(self._name(call, settings), AS_WRITTEN)
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        if decision.record is None or decision.whole_s is None or program is None:  # forgotten meanwhile
            return decision
        if (group := self.group(call)) is not None:
            seconds = self._several.slowest(group, self._question(self._case(program, call, settings)), seconds)
        # A plan that was chosen because it builds faster may run slower.
        record, allowed = decision.record, _DEMOTE_ABOVE * max(1.0, 1 / (decision.record.gain or 1.0))
        note = f"the first whole call took {seconds:.3g} s, as written it was expected to take {decision.whole_s:.3g} s"
        record = record.replace(notes=(*record.notes, note))
        if seconds > allowed * decision.whole_s and not decision.plan.as_written:
            record = _demoted(record, "the whole call was slower than expected of as-written")
        store_of(settings).put(_signature.digest(record.key), record)
        _listeners.tell(record)
        kept = decision.candidate if record.winner == str(decision.plan) else None
        confirmed = of_record(program, record, kept)
        return self._keep(call, settings, confirmed)

    def forget(self, call: Call | None, settings: Settings) -> None:
        """Drops what is remembered for a call, or for all calls of the function."""
        store = store_of(settings)
        for key in self._stored_keys(call, settings):
            store.delete(key)
        self._missed.clear()
        if call is None:
            self._known.clear()
        else:
            self._known.pop(self._name(call, settings), None)

    def explain(self, call: Call, settings: Settings) -> _miss.Answer:
        """Why nothing is remembered for a call."""
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        parts = {} if program is None else self._case(program, call, settings).parts
        allowed, goes_on = self._options.allow_side_effects, lambda found: self._tuner.goes_on(found, call, settings)
        return _miss.answer(self._function, program, call, parts, store_of(settings), allowed, goes_on)

    # ------------------------------------------------------------ private

    def _name(self, call: Call, settings: Settings) -> Hashable:
        return (*call.name, settings.cache_dir, settings.wisdom)

    def _remembered(self, call: Call, settings: Settings) -> Decision | None:
        """The decision in memory, unless this call is to go on with a tuning, or to check it again."""
        found = self._known.get(self._name(call, settings))
        record = None if found is None else found.record
        return None if record is not None and self._tuner.goes_on(record, call, settings) else found

    def _decide(self, call: Call, settings: Settings) -> Decision:
        if (known := self._remembered(call, settings)) is not None:
            return known
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        if program is None:
            return FOR_NOW
        case = self._case(program, call, settings)
        if reason := why_untuned(program, self._options.allow_side_effects):
            return self._keep(call, settings, untuned(program, case.parts, reason))
        if (group := self.group(call)) is not None:
            return self._decide_together(group, case)
        return self._decide_alone(case, ALONE)

    def _decide_together(self, group: Group, case: Case) -> Decision:
        """The decision of all processes; what this one would decide by itself counts only if it leads."""
        call, name = case.call, self._name(case.call, case.settings)
        if call.in_trace and name in self._missed:
            return self._missed[name]
        alone = functools.partial(self._decide_alone, case)
        decision, reason = self._several.decide(group, self._question(case), alone)
        if reason:
            self._warn_once(f"{self._function.name}: {reason}; all of them run as written")
        if decision.record is not None:
            return self._keep(call, case.settings, decision)
        self._known.pop(name, None)
        if call.in_trace:
            self._missed[name] = decision
        return decision

    def _question(self, case: Case) -> Question:
        request = functools.partial(self._tuner.request, case.program, case.parts, case.call, case.settings)
        return Question(case.call, case.program, case.parts, self._tuner.budget_s(case.settings), request)

    def _decide_alone(self, case: Case, crew: Crew) -> Decision:
        call, mode = case.call, case.settings.mode
        found = self._from_store(case)
        may_tune = mode == "tune" and not call.in_trace
        partial = found.record if found is not None and may_tune else None
        if found is not None and not (partial is not None and self._tuner.goes_on(partial, call, case.settings)):
            return found
        if found is None and mode == "strict":
            raise MissError(_miss.strict_text(self._function, case.program, call, case.parts, case.store))
        if not may_tune:
            if mode == "cached":
                _wanted.note(case.store, self._function, call, case.parts)
            decision = self._with_grad_plan(replace(AS_WRITTEN, repeatable=not case.program.effects), case)
            inside = f"in a trace as {decision.trace_plan}" if call.in_trace else "as written"
            _log.info("%s: no record for %s; runs %s", self._function.name, case.parts["arguments"], inside)
            return decision
        tuned = self._tuned(case, partial, crew)
        decision = replace(of_record(case.program, tuned.record, tuned.winner), whole_s=tuned.whole_s)
        return self._keep(call, case.settings, self._with_grad_plan(decision, case))

    def _tuned(self, case: Case, partial: Record | None, crew: Crew) -> _tune.Tuned:
        return self._tuner.tune(case.program, case.parts, case.call, case.settings, case.store, partial, crew)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            warn(text)
            self._warned.add(text)  # not if the warning was raised as an error: the next call raises again

    def _from_store(self, case: Case) -> Decision | None:
        record = case.stored()
        if record is None:
            return None
        decision = self._with_grad_plan(of_record(case.program, record, None), case)
        return self._keep(case.call, case.settings, decision)

    def _with_grad_plan(self, decision: Decision, case: Case) -> Decision:
        """The decision, with the plan that was tuned under `grad` for traces, if there is one."""
        record = self._under_grad(case).stored()
        return decision if record is None else replace(decision, trace_plan=Plan.parse(record.winner))

    def _keep(self, call: Call, settings: Settings, decision: Decision) -> Decision:
        self._known[self._name(call, settings)] = decision
        return decision

    def _case(self, program: Program, call: Call, settings: Settings) -> Case:
        parts = _signature.parts(program.traced, call.key, call.places, self._options.context())
        return Case(program, parts, call, settings)

    def _under_grad(self, case: Case) -> Case:
        """The same case under `grad`; the program is not read once more for its parts."""
        return replace(case, parts={**case.parts, "context": self._options.context("grad")})

    def _stored_keys(self, call: Call | None, settings: Settings) -> list[str]:
        if call is None:
            items = store_of(settings).items()
            return [key for key, record in items if record.function == self._function.name]
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        if program is None:
            return []
        case = self._case(program, call, settings)
        return [_signature.digest(one.parts) for one in (case, self._under_grad(case))]


def _demoted(record: Record, why: str) -> Record:
    return record.replace(winner=str(Plan()), verdict=f"{record.winner} was demoted: {why}")
