"""A user's function at one signature, and the ways to run it: one XLA program, or a host program."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from autoloop import _apply, _host, _installed, _jaxpr, _legal, _mesh, _outline, _owned
from autoloop._function import Args, Function, Kwargs
from autoloop._loops import Loop, find_loops
from autoloop._pace import Pace
from autoloop._plan import Plan
from autoloop._plans import ALL_FORMS, runs_on_host
from autoloop._signature import CallKey, call_key, program_part

_log = logging.getLogger("autoloop")


class Miss(Exception):  # a signal between two functions of ours, never seen by users
    """Raised out of a trace whose signature has no plan yet; jax caches nothing of such a trace."""


class Planned:
    """What the dispatching `jax.jit` traces: looks the plan up by the call's key and emits it.

    All plans of one dispatching jit share its XLA options. For a signature whose plan needs a Python loop
    it computes nothing and gives the host program as a `Found`, which the caller is to run: so jit's own
    dispatch finds that program too, and no key is made in Python.
    """

    def __init__(
        self,
        function: Function,
        plans: dict[CallKey, Plan],
        options: tuple[tuple[str, str], ...] = (),
        donate: bool = True,
    ) -> None:
        self.plans, self.options = plans, options
        self.hosts: dict[CallKey, HostProgram] = {}
        self._function = function
        self.jitted = function.jit(self._trace, options, donate)

    def _trace(self, /, *args: Any, **kwargs: Any) -> Any:
        function = self._function
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]  # jit calls this with values then
            return function.fun(*args, **kwargs)
        leaves, tree, static = function.flatten(args, kwargs)
        key = call_key(tree, leaves, static)
        if (host := self._host(key, leaves, tree, static)) is not None:
            return Found(host, jnp.int32(0))
        plan = self.plans.get(key)
        if plan is None:
            raise Miss
        return function.emit(plan, args, kwargs)

    def _host(self, key: CallKey, leaves: Sequence[Any], tree: Any, static: tuple[Any, ...]) -> HostProgram | None:
        """The host program of a signature, made anew where the function no longer traces to what it is of.

        jit traces a signature once more after `jax.clear_caches()`, and where a setting has changed that no
        key of ours holds: a mesh in force, say.
        """
        if (host := self.hosts.get(key)) is None:
            return None
        if not host.handed_out:
            host.handed_out = True
            return host
        args, kwargs = self._function.unflatten([_jaxpr.struct(jax.typeof(x)) for x in leaves], tree, static)
        program = Program.trace(self._function, key, args, kwargs)
        if program is None:
            raise Miss
        if program.same_as(host.program):
            return host
        del self.hosts[key]
        if program.why_not(host.plan):
            self.plans[key] = Plan()
            return None
        host = self.hosts[key] = HostProgram(program, host.plan)
        host.handed_out = True
        return host


class Candidate(Protocol):
    """A plan ready to be compiled and called with the user's own arguments."""

    def lower(self, args: Args, kwargs: Kwargs, cost: _host.Cost) -> bytes | None:
        """Traces and lowers; a digest that equal programs share, None where that tells too little."""

    def compile(self, args: Args, kwargs: Kwargs, cost: _host.Cost) -> None:
        """Compiles ahead of the first call."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs; donated arguments are consumed."""


