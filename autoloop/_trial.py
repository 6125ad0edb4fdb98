"""Compiles, checks and times plans on the live device.

The one place that may catch any exception: whatever goes wrong with a plan becomes a trial with its
reason. Trials run on the user's own arguments; donated ones are copied outside the timed span, so
nothing of the user's is consumed.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from autoloop import _agree, _signals, _timing
from autoloop._choose import LEAST_ROUNDS, Rules, cost
from autoloop._crew import ALONE, Crew
from autoloop._inputs import Inputs
from autoloop._plan import Plan
from autoloop._records import Budget, Status, Trial
from autoloop._runner import Ready, Runner
from autoloop._warning import warn

_log = logging.getLogger("autoloop")

#: A plan that after its first run costs this many times as written is not raced at all.
_ABANDON = 5.0
#: The compiled program of a plan that costs this many times the best is let go.
_LET_GO = 1.5
#: The part of the budget that timing one set of plans may take.
_RACE_SHARE = 0.1

Clock = Callable[[], float]


class Bench:
    """Measures plans of one program against the function as written.

    Args:
        candidate_for: makes the candidate of a plan.
        inputs: the arguments to run on.
        tolerance: how far outputs may be from those of the function as written.
        budget: seconds for everything, bytes a candidate may need.
        rules: how plans are compared.
        device: where it runs, for its free memory.
        scale: from the seconds of a call to those to report, for programs that were shortened.
        clock: seconds, ever rising.
        crew: who measures besides this process.
    """

    def __init__(
        self,
        candidate_for: Callable[[Plan], Any],
        inputs: Inputs,
        tolerance: _agree.Tolerance,
        budget: Budget,
        rules: Rules,
        device: Any,
        scale: Callable[[float], float] = float,
        clock: Clock = time.perf_counter,
        crew: Crew = ALONE,
    ) -> None:
        self._runner = Runner(candidate_for, inputs, tolerance, budget.max_memory_bytes, device, clock)
        self._budget, self._rules = budget, rules
        self._scale, self._clock, self._crew = scale, clock, crew
        self._started = clock()
        self._prepared: dict[Plan, Ready | Trial] = {}
        self._programs: dict[bytes, Plan] = {}
        #: How much the times of the function as written spread, one number a race.
        self.spreads: list[float] = []

    def spent_s(self) -> float:
        """Seconds since the bench was set up."""
        return self._clock() - self._started

    def candidate(self, plan: Plan) -> Any:
        """The compiled candidate of a plan that was measured and ran, else None."""
        ready = self._prepared.get(plan)
        return ready.candidate if isinstance(ready, Ready) else None

    def seconds_left(self) -> float:
        """Seconds of the budget that are left."""
        return self._budget.seconds - self.spent_s()

    def measure(self, plans: Sequence[Plan], best: float = 1.0) -> list[Trial]:
        """A trial for each plan, timed in the same rounds as the function as written.

        Args:
            plans: what to measure; the empty plan is the function as written itself.
            best: the least cost known so far, so that hopeless plans stop early.

        Raises:
            Exception: what the function as written raises; nothing is caught for the baseline.
        """
        baseline = self._baseline()
        found = [baseline if plan.as_written else self._prepare(plan) for plan in plans]
        racing = [r for r in found if isinstance(r, Ready) and self._races(r, baseline)]
        if racing or baseline.trial.run_s is None:
            self._race(baseline, racing, best)
        return [self._report(plan, r) for plan, r in zip(plans, found, strict=True)]

    def _race(self, baseline: Ready, racing: Sequence[Ready], best: float) -> None:
        start = self._clock()
        end = self._started + self._budget.seconds
        if len(racing) == 1:  # one of many to come; several are the last race, which may use what is left
            enough_s = LEAST_ROUNDS * 2 * 1.2 * baseline.first_s
            end = min(end, start + max(_RACE_SHARE * self._budget.seconds, enough_s))
        if end <= start and baseline.trial.run_s is not None:
            return  # no time left: what earlier races showed stands
        timings, base = _timing.race(
            self._sampler(baseline),
            [(self._sampler(r), self._cost(r, baseline)) for r in racing],
            self._rules.margin,
            lambda: end - self._clock(),
            best,
        )
        baseline.trial = _timed(baseline, base)
        self.spreads.append(base.spread)
        share_s = (self._clock() - start) / max(1, len(racing))
        for ready, timing in zip(racing, timings, strict=True):
            if timing.rounds < min(ready.trial.rounds, LEAST_ROUNDS):
                continue  # cut short by the budget: the earlier race says more
            spent_s = ready.trial.spent_s + share_s
            ready.trial = _timed(ready, timing).replace(spent_s=spent_s)
            if self._cost(ready, baseline)(timing.ratio.low) > _LET_GO * min(best, 1.0):
                plan = Plan.parse(ready.trial.plan)  # it can't come back: free its program
                self._runner.let_go(plan)
                self._crew.let_go(plan)

    def _report(self, plan: Plan, found: Ready | Trial) -> Trial:
        trial = found.trial if isinstance(found, Ready) else found
        _log.info("trial %s: %s", plan, _one_line(trial))
        return trial

    def _baseline(self) -> Ready:
        plan = Plan()
        ready = self._prepared.get(plan)
        if ready is None:
            ready = self._prepared[plan] = self._compile_and_run(plan)
        if isinstance(ready, Trial):  # it ran here, so it failed elsewhere
            raise RuntimeError(f"the function as written {ready.status}: {ready.reason}")
        return ready

    def _prepare(self, plan: Plan) -> Ready | Trial:
        if plan not in self._prepared:
            start = self._clock()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # jax warned for the function as written already
                    self._prepared[plan] = self._compile_and_run(plan)
            except Exception as error:
                if _signals.from_handler(error):
                    raise
                failed = Trial(str(plan), Status.FAILED, _first_line(error), spent_s=self._clock() - start)
                self._prepared[plan] = failed
                self._runner.ready.pop(plan, None)
        return self._prepared[plan]

    def _compile_and_run(self, plan: Plan) -> Ready | Trial:
        start = self._clock()
        digest = self._runner.lower(plan)
        twin = self._programs.setdefault(digest, plan) if digest is not None else plan
        if twin != plan and twin in self._prepared:
            del self._runner.ready[plan]
            return self._same_as(twin, plan, self._clock() - start)
        trial, first_s = self._crew.build(plan, lambda: self._runner.build(plan)), 0.0
        if trial.ok:
            ran, first_s = self._crew.first(plan, lambda: self._runner.first(plan))
            trial = ran.replace(trace_s=trial.trace_s, compile_s=trial.compile_s, peak_bytes=trial.peak_bytes)
        trial = trial.replace(spent_s=self._clock() - start)
        ready = self._runner.ready[plan] if trial.ok else self._runner.ready.pop(plan)
        ready.trial, ready.first_s = trial, first_s
        return ready if trial.ok else trial

    def _same_as(self, twin: Plan, plan: Plan, spent_s: float) -> Trial:
        """The trial of a plan whose lowered text equals another's: nothing is compiled or timed again."""
        found = self._prepared[twin]
        known = found.trial if isinstance(found, Ready) else found
        return known.replace(plan=str(plan), status=Status.SKIPPED, reason=f"same program as {twin}", spent_s=spent_s)

    def _races(self, ready: Ready, baseline: Ready) -> bool:
        return ready is not baseline and ready.candidate is not None and not self._hopeless(ready)

    def _hopeless(self, ready: Ready) -> bool:
        """Whether the first run was so slow that more would only cost; its time then stands."""
        baseline = self._prepared[Plan()]
        assert isinstance(baseline, Ready)
        base_s = baseline.first_s
        costs = self._cost(ready, baseline)(ready.first_s / base_s)
        if ready.cost.lazy or costs < _ABANDON or ready.first_s < 0.05:
            return False
        once = _timing.Interval(*(self._scale(ready.first_s),) * 3)
        ratio = _timing.Interval(*(ready.first_s / base_s,) * 3)
        ready.trial = _timed(ready, _timing.Timing(once, ratio, 1))
        return True

    def _cost(self, ready: Ready, baseline: Ready) -> _timing.Cost:
        """What a plan's ratio is worth by the rules: where building counts, a slower plan may be the better one."""
        base = baseline.trial.replace(run_s=baseline.trial.run_s or self._scale(baseline.first_s))
        return lambda ratio: cost(_built(ready, ready.trial), base, self._rules, ratio)

    def _sampler(self, ready: Ready) -> _timing.Sampler:
        plan = Plan.parse(ready.trial.plan)

        def sample(calls: int) -> float:
            seconds = self._crew.sample(plan, calls, lambda n: self._runner.sample(plan, n))
            ready.later_s = min(ready.later_s, seconds)
            return self._scale(seconds)

        return sample


