"""Programs too long to be run whole for every candidate: trials on a shortened program.

Each long loop runs fewer iterations on the real values of what precedes it, and its stacked outputs
are padded to their shape by repeating the last computed row. The time of the whole is fitted as
`a + b * share`, the share of the work that is left standing, from two shares of the function as
written; a candidate's time is scaled with the same `a`.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax

from autoloop import _apply, _estimate, _variants
from autoloop._form import Form, Site
from autoloop._loops import Loop
from autoloop._plan import Choice, Parameter, Plan
from autoloop._program import Program

#: A program is run whole if one call takes no more than this part of the budget.
_WHOLE_SHARE = 0.015
#: Or if the estimate, which is on the high side, takes no more than this part: a probe has its price, seconds
#: of compiling. On sixteen programs (2 cores) calls took from a third to a thousandth of their estimate.
_GUESS_SHARE = 0.04
#: A shortened call should take this part of the budget, and at least this many seconds.
_TARGET_SHARE = 0.005
_TARGET_LEAST_S = 0.02
#: A call longer than the whole budget may be tuned for this part of its own time.
_LONG_CALL_SHARE = 0.12
#: Of a loop that is shortened at least this many iterations are left.
_LEAST_LENGTH = 4
#: Beyond two probes, those that compile for so long end there: they take this part of the budget at most.
_FIT_SHARE = 0.15


@final
class _Shortened(Form):
    """Runs the first n iterations only, and repeats the last row; never a candidate."""

    name = "shortened"
    takes = "NUMBER"

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        return None

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        return ()

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        assert isinstance(parameter, int)
        scan, count = site.scan, parameter
        consts, carry, xs = scan.split_inputs(values)
        start = scan.length - count if scan.reverse else 0
        rows = [lax.slice_in_dim(x, start, start + count) for x in xs]

        def body(state: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            return scan.split_outputs(site.body(*consts, *state, *x))

        carry, ys = lax.scan(body, carry, rows, count, scan.reverse, scan.unroll)
        return [*carry, *(_padded(y, scan.length - count, scan.reverse) for y in ys)]


def _padded(rows: Any, missing: int, at_front: bool) -> Any:
    last = rows[:1] if at_front else rows[-1:]
    padding = jnp.broadcast_to(last, (missing, *rows.shape[1:]))
    return jnp.concatenate([padding, rows] if at_front else [rows, padding])


def lengths(loops: Sequence[Loop], share: float) -> dict[tuple[int, ...], int]:
    """Which loops to shorten to how many iterations, so that about `share` of the work is left."""
    found: dict[tuple[int, ...], int] = {}
    for loop in loops:
        if len(loop.path) == 1:
            _shorten(loop, loops, share, found)
    return found


def _shorten(loop: Loop, loops: Sequence[Loop], share: float, found: dict[tuple[int, ...], int]) -> None:
    wanted = max(min(_LEAST_LENGTH, loop.length), round(loop.length * share))
    if wanted < loop.length:
        found[loop.path] = wanted
    rest = share * loop.length / max(wanted, 1)
    if rest < 0.5:  # this loop alone can't be short enough: those inside are shortened too
        for inner in loops:
            if inner.path[:-1] == loop.path:
                _shorten(inner, loops, rest, found)


def shortened(program: Program, cuts: Mapping[tuple[int, ...], int]) -> Program:
    """The program with some loops cut short, as a function of its flat argument leaves."""
    plan = Plan(tuple(Choice(path, _Shortened.name, count) for path, count in cuts.items()))
    applied = _apply.Applied(plan, {_Shortened.name: _Shortened()})

    return _variants.of_leaves(program, functools.partial(applied.run_block, program.block))


def work_share(short: Program, whole: Program) -> float:
    """The part of the work that a shortened program still does."""
    return _top_work(short.loops) / max(_top_work(whole.loops), 1.0)


def _top_work(loops: Sequence[Loop]) -> float:
    return sum(loop.work for loop in loops if len(loop.path) == 1)


@dataclass(frozen=True)
class Fit:
    """How a long program is tried.

    Attributes:
        program: the shortened program.
        share: the part of the work that it does.
        fixed_s: seconds that do not depend on the loops' lengths.
        whole_s: seconds that a whole call is expected to take.
        budget_s: seconds that its tuning may take, what fitting took included.
        cut: whether that is less than it was given.
    """

    program: Program
    share: float
    fixed_s: float
    whole_s: float
    budget_s: float
    cut: bool = False

    def scale(self, seconds: float) -> float:
        """Seconds of a whole call, from those of a shortened one."""
        return self.fixed_s + max(seconds - self.fixed_s, 0.0) / self.share

    @property
    def note(self) -> str:
        """What the record says of it."""
        return (
            f"a whole call takes about {self.whole_s:.3g} s, so plans were timed on {self.share:.2%} of its "
            f"iterations; the times are extrapolated{self._cut}"
        )

    @property
    def _cut(self) -> str:
        if not self.cut:
            return ""
        return (
            f"; as one call takes longer than the budget, tuning had {_LONG_CALL_SHARE:.0%} of its time, "
            f"{self.budget_s:.3g} s: a budget over {self.whole_s:.3g} s is used in full"
        )


#: Seconds of one blocked call of a program on these leaves; it was shortened to this share.
TimeCall = Callable[[Program, float], float]


def fit(
    program: Program, budget_s: float, time_call: TimeCall, clock: Callable[[], float] = time.perf_counter
) -> Fit | None:
    """How to try a program, None to run it whole.

    Args:
        program: traced.
        budget_s: seconds that its tuning may take.
        time_call: compiles a shortened program and times a call of it.
        clock: seconds, ever rising.
    """
    guess_s = _estimate.seconds(program.traced.jaxpr)
    if guess_s <= _GUESS_SHARE * budget_s:
        return None
    target_s, end = max(_TARGET_SHARE * budget_s, _TARGET_LEAST_S), clock() + _FIT_SHARE * budget_s
    points: list[tuple[float, float, Program]] = []
    share = min(0.25, target_s / guess_s / 8)
    while len(points) < 6:
        short = shortened(program, lengths(program.loops, share))
        points.append((work_share(short, program), time_call(short, share), short))
        done, seconds, _ = points[-1]
        if done > 0.5 or seconds / done <= _WHOLE_SHARE * budget_s:
            return None  # even half of it is quick, or as many calls of this as make a whole one
        if len(points) > 1 and (seconds >= target_s / 2 or clock() > end):
            break
        share = _next_share(points, target_s)
    return _fitted(program, points, budget_s)


def _next_share(points: Sequence[tuple[float, float, Program]], target_s: float) -> float:
    share, seconds, _ = points[-1]
    return share * min(32.0, max(2.0, target_s / max(seconds, 1e-5)))


def _fitted(program: Program, points: Sequence[tuple[float, float, Program]], budget_s: float) -> Fit | None:
    (share1, time1, _), (share2, time2, short) = points[-2:]
    slope = max(time2 - time1, 0.1 * time2) / (share2 - share1)
    fixed_s = max(0.0, time2 - slope * share2)
    whole_s = fixed_s + slope
    if whole_s <= _WHOLE_SHARE * budget_s:
        return None
    allowed_s = budget_s if whole_s < budget_s else min(budget_s, _LONG_CALL_SHARE * whole_s)
    return Fit(short, share2, fixed_s, whole_s, allowed_s, cut=allowed_s < budget_s)


def timer(leaves: Sequence[Any], donated: Sequence[bool]) -> Callable[[Program], float]:
    """Times calls of programs on these leaves, donated ones copied; the best of three."""

    def time_call(program: Program) -> float:
        run = program.function.plain
        found = math.inf
        for _ in range(4):  # the first one compiles
            fresh = [
                jnp.copy(x) if given and isinstance(x, jax.Array) else x
                for x, given in zip(leaves, donated, strict=True)
            ]
            jax.block_until_ready(fresh)
            start = time.perf_counter()
            jax.block_until_ready(run(*fresh))
            found = min(found, time.perf_counter() - start)
        return found

    return time_call
