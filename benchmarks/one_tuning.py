"""What `bench_tuning.py` runs in processes of their own: one tuning, one plain call, one comparison."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import common
import jax
import peer
from nests import nests

from autoloop import Plan, autoloop
from autoloop._call import Call
from autoloop._program import Program

#: All plans race for a few rounds; those that came close to the best race on by themselves, for some programs run
#: slower for up to 0.1 s after a pause, and each plan called a hundred times as slow as they is one to the others.
_FIRST_ROUNDS, _ROUNDS, _CLOSE = 3, 15, 1.5
#: Seconds that a race may spend on one plan.
_RACE_S = 3.0
#: The sweep leaves out plans that compile more than this many times the program as written: minutes each.
_SWEEP_SIZE = 40
#: And those of which a second call takes this many times one as written: they can't be the best.
_SWEEP_SLOW = 20


def peak_mb() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plain(nest: str) -> dict[str, Any]:
    """A plain first call."""
    function, args = nests()[nest]
    start = time.perf_counter()
    jax.block_until_ready(jax.jit(function)(*args))
    return {"first_call_s": time.perf_counter() - start, "peak_mb": peak_mb()}


def tune(nest: str, budget_s: float) -> dict[str, Any]:
    """One tuning; run with an empty store."""
    function, args = nests()[nest]
    tuned = autoloop(budget_s=budget_s)(function)
    start = time.perf_counter()
    jax.block_until_ready(tuned(*args))
    seconds = time.perf_counter() - start
    record = tuned.report(*args)
    assert record is not None
    winner = record.trial(record.winner)
    assert winner is not None
    return {
        "plan": record.winner,
        "first_call_s": seconds,
        "peak_mb": peak_mb(),
        "gain_s": (1 - (winner.ratio or 1.0)) * (record.trials[0].run_s or 0.0),
        "complete": record.complete,
        "notes": list(record.notes),
    }


def peer_tune(nest: str) -> dict[str, Any]:
    """One tuning by tune_jax of the `unroll` of the busiest loop."""
    function, args = nests()[nest]
    start = time.perf_counter()
    tuned = autoloop(function)
    plan = peer.tune(tuned, peer.busiest(_program(tuned, args)), args)
    return {"plan": plan, "first_call_s": time.perf_counter() - start, "version": peer.version()}


def compare(nest: str, plans: Sequence[str], allowed_s: float) -> dict[str, Any]:
    """The remembered plan against plain jit, the best of a sweep, and `plans`, all in the same rounds."""
    function, args = nests()[nest]
    tuned = autoloop(function)
    chosen = str(tuned.plan(*args))
    wanted = list(dict.fromkeys([chosen, *plans, *_sweep(tuned, args)]))
    calls = {"jax.jit": common.blocked(jax.jit(function), args), "tuned": common.blocked(tuned, args)}
    calls |= {text: common.blocked(tuned.using(text), args) for text in wanted if text != chosen}
    kept = _worth_racing(calls, time.monotonic() + allowed_s, always=("jax.jit", "tuned", *plans))
    found = _raced(kept, always=("jax.jit", "tuned", *plans))
    found[chosen] = found["tuned"]
    ratios = {key: common.paired(found, "jax.jit", key)[0] for key in found if key not in ("jax.jit", "tuned")}
    best = min((key for key in ratios if len(found[key]) == _ROUNDS), key=lambda key: ratios[key])
    return {
        "tuned_over_jit": common.paired(found, "tuned", "jax.jit"),
        "regret": common.paired(found, best, "tuned"),
        "best": best,
        "swept": len(ratios),
        "left_out": len(wanted) - len(ratios),
        "ratios": ratios,
    }


def _program(tuned: Any, args: tuple[Any, ...]) -> Program:
    call = Call.of(tuned._function, args, {})
    program = Program.trace(tuned._function, call.key, args, {})
    assert program is not None
    return program


def _sweep(tuned: Any, args: tuple[Any, ...]) -> list[str]:
    """Every plan of one choice or XLA option, and of two nested choices, that is not too large to compile.

    Plans of one choice come first: what the time does not suffice for is left out.
    """
    program = _program(tuned, args)
    limit = _SWEEP_SIZE * program.size(Plan())
    fit = [p for p in tuned.plans(*args) if program.size(p) <= limit]
    return [str(p) for p in sorted(fit, key=lambda p: len(p.choices) + len(p.options))]


def _worth_racing(calls: Mapping[str, Callable[[], Any]], end: float, always: Sequence[str]) -> dict[str, Any]:
    """Those that run, are not far slower than plain jit, and could be built in time."""
    kept, limit_s = {}, float("inf")
    for key, call in calls.items():
        if time.monotonic() > end and key not in always:
            continue
        seconds = _second_call_s(call)
        if key == "jax.jit":
            limit_s = _SWEEP_SLOW * seconds + 0.02
        if seconds < limit_s:
            kept[key] = call
    return kept


def _raced(calls: Mapping[str, Callable[[], Any]], always: Sequence[str]) -> dict[str, list[float]]:
    """Seconds a call of each, one number a round, each in spans of its own time as in a tuning."""
    once_s = {name: _second_call_s(call) for name, call in calls.items()}
    found = common.bounded_rounds(calls, once_s, _RACE_S, _FIRST_ROUNDS)
    middle_s = {name: statistics.median(seconds) for name, seconds in found.items()}
    near_s = _CLOSE * min(middle_s.values())
    close = {name: call for name, call in calls.items() if name in always or middle_s[name] <= near_s}
    return found | common.bounded_rounds(close, middle_s, _RACE_S, _ROUNDS)


def _second_call_s(call: Callable[[], Any]) -> float:
    """Seconds of a second call; infinity for a candidate that fails."""
    try:
        call()
    except Exception as error:
        print(f"left out of the sweep: {error!r}"[:200], file=sys.stderr)
        return float("inf")
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