def _timed(ready: Ready, timing: _timing.Timing) -> Trial:
    run, ratio = timing.run_s, timing.ratio
    trial = ready.trial.replace(
        run_s=run.mid,
        run_low_s=run.low,
        run_high_s=run.high,
        ratio=ratio.mid,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        rounds=timing.rounds,
    )
    return _built(ready, trial)


def _built(ready: Ready, trial: Trial) -> Trial:
    """The trial with the seconds that compiling took, also where the plan compiles while it runs."""
    if not ready.cost.lazy or ready.later_s == math.inf:
        return trial
    # What the first call took beyond a later one.
    return trial.replace(compile_s=max(0.0, ready.first_s - ready.later_s))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _one_line(trial: Trial) -> str:
    if trial.run_s is None:
        return f"{trial.status}, {trial.reason}"
    return f"{trial.status}, {1e3 * trial.run_s:.3f} ms, ratio {trial.ratio:.3f}, build {trial.build_s:.2f} s"


def guarded(work: Callable[[], Any], what: str, failed: Callable[[str], Any]) -> Any:
    """The result of `work`; if it raises, one warning and `failed(reason)`: tuning must never fail a call.

    Only what a signal handler raises goes on to the user.
    """
    try:
        return work()
    except Exception as error:
        if _signals.from_handler(error):
            raise
        _log.warning("%s failed: %r", what, error, exc_info=_log.isEnabledFor(logging.DEBUG))
        warn(f"{what} failed ({type(error).__name__}: {error}); running as written")
        return failed(_first_line(error))
