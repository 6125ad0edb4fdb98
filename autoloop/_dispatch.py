"""The decorator and what it returns: dispatch of a call to the plan in force.

The hot path is one `jax.jit` call. Its traced function looks the plan up and emits it, so a known
signature costs what jit costs. An unknown one raises `Miss` out of the trace, of which jax caches
nothing; only then does Python look at the arguments. Signatures whose winner is a Python loop, and
calls on data that the user placed somewhere else, are dispatched by a key made in Python.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import types
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar, cast

import jax

from autoloop import _config, _host, _html, _options, _plot, _report, _tune
from autoloop._call import Call
from autoloop._decide import Decider
from autoloop._decision import AS_WRITTEN, Decision
from autoloop._pinned import Pinned
from autoloop._plan import Plan
from autoloop._program import (
    Args,
    Function,
    HostProgram,
    Kwargs,
    Miss,
    OneProgram,
    Planned,
    Program,
    check_plan,
    runs_in_trace,
)
from autoloop._records import PlanError, Record

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("autoloop")


class Autoloop(Generic[P, R]):
    """A function whose loops run in the form that was fastest on this device.

    Called with values of a signature for the first time, it tunes: it trials candidate plans on these
    arguments within the budget, and remembers the winner in memory and on disk. Afterwards it
    dispatches to it. Inside `jit`, `grad`, `vmap` and other transformations it never tunes: it uses
    the remembered plan if that is one program, else the function as written.
    """

    __wrapped__: Callable[P, R]

    def __init__(self, function: Function, options: _options.Options) -> None:
        functools.update_wrapper(self, function.fun)
        self._function, self._options = function, options
        self._decider = Decider(function, options)
        self._pins: dict[Plan, Pinned[P, R]] = {}
        self._lock = threading.RLock()
        self._reset()

    def _reset(self) -> None:
        self._planned = Planned(self._function, {})
        self._fast = self._planned.jitted
        self._entries = 0
        #: Candidates found by a key made in Python: host programs, and placed arguments.
        self._keyed: dict[Hashable, OneProgram | HostProgram] = {}
        self._watch_places = False

    # ------------------------------------------------------------ calling

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in the form that is in force for these arguments."""
        if self._keyed or self._watch_places or _config.overridden():
            return self._call_keyed(args, kwargs)
        try:
            result = self._fast(*args, **kwargs)
        except Miss:
            pass  # left before the miss is resolved, so that a user's error has no context of ours
        except ValueError:
            if not self._options_in_trace(args, kwargs):
                raise
        else:
            if self._fast._cache_size() != self._entries:
                self._note_entry(args, kwargs)
            return cast(R, result)
        return self._resolve(args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds as a plain function does, so that methods can be decorated."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<autoloop {self._function.name}>"

    def _call_keyed(self, args: Args, kwargs: Kwargs) -> R:
        if _config.overridden():
            return self._resolve(args, kwargs)
        call = self._take_apart(args, kwargs)
        if call is None:
            return cast(R, self._function.plain(*args, **kwargs))
        candidate = self._keyed.get(call.name)
        if candidate is not None and not call.in_trace:
            return cast(R, candidate(*args, **kwargs))
        if not call.placed or call.in_trace:
            try:
                return cast(R, self._fast(*args, **kwargs))
            except Miss:
                pass
            except ValueError:
                if not self._options_in_trace(args, kwargs):
                    raise
        return self._resolve(args, kwargs)

    def _take_apart(self, args: Args, kwargs: Kwargs) -> Call | None:
        """The call, or None for arguments that jit can't take: it is to say so itself."""
        try:
            return Call.of(self._function, args, kwargs)
        except (TypeError, ValueError):
            return None

    def _options_in_trace(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether jax may have refused the fast jit for its XLA options: legal only at top level."""
        return bool(self._planned.options) and Call.of(self._function, args, kwargs).in_trace

    def _note_entry(self, args: Args, kwargs: Kwargs) -> None:
        """Jax compiled the program for one more signature or placement of its arguments.

        jit shares a trace between devices, so a call on data that the user placed elsewhere ran with
        the plan of another placement just now: right, but perhaps not the fastest. From now on a key
        made in Python tells the placements apart.
        """
        self._entries = self._fast._cache_size()
        call = Call.of(self._function, args, kwargs)
        if call.placed and not call.in_trace:
            self._watch_places = True

    def _resolve(self, args: Args, kwargs: Kwargs) -> R:
        settings = _config.current()
        call = self._take_apart(args, kwargs)
        if call is None or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return cast(R, self._function.plain(*args, **kwargs))
        decision = self._decision(call, settings)
        if call.in_trace:
            return self._pin(decision.trace_plan)(*args, **kwargs)
        if decision.whole_s is not None and decision.candidate is not None:
            return self._confirm(call, decision, settings)
        if _config.overridden() or not decision.settled:
            run = decision.candidate or self._function.plain
            return cast(R, run(*args, **kwargs))
        return self._install(call, decision)

    def _decision(self, call: Call, settings: _config.Settings) -> Decision:
        if settings.mode == "off":
            return AS_WRITTEN
        if settings.plan is not None:
            return self._decider.forced(call, _forced_plan(settings.plan))
        return self._decider.decide(call, settings)

    def _confirm(self, call: Call, decision: Decision, settings: _config.Settings) -> R:
        """The first whole call of a plan that was tried on a shortened program, compiled before, timed."""
        candidate, cost = decision.candidate, _host.Cost()
        assert candidate is not None
        candidate.lower(call.args, call.kwargs, cost)
        candidate.compile(call.args, call.kwargs, cost)
        start = time.perf_counter()
        result = jax.block_until_ready(candidate(*call.args, **call.kwargs))
        self._decider.confirm(call, settings, time.perf_counter() - start)
        return cast(R, result)

    def _install(self, call: Call, decision: Decision) -> R:
        """Makes a decision the one that later calls of its signature take, and runs it."""
        candidate = decision.candidate
        with self._lock:
            if candidate is not None and self._needs_key(call, candidate):
                self._keyed[call.name] = candidate
                return cast(R, candidate(*call.args, **call.kwargs))
            if not self._planned.plans and isinstance(candidate, OneProgram):
                # The trial compiled this very program: take its jit over instead of compiling again.
                self._planned, self._fast = candidate.planned, candidate.planned.jitted
            else:
                self._planned.plans.setdefault(call.key, decision.plan)
        try:
            result = self._fast(*call.args, **call.kwargs)
        except Miss:
            return cast(R, self._function.plain(*call.args, **call.kwargs))
        self._entries = self._fast._cache_size()
        return cast(R, result)

    def _needs_key(self, call: Call, candidate: OneProgram | HostProgram) -> bool:
        """Whether the hot path can't serve a candidate: it is one jit with one set of XLA options."""
        if isinstance(candidate, HostProgram) or call.placed:
            return True
        plan = candidate.planned.plans[call.key]
        if not runs_in_trace(replace(plan, options=())):
            return True  # the hot path's jit is also what a transformation sees, and it may differentiate
        return bool(self._planned.plans) and candidate.planned.options != self._planned.options

    def _pin(self, plan: Plan) -> Pinned[P, R]:
        if plan not in self._pins:
            self._pins[plan] = Pinned(self._function, plan)
        return self._pins[plan]

    # ------------------------------------------------------------ asking and telling

    def using(self, plan: str | Plan) -> Pinned[P, R]:
        """The function pinned to one plan, whatever is remembered.

        Args:
            plan: a `Plan` or its text, for example `"0=python(1) 0/0=unroll(8)"` or `"as-written"`.

        Raises:
            TypeError: neither a plan nor a text.
            ValueError: not the text of a plan, or a form that does not exist. Whether the loops exist
                shows when it is called.
        """
        return self._pin(check_plan(plan))

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan | None:
        """The plan in force for these arguments (values, tracers or specs), None if none; never tunes."""
        found = self._known(args, kwargs)
        return None if found is None else found.plan

    def report(self, *args: P.args, **kwargs: P.kwargs) -> Record | None:
        """The record behind the plan in force, which prints as a table; None if there is none."""
        found = self._known(args, kwargs)
        return None if found is None else found.record

    def plans(self, *args: P.args, **kwargs: P.kwargs) -> list[Plan]:
        """The plans that tuning may try for these arguments, as written first; none is tried now."""
        call = Call.of(self._function, args, kwargs)
        program = Program.trace(self._function, call.key, args, kwargs)
        if program is None:
            return [Plan()]
        return list(_tune.space(program, self._options, call.device.platform).plans())

    def warmup(self, *args: P.args, **kwargs: P.kwargs) -> Record:
        """Tunes for these arguments now, unless a record is remembered, and returns the record.

        Args:
            *args: arrays, or `jax.ShapeDtypeStruct`s for which values are made: normal floats, zero
                integers, real keys. Nothing is donated.
            **kwargs: as `args`.

        Raises:
            RuntimeError: the mode forbids tuning, or the function closes over tracers.
        """
        settings = _config.current()
        call = Call.of(self._function, args, kwargs)
        decision = self._decider.decide(call, settings)
        if decision.record is None:
            raise RuntimeError(
                f"{self._function.name} was not tuned: mode is {settings.mode!r}, which tunes only as 'tune'"
            )
        self._forget_fast(call)
        return decision.record

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Drops what is remembered, in memory and in the store.

        With arguments (values or specs): for their signature. Without any: for the whole function.
        """
        call = Call.of(self._function, args, kwargs) if args or kwargs else None
        self._decider.forget(call, _config.current())
        self._reset()

    def _known(self, args: Args, kwargs: Kwargs) -> Decision | None:
        settings = _config.current()
        return self._decider.known(Call.of(self._function, args, kwargs), settings)

    def _forget_fast(self, call: Call) -> None:
        """If the hot path holds as-written for want of a record, lets it look again."""
        if call.key in self._planned.plans:
            self._reset()


def _forced_plan(text: str) -> Plan:
    try:
        return check_plan(text)
    except ValueError as error:
        raise PlanError(f"AUTOLOOP_PLAN (or settings(plan=...)) is {text!r}: {error}") from None


# A record shows as its report; the record itself, plain data, does not know how.
Record.__str__ = _report.text  # type: ignore[assignment,method-assign]
Record._repr_html_ = _html.html  # type: ignore[assignment,method-assign]
Record.plot = _plot.plot  # type: ignore[assignment,method-assign]
