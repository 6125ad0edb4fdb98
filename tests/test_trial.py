import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoloop import _machine, _runner, _trial
from autoloop._agree import Tolerance
from autoloop._choose import LEAST_ROUNDS, Rules, choose
from autoloop._inputs import Inputs
from autoloop._plan import Plan
from autoloop._records import AutoloopWarning, Budget, Status, Trial

WRITTEN, OTHER, THIRD = Plan(), Plan.parse("0=inline"), Plan.parse("0=unroll(2)")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Fake:
    """A candidate on a fake clock: what its stages take, cost, return and raise."""

    def __init__(self, clock, run_s=1.0, build_s=0.5, out=1.0, digest=None, peak=100, fails=None, lazy=False):
        self.clock, self.run_s, self.build_s, self.out = clock, run_s, build_s, out
        self.digest, self.peak, self.fails, self.lazy = digest, peak, fails, lazy
        self.calls, self.compiled, self.donated = 0, 0, []

    def lower(self, args, kwargs, cost):
        self.raise_in("lower")
        cost.lazy = self.lazy
        return self.digest

    def compile(self, args, kwargs, cost):
        self.raise_in("compile")
        self.clock.now += self.build_s
        self.compiled += 1
        cost.compile_s, cost.peak_bytes = self.build_s, self.peak

    def __call__(self, *args, **kwargs):
        self.raise_in("run")
        self.calls += 1
        self.donated += [a for a in args if isinstance(a, jax.Array)]
        self.clock.now += self.run_s + (self.build_s if self.lazy and self.calls == 1 else 0.0)
        return jnp.asarray(self.out)

    def raise_in(self, stage):
        if self.fails and self.fails[0] == stage:
            raise self.fails[1]


@pytest.fixture
def clock():
    return Clock()


def bench(clock, candidates, budget=Budget(1000.0), leaves=(), donated=(), free=10**9, rules=Rules(), **given):
    inputs = Inputs(leaves, donated, lambda values: (tuple(values), {}))
    stats = {"bytes_limit": free, "bytes_in_use": 0}
    device = SimpleNamespace(memory_stats=lambda: stats, platform="gpu")
    made = candidates.__getitem__
    return _trial.Bench(made, inputs, Tolerance(), budget, rules, device, clock=clock, **given)


def measured(clock, other, **given):
    found = bench(clock, {WRITTEN: Fake(clock), OTHER: other}, **given)
    return found.measure([OTHER])[0]


def test_a_good_candidate_is_timed_against_as_written(clock):
    trial = measured(clock, Fake(clock, run_s=0.5, build_s=2.0))
    assert trial.ok
    assert trial.ratio == pytest.approx(0.5)
    assert trial.run_s == pytest.approx(0.5)
    assert trial.compile_s == 2.0
    assert trial.rounds >= 6
    assert trial.max_error == 0.0
    assert trial.spent_s > 2.0


FAULTS = [
    ("wrong numbers", {"out": 2.0}, Status.WRONG, "off by"),
    ("NaN", {"out": np.nan}, Status.WRONG, "NaN"),
    ("another shape", {"out": [1.0, 1.0]}, Status.WRONG, "is float32[2]"),
    ("another dtype", {"out": 1}, Status.WRONG, "int32"),
    ("does not lower", {"fails": ("lower", TypeError("no rule"))}, Status.FAILED, "TypeError: no rule"),
    ("does not compile", {"fails": ("compile", RuntimeError("INTERNAL: x\ny"))}, Status.FAILED, "INTERNAL: x"),
    (
        "runs out of memory",
        {"fails": ("run", RuntimeError("RESOURCE_EXHAUSTED: oom"))},
        Status.FAILED,
        "RESOURCE_EXHAUSTED",
    ),
    ("an error without words", {"fails": ("run", ValueError())}, Status.FAILED, "ValueError"),
    ("needs too much memory", {"peak": 2 * 10**9}, Status.SKIPPED, "needs 2,000,000,000 bytes"),
]


