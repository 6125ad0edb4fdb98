"""Which plan is in force for a call: from memory, else from the store, else from a tuning."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from autoloop import _config, _resume, _signature, _specs, _trial, _tune, _wanted, _why
from autoloop._call import Call
from autoloop._config import Settings
from autoloop._decision import AS_WRITTEN, FOR_NOW, Decision, of_record, parsed, untuned, why_untuned
from autoloop._options import Options
from autoloop._plan import Plan
from autoloop._program import Args, Function, Kwargs, OneProgram, Program, runs_in_trace
from autoloop._records import AutoloopWarning, MissError, Record
from autoloop._store import Store

_log = logging.getLogger("autoloop")

#: How many budgets another thread waits for a tuning to end before it runs as written.
_PATIENCE = 2.0

#: A plan tried on a shortened program is demoted if a whole call takes this much longer than as written.
_DEMOTE_ABOVE = 1.1
#: A search that its budget ended goes on if today's budget is larger by this factor.
_GROWN = 1.2
#: Seconds beyond two budgets after which a dead process's lock on a device is taken over.
_LOCK_SLACK_S = 60.0

_stores: dict[Hashable, Store] = {}


def store_of(settings: Settings) -> Store:
    """The store that these settings name; one object per folder and process."""
    name = (_config.cache_dir(settings), settings.wisdom)
    if name not in _stores:
        _stores[name] = Store(name[0], settings.wisdom)
    return _stores[name]


class Decider:
    """Decisions of one decorated function."""

    def __init__(self, function: Function, options: Options) -> None:
        self._function, self._options = function, options
        self._lock = threading.RLock()
        self._known: dict[Hashable, Decision] = {}
        self._warned: set[str] = set()

    def known(self, call: Call, settings: Settings) -> Decision | None:
        """The decision remembered in memory or in the store; never tunes."""
        found = self._known.get(self._name(call, settings))
        if found is not None:
            return found
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        if program is None or not program.loops:
            return None
        return self._from_store(program, call, settings)

    def decide(self, call: Call, settings: Settings, retune: bool = False) -> Decision:
        """The decision for a call, tuned if need be and allowed.

        Raises:
            MissError: mode `strict` and nothing is remembered.
            Exception: what the user's function raises while it is traced or run.
        """
        found = self._known.get(self._name(call, settings))
        if found is not None and not retune:
            return found
        patience_s = _PATIENCE * self._budget_s(settings) + 1.0
        if not self._lock.acquire(timeout=patience_s):
            _log.warning("%s: another thread tunes for longer than %.0f s", self._function.name, patience_s)
            return FOR_NOW
        try:
            return self._decide(call, settings, retune)
        finally:
            self._lock.release()

    def forced(self, call: Call, plan: Plan) -> Decision:
        """The decision to run a plan that was forced; where it does not fit, one warning and as written."""
        name = (*call.name, plan)
        if name not in self._known:
            program = Program.trace(self._function, call.key, call.args, call.kwargs)
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
        decision = self._known[self._name(call, settings)]
        assert decision.record is not None
        assert decision.whole_s is not None
        record, slow = decision.record, seconds > _DEMOTE_ABOVE * decision.whole_s
        note = f"the first whole call took {seconds:.3g} s, as written it was expected to take {decision.whole_s:.3g} s"
        record = record.replace(notes=(*record.notes, note))
        if slow and not decision.plan.as_written:
            verdict = f"{record.winner} was demoted: the whole call was slower than expected of as-written"
            record = record.replace(winner=str(Plan()), verdict=verdict)
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        assert program is not None
        store_of(settings).put(_signature.digest(record.key), record)
        kept = None if slow else decision.candidate
        confirmed = of_record(program, record, kept if isinstance(kept, OneProgram) else None)
        return self._keep(call, settings, confirmed)

    def forget(self, call: Call | None, settings: Settings) -> None:
        """Drops what is remembered for a call, or for all calls of the function."""
        store = store_of(settings)
        for key in self._stored_keys(call, settings):
            store.delete(key)
        if call is None:
            self._known.clear()
        else:
            self._known.pop(self._name(call, settings), None)

    def explain(self, call: Call, settings: Settings) -> _why.Answer:
        """Why nothing is remembered for a call."""
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        parts = {} if program is None else self._parts(program, call)
        return _why.answer(self._function, program, call, parts, store_of(settings))

    # ------------------------------------------------------------ private

    def _name(self, call: Call, settings: Settings) -> Hashable:
        return (*call.name, settings.cache_dir, settings.wisdom)

    def _budget_s(self, settings: Settings) -> float:
        return self._options.budget_s if settings.budget_s is None else settings.budget_s

    def _decide(self, call: Call, settings: Settings, retune: bool) -> Decision:
        name = self._name(call, settings)
        if name in self._known and not retune:
            return self._known[name]
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        if program is None:
            return FOR_NOW
        if reason := why_untuned(program):
            return self._keep(call, settings, untuned(program, self._parts(program, call), reason))
        found = None if retune else self._from_store(program, call, settings)
        may_tune = settings.mode == "tune" and not call.in_trace
        partial = found.record if found is not None and may_tune else None
        if found is not None and not (partial is not None and self._worth_resuming(partial, settings)):
            return found
        if found is None and settings.mode == "strict":
            raise MissError(_why.strict_text(*self._question(program, call, settings)))
        if not may_tune:
            if settings.mode == "cached":
                _wanted.note(store_of(settings), self._function, call, self._parts(program, call))
            _log.info("%s: no record for %s; runs as written", self._function.name, _arguments(call))
            return AS_WRITTEN
        return self._tune(program, call, settings, partial)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"autoloop: {text}", AutoloopWarning, stacklevel=2)

    def _worth_resuming(self, record: Record, settings: Settings) -> bool:
        """Whether there are new forms, or budget left for a search that ended early: an interrupt's, or a larger one."""
        budget_s = self._budget_s(settings)
        grown = budget_s > _GROWN * record.budget_s
        if _resume.new_forms(record, self._options):
            return True
        return not record.complete and (grown or (record.interrupted and record.spent_s < budget_s))

    def _tune(self, program: Program, call: Call, settings: Settings, partial: Record | None) -> Decision:
        """Tunes; a failure of any kind becomes a remembered as-written and one warning."""
        key, store = self._parts(program, call), store_of(settings)
        args, kwargs, notes = self._real_arguments(call)
        budget_s = self._budget_s(settings)
        request = _tune.Request(
            program,
            args,
            kwargs,
            self._options,
            key,
            call.device,
            budget_s,
            notes,
            partial,
            None if partial is not None else self._hint(store, key),
        )
        what = f"tuning {self._function.name}"
        with store.lock(f"device {key['device']}", 2 * budget_s + _LOCK_SLACK_S, budget_s) as alone:
            if not alone:
                shared = "another process was tuning on this device at the same time"
                request = replace(request, notes=(*notes, shared))
            try:
                tuned = _trial.guarded(lambda: _tune.tune(request), what)
            except _tune.Interrupted as stop:
                store.put(_signature.digest(key), stop.record)
                raise
        if tuned is None:
            return self._keep(call, settings, untuned(program, key, "tuning failed"))
        store.put(_signature.digest(key), tuned.record)
        decision = replace(of_record(program, tuned.record, tuned.winner), whole_s=tuned.whole_s)
        return self._keep(call, settings, decision)

    def _hint(self, store: Store, key: dict[str, str]) -> Plan | None:
        """The winner for the newest record of the same program with other sizes, None if there is none."""
        for _, record in reversed(list(store.items())):
            alike = all(record.key.get(name) == key[name] for name in ("skeleton", "device", "host", "versions"))
            if record.function == self._function.name and alike and record.key != key:
                plan = parsed(record.winner)
                return plan if plan is not None and self._options.allows(plan) else None
        return None

    def _real_arguments(self, call: Call) -> tuple[Args, Kwargs, tuple[str, ...]]:
        if not _specs.has_specs(list(call.leaves)):
            return call.args, call.kwargs, call.notes
        leaves = [_specs.make(leaf, seed) for seed, leaf in enumerate(call.leaves)]
        args, kwargs = self._function.unflatten(leaves, call.key.tree, call.key.static)
        return args, kwargs, (*call.notes, "arguments were made from their specs, not real")

    def _from_store(self, program: Program, call: Call, settings: Settings) -> Decision | None:
        key = self._parts(program, call)
        record = store_of(settings).get(_signature.digest(key))
        if record is None:
            return None
        plan = parsed(record.winner)
        if plan is None or (reason := program.why_not(plan)):
            _log.info("a stored plan does not fit the program: %s", record.winner if plan is None else reason)
            return None
        return self._keep(call, settings, of_record(program, record, None))

    def _keep(self, call: Call, settings: Settings, decision: Decision) -> Decision:
        self._known[self._name(call, settings)] = decision
        return decision

    def _parts(self, program: Program, call: Call) -> dict[str, str]:
        return _signature.parts(program.traced, call.key, call.places, context=self._options.context)

    def _stored_keys(self, call: Call | None, settings: Settings) -> list[str]:
        if call is None:
            items = store_of(settings).items()
            return [key for key, record in items if record.function == self._function.name]
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        return [] if program is None else [_signature.digest(self._parts(program, call))]

    def _question(self, program: Program, call: Call, settings: Settings) -> tuple[Any, ...]:
        return self._function, program, call, self._parts(program, call), store_of(settings)


def _arguments(call: Call) -> str:
    return _signature.arguments_part(call.key)
