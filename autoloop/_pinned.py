"""A function pinned to one plan: what `using` returns, and what forcing a plan runs."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from autoloop import _jaxpr, _kept
from autoloop._call import Call
from autoloop._function import Args, Function, Kwargs
from autoloop._plan import Plan
from autoloop._plans import runs_on_host
from autoloop._program import Found, HostProgram, Miss, Planned, Program
from autoloop._records import PlanError

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")

_log = logging.getLogger("autoloop")


def look_like(wrapper: Any, fun: Any) -> None:
    """Gives a wrapper the name, text and attributes of what it wraps, but none that the wrapper has itself."""
    functools.update_wrapper(wrapper, fun, updated=())
    own = {name: value for name, value in getattr(fun, "__dict__", {}).items() if not name.startswith("_")}
    vars(wrapper).update({name: value for name, value in own.items() if not hasattr(type(wrapper), name)})


class Pinned(Generic[P, R]):
    """A function whose loops run as one plan says, for any arguments; it never tunes or stores.

    Under a trace a plan with Python loops runs as written. A plan that does not fit the program
    raises `ValueError` when it is called, naming what does; unless `strict`, it runs as written.
    """

    __wrapped__: Callable[P, R]

    def __init__(self, function: Function, plan: Plan, strict: bool = True) -> None:
        look_like(self, function.fun)
        self._function, self._plan = function, plan
        self._on_host = runs_on_host(plan)
        #: The function in this plan as `jax.jit` gives it; for plans that are one program.
        self.jitted = function.jit(lambda *args, **kwargs: function.emit(plan, args, kwargs, strict), plan.options)
        self._hosts = Planned(function, {}, donate=False)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function as planned."""
        try:
            return self._run(args, kwargs)
        except TypeError:
            if (kept := _kept.keep(self._function.statics, args, kwargs)) is None:
                raise
        return cast(R, _kept.free(self._run(*kept)))

    def _run(self, args: Args, kwargs: Kwargs) -> R:
        if not self._on_host:
            return cast(R, self.jitted(*args, **kwargs))
        if _jaxpr.under_trace():
            return self._traced(args, kwargs)
        try:
            found = self._hosts.jitted(*args, **kwargs)
        except Miss:
            pass  # left before the miss is resolved, so that a user's error has no context of ours
        else:
            # If not `Found`, then jit is disabled and ran the function as written.
            return cast(R, found.host(*args, **kwargs) if type(found) is Found else found)
        return cast(R, self._build(Call.of(self._function, args, kwargs))(*args, **kwargs))

    def plan(self, /, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """The plan in force, whatever the arguments: the one that it is pinned to."""
        return self._plan

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...

    @overload
    def __get__(self: Pinned[Concatenate[S, Q], R], instance: S, owner: Any = None) -> Callable[Q, R]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds as a plain function does."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<autoloop {self._function.name} using {self._plan}>"

    def _traced(self, args: Any, kwargs: Any) -> R:
        _log.info("%s: %s needs a Python loop, in a trace it runs as written", self._function.name, self._plan)
        return cast(R, self._function.plain(*args, **kwargs))

    def _build(self, call: Call) -> HostProgram:
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        if program is None:
            raise PlanError(f"{self._plan}: the function closes over tracers, so no Python loop can run it")
        if reason := program.why_not(self._plan):
            raise PlanError(reason)
        candidate = program.candidate(self._plan)
        assert isinstance(candidate, HostProgram)
        self._hosts.hosts[call.key] = candidate
        _jaxpr.dispatch_anew(self._hosts.jitted)
        self._hosts.jitted(*call.args, **call.kwargs)  # computes nothing, but takes it in while all is as it was traced
        return candidate
