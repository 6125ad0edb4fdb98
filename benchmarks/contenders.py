"""The ways to run one program that people choose from, built and run once, and raced against each other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import jax
import peer

from autoloop import Plan, _host, autoloop
from autoloop._agree import Tolerance, disagreement, to_host
from autoloop._call import Call
from autoloop._function import Function
from autoloop._loops import Loop
from autoloop._program import Program
from autoloop._records import Record, Status

#: Seconds that a dispatch of a Python loop costs, for what is not tried because it would take too long.
_DISPATCH_S = 3e-5
#: A way of which one call takes longer is not raced: one call of it is its figure.
_LONG_S = 2.0
#: Shorter calls are made several times to rank them.
_SHORT_S = 0.02
#: A plan of the sweep this many times slower than as written, and by this much, is not called again.
_HOPELESS, _SLACK_S = 3.0, 0.02
#: A plan of which compiling is foretold to take more than this part of the time left is left out of the sweep.
_MOST_OF_REST = 0.6
#: So many of the sweep's plans are raced.
FINALISTS = 4


@dataclass
class Way:
    """One way to run a program: what building it cost, and how to call it; or why it is left out."""

    call: Callable[[], Any] | None = field(default=None, repr=False)
    plan: str = ""
    trace_s: float = 0.0
    compile_s: float = 0.0
    first_s: float = 0.0  # from nothing to the first result, tuning included
    second_s: float = 0.0
    peak_bytes: int = 0
    tuning_s: float = 0.0
    reason: str = ""


class Jitted:
    """A jitted function, built as a plan's program is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._jitted = jax.jit(function)
        self._lowered: Any = None

    def lower(self, args: Any, kwargs: Any, cost: _host.Cost) -> None:
        self._lowered = cost.lower(self._jitted, *args)

    def compile(self, args: Any, kwargs: Any, cost: _host.Cost) -> None:
        cost.compile(self._lowered)
        self._lowered = None

    def __call__(self, *args: Any) -> Any:
        return self._jitted(*args)


