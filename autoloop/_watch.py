"""Long loops that people watch: a bar over the outermost loop, which runs as a Python loop meanwhile.

Decides which plan a watched call runs: the plan in force if its outermost loop is a Python loop, else
`python(k)` for that loop, with the plan's choices for the loops inside, k found by `_pace`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax

from autoloop import _config, _jaxpr, _progress
from autoloop._call import Call
from autoloop._decision import Decision, parsed
from autoloop._function import Function
from autoloop._loops import Loop
from autoloop._options import Options
from autoloop._pace import Pace
from autoloop._plan import Choice, Plan
from autoloop._plans import runs_on_host
from autoloop._processes import Group
from autoloop._program import HostProgram, Program
from autoloop._records import Record, Status, UnsupportedJaxError
from autoloop._warning import warn

_log = logging.getLogger("autoloop")

_TOGETHER = "several processes run it together, and each would take steps of its own length"

_asked: ContextVar[bool] = ContextVar("autoloop_progress", default=False)


@contextlib.contextmanager
def progress() -> Iterator[None]:
    """Shows a bar over the outermost loop of each call inside the block, in this thread (or task) only.

    The bar is tqdm's (extra `progress`) and shows iterations per second. For its sake the loop runs as
    `python(k)`, k found by measuring so that the bar costs under 1 %, unless the plan in force is a
    Python loop anyway; the loops inside run as planned. Ctrl-C stops the call between two steps, with
    donated arguments still there. Inside a trace, in mode `off`, and where several processes run one
    program there is no bar.

    Example:
        >>> import autoloop, jax, jax.numpy as jnp
        >>> @autoloop.autoloop(mode="cached")
        ... def total(xs):
        ...     return jax.lax.scan(lambda c, x: (c + x, None), 0.0, xs)[0]
        >>> with autoloop.progress():
        ...     print(total(jnp.ones(3)))
        3.0
    """
    token = _asked.set(True)
    try:
        with _config.override():  # takes calls off the hot path, which has no time to look for a bar
            yield
    finally:
        _asked.reset(token)


@dataclass
class Watched:
    """A call's program with a bar over its outermost loop; one call at a time."""

    name: str
    plan: Plan
    loop: Loop
    pace: Pace
    program: HostProgram
    lock: Any = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, program: Program, plan: Plan, loop: Loop, steers: bool) -> Watched:
        """The program in this plan, with a bar over `loop`."""
        pace = Pace(loop.length, steers)
        host = HostProgram(program, plan, (loop.path, pace))
        return cls(program.function.name, plan, loop, pace, host)

    def still_of(self, function: Function, call: Call) -> bool:
        """Whether jit would run the same program: it traces anew where caches were cleared, or under another mesh."""
        mine = self.program.program
        traced = _jaxpr.trace(function.plain, call.args, call.kwargs)
        if traced is None or traced.jaxpr is mine.traced.jaxpr:
            return traced is not None
        now = Program.trace(function, call.key, call.args, call.kwargs)
        return now is not None and mine.same_as(now)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs it, and waits until it is done; whoever calls holds the lock."""
        self.pace.open_bar = functools.partial(_progress.loop_bar, self.name, self.loop.length)
        try:
            result = jax.block_until_ready(self.program(*args, **kwargs))
            self.pace.finish()
        finally:
            try:
                self.pace.end()
            finally:
                self.lock.release()
        step = Choice(self.loop.path, "python", self.pace.count)
        _log.info("%s: watched as %s", self.name, self.plan.with_choice(step) if self.pace.steers else self.plan)
        return result


class Watches:
    """The watched programs of one decorated function."""

    def __init__(self, function: Function, options: Options) -> None:
        self._function, self._options = function, options
        self._known: dict[Hashable, Watched | str] = {}
        self._said: set[str] = set()
        #: Whether all calls of the function are to show a bar.
        self.option = options.progress is True

    def find(self, call: Call, decision: Decision, mode: str, group: Callable[[Call], Group | None]) -> Watched | None:
        """What runs a call with a bar; None if nobody asked for one, or, with one warning, if there can be none.

        Args:
            call: with values, outside any trace.
            decision: what is in force for it.
            mode: the mode in force; `off` is plain `jax.jit`.
            group: the processes that must run the same programs; None for one alone.
        """
        if mode == "off" or not (self.option or _asked.get()):
            return None
        found = _TOGETHER if group(call) is not None else self._find(call, decision)
        if not isinstance(found, str):
            # Its pace and bar serve one call at a time: a thread that comes meanwhile runs as usual.
            return found if found.lock.acquire(blocking=False) else None
        if found not in self._said:
            warn(f"no bar over {self._function.name}: {found}; it runs as usual")
            self._said.add(found)
        return None

    def _find(self, call: Call, decision: Decision) -> Watched | str:
        if (reason := _progress.no_loop_bar()) is not None:
            return reason
        name = (call.name, decision.plan)
        known = self._known.get(name)
        if known is None or (isinstance(known, Watched) and not known.still_of(self._function, call)):
            known = self._known[name] = self._build(call, decision)
        return known

    def forget(self) -> None:
        """Drops the programs, and what was learned of their pace."""
        self._known.clear()

    def _build(self, call: Call, decision: Decision) -> Watched | str:
        try:
            program = Program.trace(self._function, call.key, call.args, call.kwargs)
        except UnsupportedJaxError as error:
            return str(error)
        if program is None:
            return "the function closes over tracers"
        loops = [loop for loop in program.loops if len(loop.path) == 1]
        if not loops:
            return "there is no loop in the program"
        loop = max(loops, key=lambda loop: loop.work)
        if _is_host(decision.plan.choice(loop.path)):
            return Watched.of(program, decision.plan, loop, steers=False)
        plan = self._stepped(program, decision, loop)
        return plan if isinstance(plan, str) else Watched.of(program, plan, loop, steers=True)

    def _stepped(self, program: Program, decision: Decision, loop: Loop) -> Plan | str:
        """The plan in force with the outermost loop as a Python loop, else that loop only; or why not."""
        if self._options.bitwise:
            return f"bitwise=True, and {decision.plan} is not a Python loop: in steps results may round differently"
        if reason := _lost(decision.record, loop):
            return reason
        step = Choice(loop.path, "python", 1)
        plans = [plan.with_choice(step) for plan in (decision.plan, Plan())]
        fitting = next((plan for plan in plans if not program.why_not(plan)), None)
        return program.why_not(plans[-1]) or "" if fitting is None else fitting


def _is_host(choice: Choice | None) -> bool:
    return choice is not None and runs_on_host(Plan((choice,)))


def _lost(record: Record | None, loop: Loop) -> str:
    """Why the loop may not run as `python(k)`, as a trial found; "" where none did."""
    for trial in () if record is None else record.trials:
        plan = parsed(trial.plan)
        choice = None if plan is None else plan.choice(loop.path)
        bad = trial.status in (Status.WRONG, Status.FAILED)
        if bad and choice is not None and choice.form == "python":
            return f"a Python loop was tried and is not usable: {trial.plan} {trial.status}: {trial.reason}"
    return ""
