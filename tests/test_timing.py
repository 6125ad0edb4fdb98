import math
import random

import pytest

from autoloop import _timing
from autoloop._choose import LEAST_ROUNDS
from autoloop._timing import MAX_ROUNDS, calls_per_sample, median_interval


class Fake:
    """A contender whose calls take what a list says, over and over."""

    def __init__(self, *seconds):
        self.seconds, self.calls, self.batches = seconds, 0, []

    def __call__(self, count):
        self.batches.append(count)
        self.calls += 1
        return self.seconds[(self.calls - 1) % len(self.seconds)]


def race(baseline, candidates, *args, **kwargs):
    """A race in which only run time counts."""
    return _timing.race(baseline, [(candidate, float) for candidate in candidates], *args, **kwargs)


def forever():
    return math.inf


def test_no_more_rounds_go_to_a_plan_that_is_slower_than_the_best_beyond_a_tie():
    (timing,), _ = race(Fake(1.0), [Fake(0.55, 0.6)], 0.03, forever, best=0.5)
    assert timing.rounds == LEAST_ROUNDS
    (timing,), _ = race(Fake(1.0), [Fake(0.49, 0.55)], 0.03, forever, best=0.5)
    assert timing.rounds == MAX_ROUNDS


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (40, 13)])
def test_interval_ranks_are_those_of_the_binomial_table(count, rank):
    # Le Boudec 2010, appendix A: the 95 % interval of a median runs from sample rank+1 to n-rank.
    found = median_interval(range(count))
    assert (found.low, found.high) == (rank, count - 1 - rank)


def test_interval_holds_the_true_median_in_at_least_95_of_100():
    dice = random.Random(0)
    hits = 0
    for _ in range(1000):
        found = median_interval([dice.expovariate(1.0) for _ in range(15)])
        hits += found.low <= math.log(2) <= found.high
    assert hits >= 940


def test_interval_does_not_depend_on_order():
    assert median_interval([3, 1, 2, 9, 4, 7]) == median_interval([9, 7, 4, 3, 2, 1])


def test_every_round_holds_the_baseline():
    base, other = Fake(1.0, 1.1), Fake(0.5, 0.9)
    (timing,), own = race(base, [other], 0.03, forever)
    assert base.calls - 1 == other.calls == timing.rounds == own.rounds  # one more call tells how long it takes


def test_ratios_are_paired_within_rounds():
    # Both drift by 10x together: paired, the ratio is exact.
    base, other = Fake(*(10.0**i for i in range(7))), Fake(*(10.0**i / 2 for i in range(7)))
    base.calls = -1
    (timing,), _ = race(base, [other], 0.03, forever)
    assert timing.ratio.mid == pytest.approx(0.5)


def test_short_calls_are_batched_to_a_millisecond():
    assert calls_per_sample(1e-5) == 100
    assert calls_per_sample(1e-9) == 1000
    assert calls_per_sample(0.5) == 1
    base, other = Fake(1e-5), Fake(1e-5)
    race(base, [other], 0.03, forever)
    assert set(base.batches[1:]) == {100}


@pytest.mark.parametrize(("once_s", "calls"), [(4e-4, 4), (2e-3, 4), (4e-3, 3), (9e-3, 2), (1e-2, 1), (2e-2, 1)])
def test_calls_of_some_milliseconds_stand_in_a_row(once_s, calls):
    assert calls_per_sample(once_s) == calls


def test_slow_candidate_is_not_multiplied_by_the_batch():
    other = Fake(1.0)
    race(Fake(1e-5), [other], 0.03, forever)
    assert set(other.batches) == {1}


def test_a_candidate_much_faster_than_as_written_has_a_batch_of_its_own():
    base, fast = Fake(2e-2), Fake(5e-5)
    race(base, [fast], 0.03, forever)
    assert set(base.batches) == {1}
    assert set(fast.batches[1:]) == {20}


@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [
        ((3.0,), 2),  # hopeless
        ((1.4,), 3),  # so too, but it takes a round more to tell
        ((1.2, 1.4), LEAST_ROUNDS),
        ((0.5,), LEAST_ROUNDS),  # settled: no spread at all
        ((1.2,), LEAST_ROUNDS),
        ((0.7, 1.2), MAX_ROUNDS),  # never settles
        ((0.7, 1.4), LEAST_ROUNDS),  # no faster in most rounds
    ],
)
def test_rounds_go_to_what_is_not_settled(seconds, rounds):
    (timing,), _ = race(Fake(1.0), [Fake(*seconds)], 0.03, forever)
    assert timing.rounds == rounds


