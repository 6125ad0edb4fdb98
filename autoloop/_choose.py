"""Which of several plans wins, and the sentence that says why. Pure: no jax, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoloop._records import AS_WRITTEN, Trial

#: A plan timed in fewer rounds can't win: their extremes hold the median with 95 % where 2 * 0.5**n <= 5 %.
LEAST_ROUNDS = 6


@dataclass(frozen=True)
class Rules:
    """How plans are compared.

    Attributes:
        margin: a winner's interval must clear as-written by this, relative; closer plans tie.
        expected_calls: None: only run time counts. n: building is spread over n calls.
    """

    margin: float = 0.03
    expected_calls: int | None = None


def cost(trial: Trial, baseline: Trial, rules: Rules, ratio: float | None = None) -> float:
    """A plan's cost relative to as-written: run time, or run time plus its share of building."""
    ratio = trial.ratio if ratio is None else ratio
    assert ratio is not None
    assert baseline.run_s is not None
    if rules.expected_calls is None:
        return ratio
    share, base_share = trial.build_s / rules.expected_calls, baseline.build_s / rules.expected_calls
    return (share + ratio * baseline.run_s) / (base_share + baseline.run_s)


def choose(trials: Sequence[Trial], rules: Rules) -> tuple[Trial, str]:
    """The winner among trials (as written first), and one sentence why.

    A plan wins only if the whole interval of its cost clears as-written by the margin. Among those
    within the margin of the best, less build time wins, then less memory, then the plan's text.
    """
    baseline = trials[0]
    ran = [t for t in trials[1:] if t.ok and t.ratio is not None]
    # Fewer rounds give no 95 % interval at all.
    timed = [t for t in ran if t.rounds >= LEAST_ROUNDS]
    clear = [t for t in timed if cost(t, baseline, rules, t.ratio_high) <= 1 - rules.margin]
    if not clear:
        return baseline, _why_as_written(ran, baseline, rules)
    best = min(cost(t, baseline, rules) for t in clear)
    tied = [t for t in clear if cost(t, baseline, rules) <= best * (1 + rules.margin)]
    winner = min(tied, key=lambda t: (round(t.build_s, 2), t.peak_bytes or 0, t.plan))
    assert winner.ratio is not None
    how = f"runs {1 / winner.ratio:.2f}x as fast as written" if winner.ratio < 1 else "builds faster"
    rest = f", {len(tied) - 1} more within the margin build slower" if len(tied) > 1 else ""
    return winner, f"{winner.plan} {how}{rest}"


def _why_as_written(ran: Sequence[Trial], baseline: Trial, rules: Rules) -> str:
    if not ran:
        return "no other plan could be tried"
    best = min(ran, key=lambda t: cost(t, baseline, rules))
    found = cost(best, baseline, rules)
    if found <= 1 - rules.margin:
        return f"too noisy to decide: {best.plan} may be faster, but its interval does not clear the margin"
    if found < 1:
        return f"the best other plan, {best.plan}, gains less than the margin of {rules.margin:.0%}"
    return f"no other plan is faster; the best is {best.plan} at {found:.2f}x the cost"


def with_breakeven(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The trials with the number of calls after which each has paid for its extra build time."""
    return tuple(t.replace(breakeven_calls=_breakeven(t, trials[0])) for t in trials)


def _breakeven(trial: Trial, baseline: Trial) -> float | None:
    if trial.run_s is None or trial.ratio is None or baseline.run_s is None or trial.plan == AS_WRITTEN:
        return None
    gain_s = (1 - trial.ratio) * baseline.run_s
    extra_s = trial.build_s - baseline.build_s
    if gain_s <= 0:
        return None
    return max(0.0, math.ceil(extra_s / gain_s))