class OneProgram:
    """A candidate that is one XLA program: a jitted function, dispatched by jax alone."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self._lowered: Any = None

    def lower(self, args: Args, kwargs: Kwargs, cost: _host.Cost) -> bytes | None:
        self._lowered = cost.lower(self.planned.jitted, *args, **kwargs)
        text = f"{self.planned.options}\n{self._lowered.as_text()}"
        return hashlib.sha256(text.encode()).digest()

    def compile(self, args: Args, kwargs: Kwargs, cost: _host.Cost) -> None:
        cost.compile(self._lowered)
        self._lowered = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.planned.jitted(*args, **kwargs)


@jax.tree_util.register_static  # so that a jitted function can return one
class HostProgram:
    """A candidate whose outer loops run in Python."""

    def __init__(self, program: Program, plan: Plan, watched: tuple[tuple[int, ...], Pace] | None = None) -> None:
        self.program, self.plan = program, plan
        #: Whether a dispatching jit gave it for a signature: if it traces that once more, something has changed.
        self.handed_out = False
        block, constants = program.owned
        self._run = _apply.Applied(plan, ALL_FORMS, watched).build_block(block)
        self._function, traced = program.function, program.traced
        self._out_tree, self._out_avals = traced.out_tree, _jaxpr.out_avals(traced.jaxpr)
        self._constants = frozenset(map(id, constants))
        self._consumed = _consumed(traced.jaxpr, traced.donated)
        #: jit drops arguments that nothing reads before it looks where they lie.
        self._read = _read(traced.jaxpr)
        self._fits = False

    def lower(self, args: Args, kwargs: Kwargs, cost: _host.Cost) -> bytes | None:
        return None

    def compile(self, args: Args, kwargs: Kwargs, cost: _host.Cost) -> None:
        leaves, _, _ = self._function.flatten(args, kwargs)
        self._run.prepare([_host.spec_of(leaf) for leaf in leaves], cost)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        leaves, _, _ = self._function.flatten(args, kwargs)
        return self.call_flat(leaves)

    def call_flat(self, leaves: Sequence[Any]) -> Any:
        """The call with its dynamic leaves at hand."""
        values = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in leaves]
        config: Any = jax.config
        watches = config.jax_debug_nans or config.jax_debug_infs
        if watches or config.jax_transfer_guard_host_to_device not in (None, "allow"):
            with _as_one_program():
                outs = self._outputs(values)
            outs = _checked(outs) if watches else outs
        else:
            outs = self._outputs(values)
        self._give_up(leaves)
        return jax.tree.unflatten(self._out_tree, outs)

    def _outputs(self, values: list[Any]) -> list[Any]:
        return _mesh.beside(self._conform(self._unshared(self._run(*values), values)), [values[i] for i in self._read])

    def _conform(self, outs: list[Any]) -> list[Any]:
        """The outputs with the weak types that they have as written; which they need is the same at each call."""
        if not self._fits:
            given, outs = outs, _jaxpr.conform_all(outs, self._out_avals)
            self._fits = all(a is b for a, b in zip(given, outs, strict=True))
        return outs

    def _unshared(self, outs: list[Any], values: list[Any]) -> list[Any]:
        """The outputs, copied where one is an argument, a constant or another output: jit shares no buffer."""
        seen = {*map(id, values), *self._constants}
        for position, out in enumerate(outs):
            if id(out) in seen or not isinstance(out, jax.Array):  # calls pass literals through as numbers
                outs[position] = jnp.copy(out)
            seen.add(id(out))
        return outs

    def _give_up(self, leaves: Sequence[Any]) -> None:
        for position in self._consumed:
            if isinstance(leaf := leaves[position], jax.Array) and not leaf.is_deleted():
                leaf.delete()


def _read(jaxpr: _jaxpr.Jaxpr) -> tuple[int, ...]:
    """Which arguments something reads, or returns."""
    program = _jaxpr.inner(jaxpr)
    used = {id(v) for eqn in program.eqns for v in eqn.invars} | {id(v) for v in program.outvars}
    return tuple(position for position, var in enumerate(program.invars) if id(var) in used)


def _consumed(jaxpr: _jaxpr.Jaxpr, donated: Sequence[bool]) -> tuple[int, ...]:
    """Which arguments `jax.jit` would consume: donated ones that are read, each for an output of its size."""
    program, used = _jaxpr.inner(jaxpr), _read(jaxpr)
    free = collections.Counter((a.shape, a.dtype) for a in _jaxpr.out_avals(jaxpr))
    found = []
    for position, (var, given) in enumerate(zip(program.invars, donated, strict=True)):
        size = (var.aval.shape, var.aval.dtype)
        if given and position in used and free[size]:
            free[size] -= 1
            found.append(position)
    return tuple(found)


@contextlib.contextmanager
def _as_one_program() -> Iterator[None]:
    """Inside a program literals are no transfers, and only its outputs are looked at for NaNs."""
    with jax.transfer_guard_host_to_device("allow"), jax.debug_nans(False), jax.debug_infs(False):
        yield


#: Has jax look at values as at a program's outputs, under `jax_debug_nans`.
_checked = jax.jit(lambda outs: outs)


class Found(NamedTuple):
    """What a dispatching jit gives where a Python loop is to run."""

    host: HostProgram
    nothing: Any  # jit's fast dispatch wants an output


@dataclass(frozen=True)
class Program:
    """A function traced at one signature: its loops, and candidates for any legal plan."""

    function: Function
    key: CallKey
    traced: _jaxpr.Traced
    block: _outline.Block
    loops: tuple[Loop, ...]

    #: Whether trials may run it with fewer iterations, where one call is long.
    shortens: ClassVar[bool] = True
    #: What the record of its tuning is to say.
    note: ClassVar[str] = ""

    @classmethod
    def trace(cls, function: Function, key: CallKey, args: Args, kwargs: Kwargs) -> Program | None:
        """Traces; errors of the user's function pass through. None: it closes over tracers."""
        traced = _jaxpr.trace(function.plain, args, kwargs)
        if traced is None:
            return None
        with _installed.reading():
            block = _outline.outline(traced.jaxpr)
            return cls(function, key, traced, block, find_loops(block))

    @functools.cached_property
    def owned(self) -> tuple[_outline.Block, tuple[Any, ...]]:
        """The block with constants of its own, and these constants: for what is given them at each call."""
        jaxpr, constants = _owned.owned(self.traced.jaxpr)
        return _outline.outline(jaxpr), constants

    def same_as(self, other: Program) -> bool:
        """Whether both compute the same, their constants included."""
        texts = [program_part(program.traced.jaxpr) for program in (self, other)]
        return texts[0] == texts[1] and _owned.same(self.owned[1], other.owned[1])

    @property
    def effects(self) -> tuple[str, ...]:
        """Side effects of the program; such a program is not tuned."""
        return _jaxpr.effects(self.traced.jaxpr)

    def why_not(self, plan: Plan) -> str | None:
        """Why a plan can't run this program; None if it can."""
        return _legal.why_not(plan, self.loops, ALL_FORMS)

    def size(self, plan: Plan) -> float:
        """Equations that the plan compiles."""
        return _legal.size(plan, self.loops, ALL_FORMS)

    def chain(self, plan: Plan) -> int:
        """Elementwise equations in the longest chain within one step of a loop."""
        return _legal.chain(plan, self.loops, ALL_FORMS)

    def dispatches(self, plan: Plan) -> float:
        """Calls into the device runtime that one run of the plan makes."""
        return _legal.dispatches(plan, self.loops, ALL_FORMS)

    def candidate(self, plan: Plan) -> OneProgram | HostProgram:
        """The plan, ready to be compiled and called."""
        if not runs_on_host(plan):
            return OneProgram(Planned(self.function, {self.key: plan}, plan.options))
        return HostProgram(self, plan)