@pytest.mark.parametrize(("fault", "how", "status", "words"), FAULTS, ids=[f[0] for f in FAULTS])
def test_faults_become_trials_with_their_reason(clock, fault, how, status, words):
    trial = measured(clock, Fake(clock, **how))
    assert trial.status is status
    assert words in trial.reason
    assert trial.ratio is None


def test_memory_is_checked_before_the_candidate_runs(clock):
    big = Fake(clock, peak=600)
    trial = measured(clock, big, budget=Budget(1000.0, max_memory_bytes=500))
    assert trial.status is Status.SKIPPED
    assert "500 are allowed or free" in trial.reason
    assert big.calls == 0


@pytest.mark.parametrize("stage", ["lower", "compile", "run"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_what_is_no_exception_passes_through(clock, stage, error):
    with pytest.raises(type(error)):
        measured(clock, Fake(clock, fails=(stage, error)))


def test_errors_of_the_function_as_written_pass_through(clock):
    found = bench(clock, {WRITTEN: Fake(clock, fails=("run", ZeroDivisionError()))})
    with pytest.raises(ZeroDivisionError):
        found.measure([WRITTEN])


def test_identical_programs_are_compiled_and_timed_once(clock):
    first, twin = Fake(clock, digest=b"x", run_s=0.5), Fake(clock, digest=b"x")
    found = bench(clock, {WRITTEN: Fake(clock), OTHER: first, THIRD: twin})
    one, two = found.measure([OTHER])[0], found.measure([THIRD])[0]
    assert (twin.compiled, twin.calls) == (0, 0)
    assert two.status is Status.SKIPPED
    assert two.reason == "same program as 0=inline"
    assert two.ratio == one.ratio


def test_a_plan_is_compiled_once_however_often_it_races(clock):
    other = Fake(clock, run_s=0.5)
    found = bench(clock, {WRITTEN: Fake(clock), OTHER: other})
    first = found.measure([OTHER])[0]
    again = found.measure([OTHER])[0]
    assert other.compiled == 1
    assert again.spent_s > first.spent_s


def test_a_very_slow_first_run_is_not_repeated(clock):
    slow = Fake(clock, run_s=60.0)
    trial = measured(clock, slow)
    assert slow.calls == 1
    assert trial.ratio == pytest.approx(60.0)
    assert trial.rounds == 1


def test_compiling_while_running_is_told_apart(clock):
    trial = measured(clock, Fake(clock, run_s=1.0, build_s=3.0, lazy=True))
    assert trial.compile_s == pytest.approx(3.0 + 0.0, abs=1e-6)


def test_compiling_while_running_is_told_apart_in_a_shortened_program(clock):
    trial = measured(clock, Fake(clock, run_s=1.0, build_s=3.0, lazy=True), scale=lambda seconds: 100 * seconds)
    assert (trial.compile_s, trial.run_s) == (pytest.approx(3.0), pytest.approx(100.0))


def test_slow_plans_are_let_go(clock):
    found = bench(clock, {WRITTEN: Fake(clock), OTHER: Fake(clock, run_s=1.9), THIRD: Fake(clock, run_s=0.9)})
    found.measure([OTHER])
    found.measure([THIRD])
    assert found.candidate(OTHER) is None
    assert found.candidate(THIRD) is not None


@pytest.mark.parametrize(("calls", "winner"), [(None, WRITTEN), (1, OTHER), (1000, WRITTEN)])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_plan_that_runs_slower_but_builds_faster_can_win_a_single_call(clock, calls, winner, lazy):
    rules = Rules(expected_calls=calls)
    quick = Fake(clock, run_s=8.0, build_s=1.0, lazy=lazy)
    found = bench(clock, {WRITTEN: Fake(clock, build_s=100.0), OTHER: quick}, rules=rules)
    trials = found.measure([WRITTEN, OTHER])
    assert choose(trials, rules)[0].plan == str(winner)
    assert (trials[1].rounds >= LEAST_ROUNDS) == (winner is OTHER)  # else it is hopeless, and soon ended


def test_no_time_left_keeps_what_earlier_races_showed(clock):
    found = bench(clock, {WRITTEN: Fake(clock), OTHER: Fake(clock, run_s=0.5)}, budget=Budget(40.0))
    first = found.measure([OTHER])[0]
    clock.now += 1000.0
    assert found.measure([OTHER])[0].rounds == first.rounds


def test_times_of_a_shortened_program_are_scaled(clock):
    trial = measured(clock, Fake(clock, run_s=0.5), scale=lambda seconds: 10 * seconds)
    assert trial.run_s == pytest.approx(5.0)
    assert trial.ratio == pytest.approx(0.5)


def test_donated_arguments_are_copied_and_others_are_not(clock):
    mine, shared = jnp.ones(3), jnp.zeros(3)
    written = Fake(clock)
    found = bench(clock, {WRITTEN: written}, leaves=(mine, shared), donated=(True, False))
    found.measure([WRITTEN])
    given, others = written.donated[::2], written.donated[1::2]
    assert all(g is not mine and (g == mine).all() for g in given)
    assert len({id(g) for g in given}) == len(given)
    assert all(o is shared for o in others)


def test_warnings_of_candidates_are_not_shown_again(clock):
    class Loud(Fake):
        def __call__(self, *args, **kwargs):
            if not self.calls:
                warnings.warn("loud", stacklevel=2)
            return super().__call__(*args, **kwargs)

    assert measured(clock, Loud(clock)).ok


def test_guarded_warns_once_and_gives_what_stands_for_failure():
    def boom():
        raise OSError("disk")

    with pytest.warns(AutoloopWarning, match=r"tuning f failed \(OSError: disk\); running as written"):
        assert _trial.guarded(boom, "tuning f", str.upper) == "OSERROR: DISK"
    assert _trial.guarded(lambda: 3, "x", str) == 3


# ---------------------------------------------------------------- the machine


@pytest.mark.parametrize(
    ("calibration", "spreads", "load", "words"),
    [
        (0.02, [0.03, 0.02], 1.0, ""),
        (0.02, [0.5, 0.4, 0.6], 1.0, "calls spread by 50%, a fixed job by 2%"),
        (0.3, [0.5], 1.0, ""),  # no more than the machine's own noise
        (0.02, [], 500.0, "other processes wanted"),
    ],
)
def test_a_busy_machine_is_said(calibration, spreads, load, words):
    found = _machine.busy_note(calibration, spreads, load)
    assert (words in found) if words else found == ""


def test_calibration_is_the_spread_of_a_fixed_job():
    ticks = iter(range(1000))
    assert _machine.calibrate(lambda: next(ticks)) == 0.0


def test_free_memory_comes_from_the_device_or_the_system():
    gpu = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 10, "bytes_in_use": 4}, platform="gpu")
    assert _machine.free_bytes(gpu) == 6
    cpu = _machine.free_bytes(SimpleNamespace(memory_stats=lambda: None, platform="cpu"))
    assert cpu is None or cpu > 10**6
    assert _machine.free_bytes(SimpleNamespace(memory_stats=lambda: None, platform="tpu")) is None


@pytest.mark.parametrize(("calls", "runs"), [(1, 1), (3, 4)])
def test_of_several_calls_one_before_them_is_not_timed_and_follows_the_copies(calls, runs):
    clock, seen = Clock(), []
    inputs = Inputs([jnp.ones(2)], [True], lambda leaves: (seen.append("copied"), ((leaves[0],), {}))[1])
    run = _runner.Runner(None, inputs, None, None, None, clock)

    def candidate(xs):
        seen.append("ran")
        clock.now += 1.0 if seen.count("ran") > runs - calls else 100.0

    run.ready[Plan()] = _runner.Ready(candidate, Trial("as-written"), None)
    assert run.sample(Plan(), calls) == 1.0
    assert seen == ["copied"] * runs + ["ran"] * runs
