"""Which plan to try next, when to stop, and which one wins.

Pure: no jax, no clock, no disk. `measure` is any callable from plans to trials, so a test passes a
table. Seconds come from the trials themselves.

A nest of L loops with F choices each has F**L plans, so it is searched loop by loop, the one with
most work first, keeping what helps, and once more if something changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autoloop._choose import LEAST_ROUNDS, Rules, choose, cost, with_breakeven
from autoloop._plan import Plan
from autoloop._records import AS_WRITTEN, Budget, Status, Trial
from autoloop._space import Axis, Outcome, SearchInterrupted, Space

#: A rung slower than the best plan by this factor ends its ladder.
_CLIFF = 2.0
#: Compile time grows faster than the program: from 16 to 200 copies of a scalar body it took 40 times as
#: long (jax 0.10.2, CPU), an exponent of 1.7; larger bodies grow less steeply.
_COMPILE_EXPONENT = 1.5
#: A dispatched call costs at least this on any machine known to us, in seconds.
_DISPATCH_S = 2e-6
#: How many plans enter the last race, and the part of the budget kept for it.
_FINALISTS = 3
_FINAL_SHARE = 0.2
#: A plan whose building may take more than this part of the budget waits until the others were tried.
_DEAR_SHARE = 0.15
#: How many plans each set of XLA options is tried with.
_OPTION_BASES = 4
#: A plan is not tried if one that builds as much for the same loop was slower than the best by this.
_TWIN_CLIFF = 4.0


class Measure(Protocol):
    """From plans to trials, timed together; `best` is the best ratio so far."""

    def __call__(self, plans: Sequence[Plan], best: float) -> Sequence[Trial]:
        """Measures."""


# ---------------------------------------------------------------- searching


@dataclass
class _Search:
    space: Space
    measure: Measure
    budget: Budget
    rules: Rules
    trials: dict[Plan, Trial] = field(default_factory=dict)
    dear: dict[Plan, None] = field(default_factory=dict)
    hint: Plan | None = None
    also: Sequence[Plan] = ()
    settled: frozenset[Plan] = frozenset()
    spent_s: float = 0.0
    out_of_budget: bool = False

    def run(self) -> None:
        """The whole search; what it found so far stands in `trials` whenever it is interrupted."""
        self.keep([Plan()], self.measure([Plan()], 1.0))
        for plan in self.also:
            self.attempt(plan, Plan(), patient=False)
        best = self.from_hint()
        if best is None:
            best = self.visit(Plan())
            if not best.as_written:
                best = self.visit(best)
                best = self.each_alone(best)
            best = self.with_options(best)
            for plan in list(self.dear):
                if plan not in self.trials:
                    self.attempt(plan, best, patient=False)
        self.final()

    def from_hint(self) -> Plan | None:
        """The hinted plan, if it still clears the margin here: then nothing else is tried."""
        plan = self.hint
        if plan is None or plan.as_written or self.attempt(plan, Plan(), patient=False) is None:
            return None
        winner, _ = choose([self.trials[Plan()], self.trials[plan]], self.rules)
        return plan if winner.plan == str(plan) else None

    def visit(self, best: Plan) -> Plan:
        """One pass over the loops, the one with most work of its own first."""
        for axis in sorted(self.space.axes, key=lambda a: (-a.work, a.path)):
            best = self.climb(axis, best)
        return best

    def each_alone(self, best: Plan) -> Plan:
        """The best plan after trying each loop's choices with the others as written.

        Two loops may stand in each other's way: a batched outer loop may want the inner one untouched.
        """
        before = best
        for axis in self.space.axes:
            best = self.climb(axis, best, Plan())
        return best if best == before else self.visit(best)

    def with_options(self, best: Plan) -> Plan:
        """The best plan after trying XLA options on it, on as-written, and on plans that lost.

        An option may turn a plan that fell off a cliff into the fastest, so it is tried with the best
        plan of every form too, not only with the best of all.
        """
        bases = list(dict.fromkeys([best, Plan(), *self.best_of_forms()]))
        for options in self.space.options:
            for base in bases[:_OPTION_BASES]:
                plan = base.with_options(options)
                trial = self.trials.get(plan) or self.attempt(plan, best)
                if trial is not None and trial.status is Status.FAILED:
                    break  # this back end does not know the option
                if trial is not None and self.better(trial, best):
                    best = plan
        return best

    def best_of_forms(self) -> list[Plan]:
        """For each form that ran on one loop, its fastest plan, the fastest first."""
        found: dict[str, tuple[float, Plan]] = {}
        for plan, trial in self.trials.items():
            if len(plan.choices) == 1 and trial.ok and trial.ratio is not None:
                name = plan.choices[0].form
                found[name] = min(found.get(name, (trial.ratio, plan)), (trial.ratio, plan), key=lambda x: x[0])
        return [plan for _, plan in sorted(found.values(), key=lambda x: x[0])]

    def climb(self, axis: Axis, best: Plan, start: Plan | None = None) -> Plan:
        """The best plan after trying this loop's choices on top of `start`, which is `best` if not given."""
        start = best if start is None else start
        for ladder in axis.ladders:
            for choice in ladder:
                plan = start.with_choice(choice)
                trial = self.trials.get(plan) or self.attempt(plan, best)
                if trial is None:
                    continue
                if self.better(trial, best):
                    best = plan
                if self.falls_off(trial, start):
                    break
        return best

    def attempt(self, plan: Plan, best: Plan, patient: bool = True) -> Trial | None:
        """A new trial of a plan; a skipped one where it can't pay; None where it is not legal, or later."""
        if self.space.why_not(plan):
            return None
        build_s, source = self.predict_build_s(plan)
        if patient and build_s > _DEAR_SHARE * self.budget.seconds:
            self.dear[plan] = None
            return None
        reason = self.unaffordable(build_s, source) or self.too_many_dispatches(plan) or self.twin_lost(plan, best)
        if reason:
            self.trials[plan] = Trial(str(plan), Status.SKIPPED, reason)
        else:
            self.keep([plan], self.measure([plan], self.trials[best].ratio or 1.0))
        return self.trials[plan]

    def keep(self, plans: Sequence[Plan], trials: Sequence[Trial]) -> None:
        for plan, trial in zip(plans, trials, strict=True):
            known = self.trials.get(plan)
            self.spent_s += trial.spent_s - (known.spent_s if known else 0.0)
            self.trials[plan] = trial

    def better(self, trial: Trial, best: Plan) -> bool:
        """Whether a trial improves on the best plan so far by the margin."""
        if not trial.ok or trial.ratio is None:
            return False
        base = self.trials[Plan()]
        bound = 1.0 if best.as_written else cost(self.trials[best], base, self.rules)
        return cost(trial, base, self.rules) < bound * (1 - self.rules.margin)

    def falls_off(self, trial: Trial, without: Plan) -> bool:
        """Whether dearer rungs of a ladder need no trial after this one; `without` is the plan without it."""
        if trial.status is Status.SKIPPED and trial.ratio is None:
            return True
        known = self.trials[without].ratio or 1.0
        return trial.ratio is not None and trial.ratio > _CLIFF * known

    def unaffordable(self, build_s: float, source: str) -> str:
        left_s = (1 - _FINAL_SHARE) * self.budget.seconds - self.spent_s
        if left_s > 0 and build_s <= left_s:
            return ""
        self.out_of_budget = True
        if left_s <= 0:
            return f"the budget of {self.budget.seconds:.3g} s was spent"
        return (
            f"building would take about {build_s:.1f} s (predicted from {source}), "
            f"{left_s:.1f} s of the budget are left"
        )

    def twin_lost(self, plan: Plan, best: Plan) -> str:
        """Why a plan can't be worth it: another that builds as much of the same loops lost by far."""
        limit = _TWIN_CLIFF * (self.trials[best].ratio or 1.0)
        size = self.space.size(plan)
        if size <= 2 * self.space.size(Plan()) or self.space.dispatches(plan) > 1:
            return ""  # few copies, or a Python loop, whose time is not in its copies
        for known, trial in self.trials.items():
            same = [c.path for c in known.choices] == [c.path for c in plan.choices]
            same = same and known.options == plan.options
            if same and trial.ratio is not None and trial.ratio > limit and self.space.size(known) == size:
                return f"{known}, which builds as much, took {trial.ratio:.3g}x the time as written"
        return ""

    def predict_build_s(self, plan: Plan) -> tuple[float, str]:
        """Seconds to build a plan, from the built plan that is nearest in size; and that plan's text."""
        size = self.space.size(plan)
        built = [(p, t) for p, t in self.trials.items() if t.ok and t.compile_s is not None]
        loops = {c.path for c in plan.choices}
        alike = [(p, t) for p, t in built if {c.path for c in p.choices} == loops]
        # Plans that change the same loops foretell best; one of them at least must have copies to tell.
        built = alike if any(self.space.size(p) > self.space.size(Plan()) for p, _ in alike) else built
        near, trial = min(built, key=lambda pt: abs(math.log(size / self.space.size(pt[0]))))
        # One copy tells little of what many cost: most of its time does not grow with them.
        exponent = 1.0 if self.space.size(near) <= self.space.size(Plan()) else _COMPILE_EXPONENT
        growth = max(1.0, size / self.space.size(near)) ** exponent
        return trial.build_s * growth, str(near)

    def too_many_dispatches(self, plan: Plan) -> str:
        count = self.space.dispatches(plan)
        least_s = count * _DISPATCH_S
        base_s = self.trials[Plan()].run_s or 0.0
        calls = self.rules.expected_calls
        worth_s = base_s if calls is None else base_s + self.trials[Plan()].build_s / calls
        if count <= 1 or least_s <= _CLIFF * worth_s:
            return ""
        return f"its {count:,.0f} dispatches take {least_s:.3g} s or more, as written takes {base_s:.3g} s"

    def final(self) -> None:
        """Races the best plans once more, together, so that they are compared in the same rounds."""
        base = self.trials[Plan()]
        ran = [(p, t) for p, t in self.trials.items() if not p.as_written and t.ok and t.ratio is not None]
        ran.sort(key=lambda pt: cost(pt[1], base, self.rules))
        close = [p for p, t in ran if cost(t, base, self.rules) < 1.0 and p not in self.settled]
        round_s = base.run_s or 0.0
        left_s = self.budget.seconds - self.spent_s
        room = _FINALISTS if round_s <= 0 else int(left_s / (LEAST_ROUNDS * round_s)) - 1
        close = close[: max(0, min(_FINALISTS, room))]
        if close:
            self.keep(close, self.measure(close, self.trials[close[0]].ratio or 1.0))
            self.keep([Plan()], self.measure([Plan()], 1.0))


