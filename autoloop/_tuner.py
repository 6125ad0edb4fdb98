"""One tuning beside the store: its lock, what is known of like programs, made-up arguments, its end."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoloop import _listeners, _recheck, _resume, _signature, _specs, _trial, _tune, _variants
from autoloop._call import Call
from autoloop._config import Settings
from autoloop._crew import ALONE, Crew
from autoloop._decision import parsed, unusable
from autoloop._function import Args, Function, Kwargs
from autoloop._options import Options
from autoloop._plan import Plan
from autoloop._program import Program
from autoloop._records import Record
from autoloop._store import Store

_log = logging.getLogger("autoloop")

#: A search that its budget ended goes on if today's budget is larger by this factor.
_GROWN = 1.2
#: Seconds beyond two budgets after which a dead process's lock on a device is taken over.
_LOCK_SLACK_S = 60.0
#: Seconds for which a tuning that failed is not tried again, by any process on the same store.
_RETRY_S = 3600.0


@dataclass(frozen=True)
class Tuner:
    """Tunes one decorated function and keeps the records."""

    function: Function
    options: Options

    def budget_s(self, settings: Settings) -> float:
        """Seconds that one tuning may take."""
        return self.options.budget_s if settings.budget_s is None else settings.budget_s

    def worth_resuming(self, record: Record, settings: Settings) -> bool:
        """Whether there are new forms, or budget left for a search that ended early: an interrupt's, a larger one."""
        if not record.expires and _resume.new_forms(record, self.options):
            return True
        budget_s = self.budget_s(settings)
        grown = budget_s > _GROWN * record.budget_s
        return not record.complete and (grown or (record.interrupted and record.spent_s < budget_s))

    def goes_on(self, record: Record, call: Call, settings: Settings) -> bool:
        """Whether a call that finds this record tunes all the same: to go on, or to check it on real values."""
        tunes = settings.mode == "tune" and not call.in_trace
        return tunes and (_recheck.due(record, call) or self.worth_resuming(record, settings))

    def tune(
        self,
        program: Program,
        key: Mapping[str, str],
        call: Call,
        settings: Settings,
        store: Store,
        partial: Record | None,
        crew: Crew,
    ) -> _tune.Tuned:
        """Tunes and stores the record; a failure of any kind becomes a record of as-written that expires."""
        budget_s = self.budget_s(settings)
        with store.lock(f"device {key['device']}", 2 * budget_s + _LOCK_SLACK_S, budget_s) as alone:
            if partial is None and crew is ALONE and (found := self._meanwhile(program, store, key)) is not None:
                return _tune.Tuned(found, None)
            hint, again = (None, ()) if partial is not None else self._hint(store, key)
            request = self.request(program, key, call, settings)
            request = replace(request, partial=partial, hint=hint, notes=(*request.notes, *again), crew=crew)
            request = _recheck.adjusted(request)
            if not alone:
                shared = "another process was tuning on this device at the same time"
                request = replace(request, notes=(*request.notes, shared))
            what = f"{self.function.name}({key['arguments']})"
            _log.info("tuning %s for at most %g s; later calls use the winner", what, request.budget_s)
            try:
                tuned: _tune.Tuned = _trial.guarded(
                    lambda: _tune.tune(request),
                    f"tuning {self.function.name}",
                    functools.partial(_failed, program, key),
                )
            except _tune.Interrupted as stop:
                if not request.only:  # a check that was interrupted says less than what it was to check
                    store.put(_signature.digest(key), stop.record)
                raise
            if request.only and partial is not None:
                tuned = replace(tuned, record=_recheck.merged(tuned.record, partial))
            store.put(_signature.digest(key), tuned.record)  # before another process may look for it
        _listeners.tell(tuned.record)
        return tuned if request.program is program else replace(tuned, winner=None)

    def _meanwhile(self, program: Program, store: Store, key: Mapping[str, str]) -> Record | None:
        """The record that another process stored while this one waited for the device."""
        record = store.get(_signature.digest(key))
        return None if record is None or unusable(program, record) else record

    def request(self, program: Program, key: Mapping[str, str], call: Call, settings: Settings) -> _tune.Request:
        """What is to be tuned: on real values, and without the program's prints."""
        args, kwargs, notes = self._real_arguments(call, program)
        quiet = _variants.quiet(program)
        if quiet is not program:
            args, kwargs = tuple(self.function.flatten(args, kwargs)[0]), {}
        notes = (*notes, *filter(None, [program.note]))
        return _tune.Request(quiet, args, kwargs, self.options, key, call.device, self.budget_s(settings), notes)

    def _hint(self, store: Store, key: Mapping[str, str]) -> tuple[Plan | None, tuple[str, ...]]:
        """A plan that won before and is to be tried first, and what to note of it.

        Of this very program under other versions of jax, jaxlib or the driver, else of the newest record
        of the same program with other sizes.
        """
        alike = [r for _, r in reversed(list(store.items(key["skeleton"]))) if self._is_alike(r, key)]
        for record in alike:
            if set(_differing(record, key)) == {"versions"} and (plan := self._allowed(record)):
                was = record.key["versions"]
                return plan, (f"{plan} won under {was} and was checked again under {key['versions']}",)
        for record in alike:
            if record.key["versions"] == key["versions"]:
                return self._allowed(record), ()
        return None, ()

    def _is_alike(self, record: Record, key: Mapping[str, str]) -> bool:
        same = all(record.key.get(name) == key[name] for name in ("skeleton", "device", "host"))
        return record.function == self.function.name and same and record.key != key and bool(record.key.get("versions"))

    def _allowed(self, record: Record) -> Plan | None:
        plan = parsed(record.winner)
        return plan if plan is not None and self.options.allows(plan) else None

    def _real_arguments(self, call: Call, program: Program) -> tuple[Args, Kwargs, tuple[str, ...]]:
        if not _specs.has_specs(list(call.leaves)):
            return call.args, call.kwargs, call.notes
        leaves = [_specs.make(leaf, seed) for seed, leaf in enumerate(call.leaves)]
        args, kwargs = self.function.unflatten(leaves, call.key.tree, call.key.static)
        return args, kwargs, (*call.notes, _recheck.note(program))


def _failed(program: Program, key: Mapping[str, str], reason: str) -> _tune.Tuned:
    record = _tune.untuned(program, key, f"tuning failed ({reason})", _tune.now(_RETRY_S))
    return _tune.Tuned(record, None)


def _differing(record: Record, key: Mapping[str, str]) -> list[str]:
    return [name for name in key if record.key.get(name) != key[name]]