class Waking:
    """A contender that takes three times its time until it was called for some seconds."""

    def __init__(self, once_s, wakes_s):
        self.once_s, self.wakes_s, self.spent_s = once_s, wakes_s, 0.0

    def __call__(self, count):
        found = self.once_s * (3 if self.spent_s < self.wakes_s else 1)
        self.spent_s += count * found
        return found


@pytest.mark.parametrize(("base_s", "other_s"), [(1e-3, 5e-4), (4e-5, 3e-5), (5e-3, 1e-4), (9e-3, 8e-3)])
@pytest.mark.parametrize("wakes", ["other", "base"])
def test_short_calls_are_called_for_a_while_before_they_are_timed(base_s, other_s, wakes):
    base, other = Waking(base_s, 0.04 * (wakes == "base")), Waking(other_s, 0.04 * (wakes == "other"))
    (timing,), own = race(base, [other], 0.03, forever)
    assert timing.ratio.mid == pytest.approx(other_s / base_s)
    assert (timing.run_s.mid, own.run_s.mid) == (other_s, base_s)


def test_calls_that_are_not_short_are_not_called_for_nothing():
    base, other = Fake(6e-2), Fake(5e-2)
    (timing,), _ = race(base, [other], 0.03, forever)
    assert (base.calls - 1, other.calls) == (timing.rounds, timing.rounds)


def test_no_time_left_is_no_time_to_warm_up():
    base, other = Fake(1e-3), Fake(5e-4)
    race(base, [other], 0.03, lambda: 0.0)
    assert (base.calls, other.calls) == (2, 1)


def test_a_clock_that_stands_still_does_not_keep_a_race_warming_up():
    (timing,), _ = race(Fake(0.0), [Fake(0.0)], 0.03, forever)
    assert timing.rounds >= LEAST_ROUNDS


def test_hopeless_is_relative_to_the_best():
    good, middling = Fake(0.1), Fake(0.5)
    timings, _ = race(Fake(1.0), [good, middling], 0.03, forever)
    assert [t.rounds for t in timings] == [LEAST_ROUNDS, 2]
    (timing,), _ = race(Fake(1.0), [Fake(0.5)], 0.03, forever, best=0.1)
    assert timing.rounds == 2


def test_where_a_ratio_is_worth_less_a_slower_plan_stays_in_the_race():
    def built_at_once(ratio):  # as written builds for ten times the time of a call
        return ratio / 11

    slow, hopeless = Fake(4.0, 4.05), Fake(30.0)
    timings, _ = _timing.race(Fake(1.0), [(slow, built_at_once), (hopeless, built_at_once)], 0.03, forever)
    assert [t.rounds for t in timings] == [LEAST_ROUNDS, 2]
    assert timings[0].ratio.mid == pytest.approx(4.0, abs=0.06)


def test_race_ends_when_its_seconds_are_over():
    left = iter([3, 2, 1, 0, -1])
    (timing,), _ = race(Fake(1.0, 2.0), [Fake(1.0, 1.5)], 0.03, lambda: next(left))
    assert timing.rounds == 4  # nobody asks before the first round


def test_a_lone_baseline_gets_an_interval_of_its_own():
    timings, own = race(Fake(1.0, 1.1), [], 0.03, forever)
    assert timings == []
    assert own.rounds == LEAST_ROUNDS
    assert own.ratio == _timing.Interval(1.0, 1.0, 1.0)


def test_order_is_random_but_the_same_for_a_seed():
    def order(seed):
        found = []
        samplers = [lambda n, i=i: found.append(i) or (1.0 + 0.1 * (len(found) % 3)) for i in range(3)]
        race(samplers[0], samplers[1:], 0.03, forever, seed=seed)
        return found

    assert order(1) == order(1)
    assert order(1) != order(2)
    rounds = [tuple(order(1)[1 + 3 * i : 4 + 3 * i]) for i in range(5)]
    assert len(set(rounds)) > 1
