"""A function pinned to one plan: what `using` returns, and what forcing a plan runs."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar, cast

from autoloop import _kept
from autoloop._call import Call
from autoloop._plan import Plan
from autoloop._program import Args, Function, HostProgram, Kwargs, Program, runs_on_host
from autoloop._records import PlanError

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("autoloop")


class Pinned(Generic[P, R]):
    """A function whose loops run as one plan says, for any arguments; it never tunes or stores.

    Under a trace a plan with Python loops runs as written. A plan that does not fit the program
    raises `ValueError` when it is called, naming what does.
    """

    __wrapped__: Callable[P, R]

    def __init__(self, function: Function, plan: Plan) -> None:
        functools.update_wrapper(self, function.fun)
        self._function, self._plan = function, plan
        #: The function in this plan as `jax.jit` gives it; for plans that are one program.
        self.jitted = function.jit(lambda *args, **kwargs: function.emit(plan, args, kwargs, strict=True), plan.options)
        self._hosts: dict[Hashable, HostProgram] = {}

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function as planned."""
        try:
            return self._run(args, kwargs)
        except TypeError:
            if (kept := _kept.keep(self._function.statics, args, kwargs)) is None:
                raise
        return cast(R, _kept.free(self._run(*kept)))

    def _run(self, args: Args, kwargs: Kwargs) -> R:
        if not runs_on_host(self._plan):
            return cast(R, self.jitted(*args, **kwargs))
        call = Call.of(self._function, args, kwargs)
        if call.in_trace:
            _log.info("%s: %s needs a Python loop, in a trace it runs as written", self._function.name, self._plan)
            return cast(R, self._function.plain(*args, **kwargs))
        host = self._hosts.get(call.name)
        if host is None:
            host = self._hosts[call.name] = self._build(call)
        return cast(R, host(*args, **kwargs))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds as a plain function does."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<autoloop {self._function.name} using {self._plan}>"

    def _build(self, call: Call) -> HostProgram:
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        if program is None:
            raise PlanError(f"{self._plan}: the function closes over tracers, so no Python loop can run it")
        if reason := program.why_not(self._plan):
            raise PlanError(reason)
        candidate = program.candidate(self._plan)
        assert isinstance(candidate, HostProgram)
        return candidate
