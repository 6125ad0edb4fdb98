"""What a decorated function answers and is told: its plan, its record, its candidates; warming up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from autoloop import _config, _jaxpr, _kept, _made, _offer, _options, _signature, _tune
from autoloop._bound import Bound
from autoloop._call import Call
from autoloop._decide import Decider
from autoloop._decision import Decision, with_forced
from autoloop._function import Function
from autoloop._pinned import Pinned, look_like
from autoloop._plan import Plan
from autoloop._plans import check_plan, runs_on_host
from autoloop._program import Program
from autoloop._records import PlanError, Record, Trial, UnsupportedJaxError
from autoloop._tree import LoopTree, tree

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class Asked(Generic[P, R]):
    """The methods of a decorated function other than calling it; none of them tunes but `warmup`."""

    __wrapped__: Callable[P, R]

    def __init__(self, function: Function, options: _options.Options) -> None:
        look_like(self, function.fun)
        self._function, self._options = function, options
        self._decider = Decider(function, options)
        self._pins: dict[tuple[Plan, bool], Pinned[P, R]] = {}
        self._reset()

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function."""
        raise NotImplementedError

    def _reset(self) -> None:
        """Forgets what the hot path holds: it is to ask again."""
        raise NotImplementedError

    def _forget_fast(self, call: Call) -> None:
        """If the hot path holds as-written for want of a record, lets it look again."""
        raise NotImplementedError

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...

    @overload
    def __get__(self: Asked[Concatenate[S, Q], R], instance: S, owner: Any = None) -> Bound[Q, R]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds as a plain function does, so that methods can be decorated."""
        return self if instance is None else Bound(self, instance)

    def __reduce__(self) -> str:
        """By name, as functions: pickled where it can be imported, and its own copy."""
        return getattr(self, "__qualname__", self._function.name)

    def __repr__(self) -> str:
        return f"<autoloop {self._function.name}>"

    def using(self, plan: str | Plan) -> Pinned[P, R]:
        """The function pinned to one plan, whatever is remembered.

        Args:
            plan: a `Plan` or its text, for example `"0=python(1) 0/0=unroll(8)"` or `"as-written"`.

        Raises:
            TypeError: neither a plan nor a text.
            ValueError: not the text of a plan, or a form that does not exist. Whether the loops exist
                shows when it is called.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from autoloop import autoloop
            >>> @autoloop
            ... def total(xs):
            ...     return jax.lax.scan(lambda c, x: (c + x, None), 0.0, xs)[0]
            >>> print(total.using("0=python(1)")(jnp.ones(3)), total.plan(jnp.ones(3)))
            3.0 None
        """
        return self._pin(check_plan(plan))

    def plan(self, /, *args: P.args, **kwargs: P.kwargs) -> Plan | None:
        """The plan in force for these arguments (values, tracers or specs), None if none; never tunes.

        A plan that `AUTOLOOP_PLAN` or `settings(plan=...)` forces is in force before what is remembered
        (as written, where it does not fit); in mode `off` none is.
        """
        settings = _config.current(self._options.mode)
        if settings.mode == "off":
            return None
        call = Call.keeping(self._function, args, kwargs)
        found = self._forced(call, settings) or self._decider.known(call, settings)
        return None if found is None else found.plan

    def report(self, /, *args: P.args, **kwargs: P.kwargs) -> Record | None:
        """The record that is remembered, which prints as a table; None if there is none; never tunes.

        Where another plan is forced, or the mode is `off`, it is a copy that says so, and for a forced
        plan there is one even if nothing is remembered.
        """
        settings = _config.current(self._options.mode)
        call = Call.keeping(self._function, args, kwargs)
        known, forced = self._decider.known(call, settings), self._forced(call, settings)
        record = None if known is None else known.record
        if settings.mode == "off":
            return record and with_forced(record, f"{Plan()} (mode 'off')")
        if forced is None:
            return record
        text, wanted = str(forced.plan), str(Plan.parse(str(settings.plan)))
        text += "" if text == wanted else f" (as {wanted} does not fit)"
        return with_forced(record or self._nothing(call, forced.plan), text)

    def plans(self, /, *args: P.args, **kwargs: P.kwargs) -> list[Plan]:
        """The plans that tuning may try for these arguments, as written first; none is tried now."""
        call = Call.keeping(self._function, args, kwargs)
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        if program is None:
            return [Plan()]
        return list(_offer.space(program, self._options, call.device.platform).plans())

    def loops(self, /, *args: P.args, **kwargs: P.kwargs) -> LoopTree:
        """The loops for these arguments (values, tracers or specs), printed as a tree; never tunes.

        For each loop its trip count, the bytes carried and stacked, its share of the work, which forms
        are legal, and for each that is not, why.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from autoloop import autoloop
            >>> @autoloop
            ... def smooth(xs):
            ...     return jax.lax.scan(lambda h, x: (jnp.tanh(h + x), None), 0.0, xs)[0]
            >>> tree = smooth.loops(jax.ShapeDtypeStruct((100,), "float32"))
            >>> print(next(form.why_not for form in tree.loops[0].forms if form.form == "vmap"))
            iteration t reads `h` written by t-1
        """
        return tree(self._function, self._options, Call.keeping(self._function, args, kwargs))

    def warmup(self, /, *args: Any, under: str | None = None, **kwargs: Any) -> Record:
        """Tunes for these arguments now, unless a record is remembered, and returns the record.

        Args:
            *args: arrays, or `jax.ShapeDtypeStruct`s for which values are made: normal floats, zero
                integers, real keys. Nothing is donated.
            under: None for calls of the function itself. `"grad"` tunes forward and backward pass
                together, gradients checked too; wherever the function is called under a trace, that
                record's plan is preferred. (A function's own argument `under` is given by position.)
            **kwargs: as `args`; `make_inputs=` as the option of the decorator, for this call.

        Raises:
            ValueError: `under` is neither, or there is nothing to differentiate.
            RuntimeError: the mode forbids tuning, or the function closes over tracers.

        Example:
            >>> import jax
            >>> from autoloop import autoloop
            >>> @autoloop(forms=["inline"], budget_s=2)
            ... def total(xs):
            ...     return jax.lax.scan(lambda c, x: (c + x, None), 0.0, xs)[0]
            >>> record = total.warmup(jax.ShapeDtypeStruct((3,), "float32"))
            >>> [trial.plan for trial in record.trials]
            ['as-written', '0=inline']
        """
        if under not in (None, "grad"):
            raise ValueError(f"under must be None or 'grad'; got {under!r}")
        if problem := _jaxpr.missing():
            return self._decider.unsupported(problem)
        settings = _config.current(self._options.mode)
        call = _made.call(self._function, self._options, args, kwargs)
        if under == "grad":
            try:
                record = self._decider.under_grad(call, settings)
            except UnsupportedJaxError as error:
                record = self._decider.unsupported(str(error))
            self._reset()
        else:
            record = self._decider.decide(call, settings).record
        if record is None:
            raise RuntimeError(
                f"{self._function.name} was not tuned: mode is {settings.mode!r}, which tunes only as 'tune'"
            )
        self._forget_fast(call)
        return record

    def lower(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `jax.jit(fun).lower`: the program of the plan in force, lowered; never tunes.

        Where that plan needs a Python loop, it is the program that stands for it inside a trace.
        """
        call = Call.keeping(self._function, args, kwargs)
        return self._jitted(call).lower(*call.args, **call.kwargs)

    def trace(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `jax.jit(fun).trace`: the program of the plan in force, traced; see `lower`."""
        call = Call.keeping(self._function, args, kwargs)
        return self._jitted(call).trace(*call.args, **call.kwargs)

    def eval_shape(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `jax.jit(fun).eval_shape`: shapes and dtypes of the result; nothing is compiled."""
        call = Call.keeping(self._function, args, kwargs)
        return _kept.free(self._function.plain.eval_shape(*call.args, **call.kwargs))

    def _jitted(self, call: Call) -> Any:
        settings = _config.current(self._options.mode)
        found = None if settings.mode == "off" or _jaxpr.missing() else self._decider.known(call, settings)
        if found is None:
            return self._function.plain
        return self._pin(found.trace_plan if runs_on_host(found.plan) else found.plan).jitted

    def forget(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Drops what is remembered, in memory and in the store.

        With arguments (values or specs): for their signature. Without any: for the whole function.
        """
        call = Call.keeping(self._function, args, kwargs) if args or kwargs else None
        self._decider.forget(call, _config.current(self._options.mode))
        self._reset()

    def explain_miss(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Why nothing is remembered for these arguments (values, tracers or specs); never tunes.

        Returns:
            What differs from the nearest stored record, and the command that would tune it; or that
            there is no miss.
        """
        call = Call.keeping(self._function, args, kwargs)
        return self._decider.explain(call, _config.current(self._options.mode)).text

    def _forced(self, call: Call, settings: _config.Settings) -> Decision | None:
        """The decision to run the plan that the settings force, if they do."""
        if settings.plan is None or settings.mode == "off":
            return None
        try:
            plan = check_plan(settings.plan)
        except ValueError as error:
            raise PlanError(f"AUTOLOOP_PLAN (or settings(plan=...)) is {settings.plan!r}: {error}") from None
        return self._decider.forced(call, plan)

    def _nothing(self, call: Call, plan: Plan) -> Record:
        """What stands for a record where a plan is forced and nothing is remembered."""
        program = Program.trace(self._function, call.key, call.args, call.kwargs)
        parts = program and _signature.parts(program.traced, call.key, call.places, self._options.context())
        trials, why = (Trial(str(plan)),), "nothing is remembered for these arguments"
        return Record(self._function.name, parts or {}, str(plan), trials, why, created=_tune.now())

    def _pin(self, plan: Plan, strict: bool = True) -> Pinned[P, R]:
        if (plan, strict) not in self._pins:
            self._pins[plan, strict] = Pinned(self._function, plan, strict)
        return self._pins[plan, strict]
