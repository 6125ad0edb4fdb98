"""Which plan to try next, when to stop, and which one wins.

Pure: no jax, no clock, no disk. `measure` is any callable from plans to trials, so a test passes a
table. Seconds come from the trials themselves.

A nest of L loops with F choices each has F**L plans, so it is searched loop by loop, keeping what helps:
first, from the outermost loop in, the few forms that run iterations in another order, which gain most;
then all forms, the loop with most work of its own first, and once more if something changed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoloop import _foretell
from autoloop._choose import LEAST_ROUNDS, Rules, choose, cost, with_breakeven
from autoloop._plan import Choice, Plan
from autoloop._records import AS_WRITTEN, Budget, Status, Trial
from autoloop._space import Axis, Measure, Outcome, SearchInterrupted, Space

#: A rung slower than the best plan by this factor ends its ladder.
_CLIFF = 2.0
#: How many plans enter the last race, and the part of the budget kept for it.
_FINALISTS = 3
_FINAL_SHARE = 0.2
#: A plan whose building may take more than this part of the budget waits until the others were tried.
_DEAR_SHARE = 0.2
#: The same for a choice of several loops at once, which few plans make.
_TOGETHER_SHARE = 0.4
#: How many plans each set of XLA options is tried with.
_OPTION_BASES = 4


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
            self.attempt(plan, Plan(), math.inf)
        best = self.from_hint()
        if best is None:
            best = self.visit(self.together(self.reordered()))
            if not best.as_written:
                best = self.visit(best)
                best = self.each_alone(best)
            best = self.with_options(best)
            for plan in list(self.dear):
                if plan not in self.trials:
                    self.attempt(plan, best, math.inf)
        self.final()

    def from_hint(self) -> Plan | None:
        """The hinted plan, if it still clears the margin here: then nothing else is tried."""
        plan = self.hint
        if plan is None or plan.as_written or self.attempt(plan, Plan(), math.inf) is None:
            return None
        winner, _ = choose([self.trials[Plan()], self.trials[plan]], self.rules)
        return plan if winner.plan == str(plan) else None

    def reordered(self) -> Plan:
        """The best plan of forms that come first: their factors should not wait until the budget is spent.

        Outer loops come before inner ones: batched, an outer loop may leave nothing to be done inside.
        """
        best = Plan()
        for axis in sorted(self.space.axes, key=lambda a: (-self.whole_work(a), a.path)):
            best = self.climb(axis, best, first=True)
        return best

    def together(self, best: Plan) -> Plan:
        """The best plan after trying one form for all loops of one length that stand side by side."""
        groups: dict[tuple[tuple[int, ...], int, str], list[Choice]] = {}
        for axis in self.space.axes:
            for choice in axis.together:
                groups.setdefault((axis.path[:-1], axis.length, choice.form), []).append(choice)
        for choices in groups.values():
            plan = functools.reduce(Plan.with_choice, choices, best)
            trial = self.attempt(plan, best, _TOGETHER_SHARE) if len(choices) > 1 else None
            if trial is not None and self.better(trial, best):
                best = plan
        return best

    def whole_work(self, axis: Axis) -> float:
        """A loop's work with that of the loops inside it."""
        return sum(a.work for a in self.space.axes if a.path[: len(axis.path)] == axis.path)

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

    def climb(self, axis: Axis, best: Plan, start: Plan | None = None, first: bool = False) -> Plan:
        """The best plan after trying this loop's choices (or the first) on `start`, which is `best` if not given."""
        start = best if start is None else start
        for ladder in axis.ladders[: axis.first if first else None]:
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

    def attempt(self, plan: Plan, best: Plan, most: float = _DEAR_SHARE) -> Trial | None:
        """A new trial of a plan; a skipped one where it can't pay; None where it is not legal, or later."""
        if self.space.why_not(plan):
            return None
        if self.left_s <= 0:  # foretelling takes time too where there are many loops
            self.out_of_budget = True
            self.trials[plan] = Trial(str(plan), Status.SKIPPED, "the budget but for the last race was spent")
            return self.trials[plan]
        build_s, source = _foretell.build_s(plan, self.space, self.trials)
        if build_s > most * self.budget.seconds:
            self.dear[plan] = None
            return None
        reason = (
            self.unaffordable(build_s, source)
            or _foretell.too_long_chain(plan, self.space)
            or _foretell.too_many_dispatches(plan, self.space, self.trials, self.rules)
            or _foretell.twin_lost(plan, best, self.space, self.trials)
        )
        if reason:
            self.trials[plan] = Trial(str(plan), Status.SKIPPED, reason)
        else:
            self.keep([plan], self.measure([plan], self.cost(best)))
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
        return cost(trial, self.trials[Plan()], self.rules) < self.cost(best) * (1 - self.rules.margin)

    def cost(self, plan: Plan) -> float:
        """What a plan that was tried costs relative to as written, by the rules."""
        return 1.0 if plan.as_written else cost(self.trials[plan], self.trials[Plan()], self.rules)

    def falls_off(self, trial: Trial, without: Plan) -> bool:
        """Whether dearer rungs of a ladder need no trial after this one; `without` is the plan without it."""
        if trial.status is Status.SKIPPED and trial.ratio is None:
            return True
        known = self.trials[without].ratio or 1.0
        return trial.ratio is not None and trial.ratio > _CLIFF * known

    @property
    def left_s(self) -> float:
        """Seconds of the budget for trials; the rest is kept for the last race."""
        return (1 - _FINAL_SHARE) * self.budget.seconds - self.spent_s

    def unaffordable(self, build_s: float, source: str) -> str:
        if build_s <= self.left_s:
            return ""
        self.out_of_budget = True
        return (
            f"building would take about {build_s:.1f} s (predicted from {source}), "
            f"{self.left_s:.1f} s of the budget are left"
        )

    def final(self) -> None:
        """Races the best plans once more, together, so that they are compared in the same rounds."""
        base = self.trials[Plan()]
        ran = [(p, t) for p, t in self.trials.items() if not p.as_written and t.ok and t.ratio is not None]
        ran.sort(key=lambda pt: cost(pt[1], base, self.rules))
        close = [p for p, t in ran if cost(t, base, self.rules) < 1.0 and p not in self.settled]
        # A program that was shortened took less than the seconds that it foretells of a whole call.
        round_s = min(base.run_s or 0.0, base.spent_s)
        left_s = self.budget.seconds - self.spent_s
        room = _FINALISTS if round_s <= 0 else int(left_s / (LEAST_ROUNDS * round_s)) - 1
        close = close[: max(0, min(_FINALISTS, room))]
        if close:
            self.keep(close, self.measure(close, self.cost(close[0])))
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