def search(
    space: Space,
    measure: Measure,
    budget: Budget,
    rules: Rules,
    known: Sequence[Trial] = (),
    hint: Plan | None = None,
    also: Sequence[Plan] = (),
    settled: bool = False,
) -> Outcome:
    """Tries plans until the space or the budget is used up.

    Args:
        space: what may be tried.
        measure: from plans to trials; errors of the baseline pass through.
        budget: seconds to spend, as the trials count them; overshot by at most one compile.
        rules: how plans are compared.
        known: trials of an earlier search of the same program, which are not measured again unless they
            come into the last race.
        hint: the winner for the same program with other sizes: tried first, and the search ends if it
            clears the margin.
        also: plans to try in any case, for whoever wants to see them.
        settled: whether the known trials come from a search that was done: none of them is measured again.

    Returns:
        The trials, as written first, and the winner.

    Raises:
        SearchInterrupted: with what was found so far, on `KeyboardInterrupt` once as-written was measured.
    """
    state = _Search(space, measure, budget, rules, hint=hint, also=also)
    for trial in known:
        if trial.plan != AS_WRITTEN and (settled or trial.ratio is not None):
            state.trials[Plan.parse(trial.plan)] = trial.replace(spent_s=0.0)
    state.settled = frozenset(state.trials if settled else ())
    try:
        state.run()
    except KeyboardInterrupt:
        if Plan() not in state.trials:
            raise
        raise SearchInterrupted(_outcome(state, complete=False)) from None
    return _outcome(state, complete=not state.out_of_budget)


def _outcome(state: _Search, complete: bool) -> Outcome:
    ordered = {Plan(): state.trials[Plan()], **state.trials}
    trials = with_breakeven(tuple(ordered.values()))
    winner, verdict = choose(trials, state.rules)
    return Outcome(trials, winner.plan, verdict, complete)
