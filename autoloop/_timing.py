"""Times calls against each other: interleaved rounds, paired ratios, and when to stop.

What is timed is a whole call on the wall clock, ended by blocking until its outputs are ready, each
call by itself, as a loop that calls again and again sees it: dispatch is part of the cost of a loop
form, and only blocking charges it. A training loop that does not block may hide some of a Python
loop's dispatch behind the device; the figures here are those of a caller who waits.

Rounds hold the function as written and every candidate still in contention, in random order. Each
round gives a candidate one ratio to as-written; the interval of the median ratio is the
distribution-free one from order statistics (J.-Y. Le Boudec, *Performance Evaluation of Computer and
Communication Systems*, EPFL Press 2010, theorem 2.1), which assumes no shape of the noise. It is
looked at after every round, so its 95 % are nominal; the margin a winner must clear makes up for it.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoloop import _machine
from autoloop._choose import LEAST_ROUNDS

#: A timed span shorter than this is repeated within one sample: clocks and interrupts blur less.
MIN_SPAN_S = 1e-3
#: So many calls stand in a row in a sample, but no more than make this span; one that is not timed goes before them.
#: Some programs run slower where each call follows another program's: distribute(heavy) of benchmarks/zoo/s5_layer.py
#: took 3.5 ms a call in turn with as written, 2.0 ms called again and again (2 cores, jax 0.10.2). Bare matrix
#: products showed nothing of it; what it comes from is not known.
_IN_A_ROW, _ROW_S = 4, 1e-2
#: Where as written takes less, all contenders are called for this long before they are timed. After a pause, as for
#: compiling, some programs take twice the time, as written not: `0=associative` of garch in benchmarks/nests.py
#: took 32 us a call, but 50 to 90 us for 0.03 to 0.1 s after a pause of 0.05 s (2 cores, jax 0.10.2). A race of
#: short calls would be over before.
_WARM_S = 0.05
MAX_ROUNDS = 40
#: An interval this narrow, relative, has settled.
_NARROW = 0.02
#: After so many rounds, a candidate that costs this many times the best in all of them is not timed again.
HOPELESS = {2: 2.0, 3: 1.3}

#: Runs a number of calls and returns the seconds of one.
Sampler = Callable[[int], float]
#: What a ratio to the baseline is worth, relative to the baseline: never less for a greater one.
Cost = Callable[[float], float]


@dataclass(frozen=True)
class Interval:
    """A median and the ends of its 95 % interval."""

    mid: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """What a race showed of one contender: seconds a call, its ratio to the baseline, how it spread."""

    run_s: Interval
    ratio: Interval
    rounds: int
    spread: float = 0.0


@dataclass
class _Lane:
    sampler: Sampler
    cost: Cost = float
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    calls: int = 1
    done: bool = False

    def sample(self) -> float:
        """Seconds of a call now; the next sample holds as many as that allows."""
        seconds = self.sampler(self.calls)
        # By its own time: a slow candidate would multiply its cost by a batch, a fast one needs more of it.
        self.calls = calls_per_sample(seconds)
        return seconds


def race(
    baseline: Sampler,
    candidates: Sequence[tuple[Sampler, Cost]],
    margin: float,
    seconds_left: Callable[[], float],
    best: float = 1.0,
    seed: int = 0,
) -> tuple[list[Timing], Timing]:
    """Times candidates against the baseline in interleaved rounds.

    Args:
        baseline: the function as written.
        candidates: the others, each with what its ratio is worth: `float` where only run time counts.
        margin: how much faster than the baseline a winner must be, relative.
        seconds_left: how long the race may still go on; asked between rounds.
        best: the least cost known from earlier races.
        seed: of the order within rounds.

    Returns:
        (a timing for each candidate, the baseline's own).
    """
    dice = random.Random(seed)
    base = _Lane(baseline)
    lanes = [_Lane(*candidate) for candidate in candidates]
    if base.sample() < _WARM_S:
        for lane in (*lanes, base):
            _warm_up(lane, seconds_left)
    for _ in range(MAX_ROUNDS):
        contenders = [lane for lane in lanes if not lane.done]
        if base.seconds and seconds_left() <= 0:
            break
        if not contenders and (lanes or len(base.seconds) >= LEAST_ROUNDS):
            break
        _round(base, contenders, dice)
        _settle(lanes, margin, best)
    return [_timing(lane) for lane in lanes], _timing(base)


def calls_per_sample(one_call_s: float) -> int:
    """How many calls make a span that the clock resolves, and stand in a row if they are short."""
    once_s = max(one_call_s, 1e-7)
    row = min(_IN_A_ROW, math.ceil(_ROW_S / once_s))
    return max(row, min(1000, math.ceil(MIN_SPAN_S / once_s)))


def _warm_up(lane: _Lane, seconds_left: Callable[[], float]) -> None:
    warm_s = 0.0
    for _ in range(round(_WARM_S / MIN_SPAN_S) + 1):  # as many spans at most, whatever the clock says
        if warm_s >= _WARM_S or seconds_left() <= 0:
            return
        calls = lane.calls
        warm_s += calls * lane.sample()


def _round(base: _Lane, contenders: Sequence[_Lane], dice: random.Random) -> None:
    order = [base, *contenders]
    dice.shuffle(order)
    for lane in order:
        lane.seconds.append(lane.sample())
    for lane in contenders:
        lane.ratios.append(lane.seconds[-1] / max(base.seconds[-1], 1e-9))


def _settle(lanes: Sequence[_Lane], margin: float, best: float) -> None:
    best = min([best, *(lane.cost(statistics.median(lane.ratios)) for lane in lanes if lane.ratios)])
    for lane in lanes:
        if lane.done:
            continue
        rounds = len(lane.ratios)
        least = lane.cost(min(lane.ratios))
        if any(rounds >= enough and least > factor * best for enough, factor in HOPELESS.items()):
            lane.done = True
        elif rounds >= LEAST_ROUNDS:
            found = median_interval([lane.cost(ratio) for ratio in lane.ratios])
            # A plan that is no better in most rounds, or worse than the best beyond a tie, can't win: rounds
            # are for those that may.
            lost = found.mid >= 1.0 or found.low > best * (1 + margin)
            narrow = found.high - found.low <= _NARROW * found.mid
            lane.done = lost or narrow


def _timing(lane: _Lane) -> Timing:
    ratio = median_interval(lane.ratios or [1.0])
    return Timing(median_interval(lane.seconds), ratio, len(lane.seconds), _machine.spread(lane.seconds))


def median_interval(samples: Sequence[float]) -> Interval:
    """The median and its 95 % interval from order statistics; the extremes below 6 samples."""
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return Interval(statistics.median(ordered), ordered[rank], ordered[-1 - rank])


@functools.cache
def _rank(count: int) -> int:
    """The largest rank r with P(r-th smallest <= median <= r-th largest) >= 95 %, from 0."""
    tail, rank = 0.5**count, 0
    while rank + 1 < count / 2:
        tail += math.comb(count, rank + 1) * 0.5**count
        if 2 * tail > 0.05:
            break
        rank += 1
    return rank
