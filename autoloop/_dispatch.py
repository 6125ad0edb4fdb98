"""The decorator and what it returns: dispatch of a call to the plan in force.

The hot path is one `jax.jit` call. Its traced function looks the plan up and emits it, so a known
signature costs what jit costs. An unknown one raises `Miss` out of the trace, of which jax caches
nothing; only then does Python look at the arguments. Where the winner is a Python loop, the jit computes
nothing and gives the loop to run. Calls on data that the user placed somewhere else are dispatched by a key
made in Python, and so are Python loops that donate, and a second set of XLA options.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar, cast

import jax

from autoloop import _config, _host, _html, _jaxpr, _kept, _options, _plot, _report
from autoloop._asked import Asked
from autoloop._call import Call
from autoloop._decision import AS_WRITTEN, Decision
from autoloop._function import Args, Function, Kwargs
from autoloop._program import Found, HostProgram, Miss, OneProgram, Planned
from autoloop._records import Record
from autoloop._watch import Watches

P = ParamSpec("P")
R = TypeVar("R")


class Autoloop(Asked[P, R]):
    """A function whose loops run in the form that was fastest on this device.

    Called with values of a signature for the first time, it tunes: it trials candidate plans on these
    arguments within the budget, and remembers the winner in memory and on disk. Afterwards it
    dispatches to it. Inside `jit`, `grad`, `vmap` and other transformations it never tunes: it uses
    the plan that `warmup(..., under="grad")` found, else the remembered plan if that is one program
    that JAX can differentiate, else the function as written.
    """

    def __init__(self, function: Function, options: _options.Options) -> None:
        self._lock, self._confirming = threading.RLock(), threading.Lock()
        self._watches = Watches(function, options)
        super().__init__(function, options)

    def _reset(self) -> None:
        self._watches.forget()
        self._take(Planned(self._function, {}))
        #: Candidates found by a key made in Python: see `_needs_key`.
        self._keyed: dict[Hashable, Callable[..., Any]] = {}
        #: Whether calls leave the hot path: some were placed elsewhere, a bar is to be shown, or the installed
        #: jax lacks what we need.
        self._by_key = self._watches.option or bool(_jaxpr.missing())
        #: Whether some signature has another plan for traces than the hot path holds.
        self._apart = False
        #: Whether some program may not be run twice for one call.
        self._once = False

    def _take(self, planned: Planned) -> None:
        self._planned, self._fast = planned, planned.jitted
        self._count, self._entries = _jaxpr.counter(self._fast), 0

    # ------------------------------------------------------------ calling

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function in the form that is in force for these arguments."""
        if self._keyed or self._by_key or _config.overridden():
            return self._call_keyed(args, kwargs)
        if self._apart and _jaxpr.under_trace():
            return self._resolve(args, kwargs)
        kept = None
        try:
            result = self._fast(*args, **kwargs)
        except Miss:
            pass  # left before the miss is resolved, so that a user's error has no context of ours
        except ValueError:
            if not self._options_in_trace(args, kwargs):
                raise
        except TypeError:
            if (kept := self._kept(args, kwargs)) is None:
                raise
        except jax.errors.JaxRuntimeError as error:
            return self._run_as_written(args, kwargs, error)
        else:
            if self._count() == self._entries or not self._misplaced(args, kwargs):
                return cast(R, result if type(result) is not Found else self._run_host(result.host, args, kwargs))
        return self._resolve(args, kwargs) if kept is None else cast(R, _kept.free(self(*kept[0], **kept[1])))

    def _run_host(self, program: HostProgram, args: Args, kwargs: Kwargs) -> R:
        """A Python loop, which jit's dispatch found for the call's signature."""
        try:
            return cast(R, program(*args, **kwargs))
        except jax.errors.JaxRuntimeError as error:
            return self._run_as_written(args, kwargs, error)

    def _call_keyed(self, args: Args, kwargs: Kwargs) -> R:
        if problem := _jaxpr.missing():
            self._decider.unsupported(problem)
            return cast(R, self._function.plain(*args, **kwargs))
        if _config.overridden() or self._watches.option:
            return self._resolve(args, kwargs)
        call = self._take_apart(args, kwargs)
        if call is None:
            return self._unusual(args, kwargs)
        candidate = None if call.in_trace else self._keyed.get(call.name)
        try:
            if candidate is not None:
                return cast(R, candidate(*args, **kwargs))
            if not (self._apart if call.in_trace else call.placed):
                result = self._fast(*args, **kwargs)
                return cast(R, result if type(result) is not Found else result.host(*args, **kwargs))
        except Miss:
            pass
        except ValueError:
            if candidate is not None or not self._options_in_trace(args, kwargs):
                raise
        except jax.errors.JaxRuntimeError as error:
            return self._run_as_written(args, kwargs, error)
        return self._resolve(args, kwargs)

    def _kept(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """The arguments with leaves that jit can't take made static; None if there are none."""
        return _kept.keep(self._function.statics, args, kwargs)

    def _unusual(self, args: Args, kwargs: Kwargs) -> R:
        """A call with arguments that jit can't take: with those leaves static, else jit says so itself."""
        kept = None if jax.config.jax_disable_jit else self._kept(args, kwargs)  # type: ignore[attr-defined]
        if kept is None:
            return cast(R, self._function.plain(*args, **kwargs))
        return cast(R, _kept.free(self(*kept[0], **kept[1])))

    def _run_as_written(self, args: Args, kwargs: Kwargs, error: jax.errors.JaxRuntimeError) -> R:
        """A call of which the plan failed while it ran, if its arguments are still there; else the error.

        What fails as written too is the user's: the error of that run reaches them. Otherwise the plan
        is demoted, so that it fails only once.
        """
        call = self._take_apart(args, kwargs)
        if call is None or call.in_trace or any(getattr(leaf, "is_deleted", bool)() for leaf in call.leaves):
            raise error
        if self._decider.group(call) is not None:
            raise error  # the other processes may run the plan: this one can't leave it by itself
        settings = _config.current(self._options.mode)
        decision = self._decider.in_memory(call, settings)
        if settings.mode == "off" or settings.plan is not None or decision is None:
            raise error  # not a plan of ours
        if decision.plan.as_written or not decision.repeatable:
            raise error
        result = jax.block_until_ready(self._function.plain(*args, **kwargs))
        self._decider.demote(call, settings, str(error).splitlines()[0][:200])
        self._reset()
        return cast(R, result)

    def _take_apart(self, args: Args, kwargs: Kwargs) -> Call | None:
        """The call, or None for arguments that jit can't take: it is to say so itself."""
        try:
            return Call.of(self._function, args, kwargs)
        except (TypeError, ValueError):
            return None

    def _options_in_trace(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether jax may have refused the fast jit for its XLA options: legal only at top level."""
        return bool(self._planned.options) and Call.of(self._function, args, kwargs).in_trace

    def _misplaced(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether a call that made jax compile once more ran with a plan of another placement, and can run again.

        jit shares a trace between devices, so data that the user placed elsewhere is served by the plan for
        another device: right, but perhaps not the fastest, and perhaps with its outputs elsewhere than as
        written. From now on a key made in Python tells the placements apart. What was donated is gone, and
        side effects were had, so then that one call keeps its result.
        """
        self._entries = self._count()
        call = Call.of(self._function, args, kwargs)
        if not call.placed or call.in_trace:
            return False
        self._by_key = True
        return not self._once and not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in call.leaves)

    def _resolve(self, args: Args, kwargs: Kwargs) -> R:
        settings = _config.current(self._options.mode)
        call = self._take_apart(args, kwargs)
        if call is None or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self._unusual(args, kwargs)
        decision = self._decision(call, settings)
        if call.in_trace:
            return self._pin(decision.trace_plan, strict=False)(*args, **kwargs)
        watched = self._watches.find(call, decision, settings.mode, self._decider.group)
        if watched is not None:
            return cast(R, watched(*args, **kwargs))
        try:
            return self._run_decided(call, decision, settings)
        except jax.errors.JaxRuntimeError as error:
            return self._run_as_written(args, kwargs, error)

    def _run_decided(self, call: Call, decision: Decision, settings: _config.Settings) -> R:
        """The call in the plan that was decided on; where it is settled, later ones take it without asking."""
        run = decision.candidate or self._function.plain
        if decision.whole_s is not None and decision.candidate is not None:
            if not self._confirming.acquire(blocking=False):  # another thread does
                return cast(R, run(*call.args, **call.kwargs))
            try:
                return self._confirm(call, decision, settings)
            finally:
                self._confirming.release()
        if _config.overridden() or not decision.settled:
            return cast(R, run(*call.args, **call.kwargs))
        with self._lock:
            run = self._install(call, decision)
        try:
            result = run(*call.args, **call.kwargs)
        except Miss:
            return cast(R, self._function.plain(*call.args, **call.kwargs))
        if run is self._fast:
            self._entries = self._count()
        return cast(R, result)

    def _decision(self, call: Call, settings: _config.Settings) -> Decision:
        if settings.mode == "off":
            return AS_WRITTEN
        return self._forced(call, settings) or self._decider.decide(call, settings)

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

    def _install(self, call: Call, decision: Decision) -> Callable[..., Any]:
        """Makes a decision the one that later calls of its signature take; returns what runs this one."""
        candidate = decision.candidate
        self._apart |= decision.trace_plan != decision.plan
        self._once |= not decision.repeatable
        if self._needs_key(call, candidate):
            run = self._keyed[call.name] = candidate or self._function.plain
            return cast(Callable[..., Any], run)
        if isinstance(candidate, HostProgram):
            self._planned.hosts[call.key] = candidate
            self._dispatch_anew()
            self._fast(*call.args, **call.kwargs)  # computes nothing, but takes it in while all is as it was traced
            return candidate
        if not self._planned.plans and not self._planned.hosts and isinstance(candidate, OneProgram):
            # The trial compiled this very program: take its jit over instead of compiling again.
            self._take(candidate.planned)
        else:
            self._planned.plans.setdefault(call.key, decision.plan)
            self._dispatch_anew()
        return cast(Callable[..., Any], self._fast)

    def _dispatch_anew(self) -> None:
        _jaxpr.dispatch_anew(self._fast)
        self._entries = 0  # each placement is looked at again

    def _needs_key(self, call: Call, candidate: OneProgram | HostProgram | None) -> bool:
        """Whether the hot path can't serve a candidate: it is one jit with one set of XLA options."""
        if call.placed:
            return True
        if isinstance(candidate, HostProgram):
            return self._function.donates  # that jit would be given what the loop is to consume
        return (
            candidate is not None and bool(self._planned.plans) and candidate.planned.options != self._planned.options
        )

    def _forget_fast(self, call: Call) -> None:
        """If a call is dispatched as it was before something was found out about it, lets it look again."""
        if call.key in self._planned.plans or call.key in self._planned.hosts or call.name in self._keyed:
            self._reset()


# A record shows as its report; the record itself, plain data, does not know how.
Record.__str__ = _report.text  # type: ignore[assignment,method-assign]
Record._repr_html_ = _html.html  # type: ignore[assignment,method-assign]
Record.plot = _plot.plot  # type: ignore[assignment,method-assign]