class Contenders:
    """All ways to run one program; each returns what the program returns as written, or is left out."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._function, self._args = function, args
        self._expected: Any = None
        self._built: dict[str, Way] = {}
        self.written = self.build(Jitted(function), "as-written")
        wrapped = Function(function)
        program = Program.trace(wrapped, Call.of(wrapped, args, {}).key, args, {})
        assert program is not None
        self.program = program

    def build(self, candidate: Any, plan: str = "") -> Way:
        """Traces, compiles, runs, compares, and runs again, unless the first run was long."""
        cost, start = _host.Cost(), time.perf_counter()
        try:
            candidate.lower(self._args, {}, cost)
            candidate.compile(self._args, {}, cost)
            outs, once_s = timed(common.blocked(candidate, self._args))
            reason = self._differs(outs)
        except Exception as error:  # whatever fails is a way that is left out
            return Way(plan=plan, reason=f"{type(error).__name__}: {error}"[:200], tuning_s=time.perf_counter() - start)
        call = common.blocked(candidate, self._args)
        second_s = once_s if once_s > _LONG_S else later_s(call)
        compile_s = max(0.0, once_s - second_s) if cost.lazy else cost.compile_s
        first_s = cost.trace_s + cost.compile_s + once_s
        return Way(call, plan, cost.trace_s, compile_s, first_s, second_s, cost.peak_bytes, reason=reason)

    def planned(self, plan: Plan) -> Way:
        """The way of a plan, built once."""
        text = str(plan)
        if text not in self._built:
            why_not = self.program.why_not(plan)
            self._built[text] = Way(plan=text, reason=why_not) if why_not else self._try(plan)
        return self._built[text]

    def _try(self, plan: Plan) -> Way:
        seconds = self.program.dispatches(plan) * _DISPATCH_S
        if seconds > _LONG_S:
            return Way(
                plan=str(plan), reason=f"left out: {seconds / _DISPATCH_S:,.0f} dispatches, {seconds:.0f} s a call"
            )
        return self.build(self.program.candidate(plan), str(plan))

    def _differs(self, outs: Any) -> str:
        flat = jax.tree.leaves(outs)
        if self._expected is None:
            self._expected = to_host(flat)
            return ""
        return disagreement(self._expected, flat, Tolerance())[1]

    # -------------------------------------------------------- what people use

    def outermost(self, form: str) -> Way:
        """The top-level loop with most work as a Python loop: around a jitted step, or with no jit around it."""
        top = [loop for loop in self.program.loops if len(loop.path) == 1]
        if not top:
            return Way(reason="no loop at top level")
        path = max(top, key=lambda loop: loop.work).path[0]
        return self.planned(Plan.parse(f"{path}={form}"))

    def tuned(self, budget_s: float) -> tuple[Way, Record]:
        """The decorated function, past its first calls, and its record. The store is to be empty."""
        decorated = autoloop(budget_s=budget_s, progress=False)(self._function)
        call = common.blocked(decorated, self._args)
        outs, first_s = timed(call)
        record = decorated.report(*self._args)
        assert record is not None
        call()  # installs a plan that was tried on a shortened program
        winner = record.trial(record.winner)
        assert winner is not None
        costs = (winner.trace_s or 0.0, winner.compile_s or 0.0, first_s, later_s(call), winner.peak_bytes or 0)
        way = Way(call, record.winner, *costs, tuning_s=record.spent_s, reason=self._differs(outs))
        return way, record

    def peer(self, name: str, size: str, allowed_s: float) -> Way:
        """What tune_jax chooses among factors of `unroll` for the busiest loop, in a process that can be ended."""
        if missing := peer.missing():
            return Way(reason=missing)
        loop: Loop = peer.busiest(self.program)
        fit = [f for f in peer.FACTORS if f <= loop.length and self._fits(peer.unrolled(loop.path, f), allowed_s / 2)]
        task = {"suite": "peer", "name": name, "size": size, "factors": fit, "device": jax.devices()[0].platform}
        script = str(Path(__file__).parent / "run.py")
        try:
            chosen = common.alone(script, [json.dumps(task)], allowed_s)
        except RuntimeError as error:
            return Way(reason=f"tune_jax among factors {fit}: {common.short(error)}")
        text, seconds = chosen["plan"], chosen["tuning_s"]
        own = self.written if text == str(Plan()) else self.planned(Plan.parse(text))
        return Way(own.call, text, *_costs(own, seconds), tuning_s=seconds, reason=own.reason)

    def _fits(self, plan: Plan, allowed_s: float) -> bool:
        """Whether compiling a plan is foretold to fit, from what compiling as written took."""
        return self.written.compile_s * self.program.size(plan) / self.program.size(Plan()) <= max(allowed_s, 1.0)

    # -------------------------------------------------------- the sweep

    def sweep(self, record: Record, end: float) -> tuple[dict[str, Way], int, int]:
        """The fastest of all plans that may be tried, how many were tried, and how many were left out for time.

        Best of the record first, so that they are among those that fit; then the small ones.
        """
        plans = self._worth(record)
        tried: dict[str, Way] = {}
        limit_s = _HOPELESS * self.written.second_s + _SLACK_S
        for plan in plans:
            left_s = end - time.monotonic()
            if left_s <= 0:
                break
            if self._fits(plan, _MOST_OF_REST * left_s):
                way = self.planned(plan)
                tried[str(plan)] = way
                if way.second_s > limit_s:
                    way.call = None
        # What people use instead may be a plan too, and the best of all.
        good = sorted((w for w in self._built.values() if w.call and not w.reason), key=lambda w: w.second_s)
        return {w.plan: w for w in good[:FINALISTS]}, len(tried), len(plans) - len(tried)

    def _worth(self, record: Record) -> list[Plan]:
        ratios = {t.plan: t.ratio for t in record.trials if t.ok and t.ratio is not None}
        wrong = {t.plan for t in record.trials if t.status in (Status.WRONG, Status.FAILED)}
        all_plans = dict.fromkeys([*autoloop(self._function).plans(*self._args), *map(Plan.parse, ratios)])
        plans = [p for p in all_plans if not p.as_written and str(p) not in wrong]
        return sorted(plans, key=lambda p: (ratios.get(str(p), 1.0), self.program.size(p)))


def _costs(own: Way, tuning_s: float) -> tuple[float, float, float, float, int]:
    return own.trace_s, own.compile_s, tuning_s + own.second_s, own.second_s, own.peak_bytes


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    start = time.perf_counter()
    outs = call()
    return outs, time.perf_counter() - start


def later_s(call: Callable[[], Any]) -> float:
    """Seconds of a later call: of short ones the least of several."""
    seconds = timed(call)[1]
    return seconds if seconds > _SHORT_S else min([seconds, *(timed(call)[1] for _ in range(4))])


def race(ways: Mapping[str, Way], allowed_s: float, rounds: int) -> dict[str, list[float]]:
    """Seconds a call of those that can be called; a slow one takes part in the first few rounds only."""
    lanes = {name: way for name, way in ways.items() if way.call is not None and not way.reason}
    share_s = allowed_s / max(1, len(lanes))
    long = {name for name, way in lanes.items() if way.second_s > _LONG_S and name != "jit"}
    calls = {name: way.call for name, way in lanes.items() if name not in long}
    expected = {name: lanes[name].second_s for name in calls}
    found = common.bounded_rounds(calls, expected, share_s, rounds)
    return {**found, **{name: [lanes[name].second_s] for name in long}}


def breakeven(way: Mapping[str, Any], written: Mapping[str, Any]) -> float | None:
    """After how many calls what a way costs more to begin with than as written has paid; None for never."""
    extra_s, gain_s = way["first_s"] - written["first_s"], (written["ms"] - way["ms"]) / 1e3
    if gain_s <= 0:
        return None
    return max(0.0, extra_s / gain_s)
