"""What a plan would cost, foretold from those tried: why it need not be tried. Pure: no jax, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping

from autoloop._choose import Rules
from autoloop._plan import Plan
from autoloop._records import Trial
from autoloop._space import Space

#: What copies add to compile time grows faster than the program: from 16 to 200 copies of a scalar body it took 40
#: times as long (jax 0.10.2, CPU), an exponent of 1.5; larger bodies grow less steeply.
_COMPILE_EXPONENT = 1.5
#: Copies are taken to make up at least this part of a build, however little it took beyond as written.
_LEAST_GROWN = 0.1
#: A dispatched call costs at least this on any machine known to us, in seconds.
_DISPATCH_S = 2e-6
#: Dispatches that alone take this many times as long as written can't pay.
_TOO_LONG = 2.0
#: XLA:CPU fuses a chain of elementwise equations and walks it by recursion; a long one overflows the stack, which
#: ends the process. On a stack of 8 MB, 4,500 in a step of a loop compiled and 6,000 did not (jax 0.8.0, 0.10.2
#: and 0.12.0.1); outside of loops 20,000 did.
_LONGEST_CHAIN = 3000
#: A plan is not tried if one that builds as much for the same loop was slower than the best by this.
_TWIN_CLIFF = 4.0

Trials = Mapping[Plan, Trial]


def build_s(plan: Plan, space: Space, trials: Trials) -> tuple[float, str]:
    """Seconds to build a plan, from the built plan that is nearest in size; and that plan's text."""
    size, written = max(space.size(plan), 1.0), max(space.size(Plan()), 1.0)  # 0 for bodies without an equation
    built = [(p, t) for p, t in trials.items() if t.ok and t.compile_s is not None]
    loops = {c.path for c in plan.choices}
    alike = [(p, t) for p, t in built if {c.path for c in p.choices} == loops]
    # Plans that change the same loops foretell best; one of them at least must have copies to tell.
    built = alike if any(space.size(p) > written for p, _ in alike) else built
    near, trial = min(built, key=lambda pt: abs(math.log(size / max(space.size(pt[0]), 1.0))))
    known, near_s = max(space.size(near), 1.0), trial.build_s
    if size <= known:
        return near_s, str(near)
    if known <= written:  # one copy tells little of what many cost: most of its time does not grow with them
        return near_s * size / known, str(near)
    sizes = [(max(space.size(p), 1.0), t.build_s) for p, t in [(Plan(), trials[Plan()]), *built]]
    below, below_s = max(pair for pair in sizes if pair[0] < known)
    grown_s = max(near_s - below_s, _LEAST_GROWN * near_s)
    return near_s + grown_s * _between(known, size) / _between(below, known), str(near)


def _between(small: float, large: float) -> float:
    return float(large**_COMPILE_EXPONENT - small**_COMPILE_EXPONENT)


def twin_lost(plan: Plan, best: Plan, space: Space, trials: Trials) -> str:
    """Why a plan can't be worth it: another that builds as much of the same loops lost by far."""
    limit = _TWIN_CLIFF * (trials[best].ratio or 1.0)
    size = space.size(plan)
    if size <= 2 * space.size(Plan()) or space.dispatches(plan) > 1:
        return ""  # few copies, or a Python loop, whose time is not in its copies
    for known, trial in trials.items():
        same = [c.path for c in known.choices] == [c.path for c in plan.choices]
        same = same and known.options == plan.options
        if same and trial.ratio is not None and trial.ratio > limit and space.size(known) == size:
            return f"{known}, which builds as much, took {trial.ratio:.3g}x the time as written"
    return ""


def too_long_chain(plan: Plan, space: Space) -> str:
    """Why a plan may end the process: it puts too much into one step of a loop."""
    count = space.chain(plan)
    if count <= max(_LONGEST_CHAIN, space.chain(Plan())):
        return ""
    return (
        f"a step would hold a chain of {count:,} elementwise equations; XLA may crash on more than {_LONGEST_CHAIN:,}"
    )


def too_many_dispatches(plan: Plan, space: Space, trials: Trials, rules: Rules) -> str:
    """Why a plan can't be worth it: its calls into the runtime alone take too long."""
    count = space.dispatches(plan)
    least_s = count * _DISPATCH_S
    base_s = trials[Plan()].run_s or 0.0
    calls = rules.expected_calls
    worth_s = base_s if calls is None else base_s + trials[Plan()].build_s / calls
    if count <= 1 or least_s <= _TOO_LONG * worth_s:
        return ""
    return f"its {count:,.0f} dispatches take {least_s:.3g} s or more, as written takes {base_s:.3g} s"
