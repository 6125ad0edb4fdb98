import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoloop import Plan, _recheck, _timing, autoloop
from autoloop._call import Call
from autoloop._function import Function
from autoloop._program import Program
from autoloop._records import Record, Status, Trial

VALUE = jnp.float32(9.0)
SPEC = jax.ShapeDtypeStruct((), jnp.float32)


def root(x):
    """A masked scan: Newton's method until it stands still."""

    def step(state):
        z, _ = state
        new = 0.5 * (z + x / z)
        return new, jnp.abs(new - z) <= 1e-6

    def body(state, _):
        return lax.cond(state[1], lambda s: s, step, state), None

    return lax.scan(body, (x, jnp.bool_(False)), None, length=20)[0][0]


def plain(x):
    return lax.scan(lambda c, _: (c * 0.5 + x, None), x, None, length=4)[0]


@pytest.fixture
def ratio(quick, monkeypatch):
    """A list whose last element is what every race says of every plan."""
    found = [0.5]

    def race(baseline, candidates, *args, **kwargs):
        _, base = fakes.race(baseline, candidates)
        interval = _timing.Interval(found[-1], found[-1], found[-1])
        return [_timing.Timing(interval, interval, 6) for _ in candidates], base

    monkeypatch.setattr(_timing, "race", race)
    return found


@pytest.mark.parametrize("at_first", [0.5, 2.0])
def test_the_first_call_with_values_checks_a_choice_made_on_made_up_ones(ratio, tunings, at_first):
    fun = autoloop(root, forms=["until"])
    ratio.append(at_first)
    made_up = fun.warmup(SPEC)
    assert _recheck.DUE in made_up.notes
    assert made_up.winner == ("0=until" if at_first < 1 else "as-written")
    ratio.append(1 / at_first)
    np.testing.assert_allclose(fun(VALUE), 3.0)
    record = fun.report(VALUE)
    assert record.winner == ("as-written" if at_first < 1 else "0=until")
    assert _recheck.DONE in record.notes
    assert _recheck.DUE not in record.notes
    np.testing.assert_allclose([fun(VALUE), fun(VALUE)], 3.0)
    assert len(tunings) == 2


def test_a_new_process_checks_too_but_only_once(ratio, tunings):
    autoloop(root, forms=["until"]).warmup(SPEC)
    for _ in range(2):
        np.testing.assert_allclose(autoloop(root, forms=["until"])(VALUE), 3.0)
    assert len(tunings) == 2


@pytest.mark.parametrize("mode", ["cached", "strict"])
def test_where_tuning_is_forbidden_the_choice_stands(ratio, tunings, mode, monkeypatch):
    fun = autoloop(root, forms=["until"])
    fun.warmup(SPEC)
    monkeypatch.setenv("AUTOLOOP_MODE", mode)
    np.testing.assert_allclose(fun(VALUE), 3.0)
    assert str(fun.plan(VALUE)) == "0=until"
    assert len(tunings) == 1


def test_neither_specs_nor_tracers_check(ratio, tunings):
    fun = autoloop(root, forms=["until"])
    record = fun.warmup(SPEC)
    assert fun.warmup(SPEC) == record
    np.testing.assert_allclose(jax.jit(lambda x: fun(x))(VALUE), 3.0)
    assert len(tunings) == 1


def test_real_values_need_no_check(ratio, tunings):
    fun = autoloop(root, forms=["until"])
    assert not {_recheck.DUE, _recheck.MADE_UP} & set(fun.warmup(VALUE).notes)
    fun(VALUE)
    assert len(tunings) == 1


def test_a_time_that_does_not_depend_on_values_is_not_checked(ratio, tunings):
    fun = autoloop(plain, forms=["inline"])
    assert _recheck.MADE_UP in fun.warmup(SPEC).notes
    fun(VALUE)
    assert len(tunings) == 1


def program_of(fun):
    function = Function(fun, {})
    return Program.trace(function, Call.of(function, (VALUE,), {}).key, (VALUE,), {})


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (root, _recheck.DUE),
        (plain, _recheck.MADE_UP),
        (lambda x: lax.cond(x > 0, plain, lambda x: x, x), _recheck.DUE),
        (lambda x: plain(lax.while_loop(lambda z: z > 1, lambda z: z / 2, x)), _recheck.DUE),
    ],
)
def test_the_note_says_whether_values_matter(fun, expected):
    assert _recheck.note(program_of(fun)) == expected


def ran(plan, ratio):
    return Trial(plan, run_s=ratio, ratio=ratio, rounds=6, compile_s=0.1)


def test_what_is_tried_again_are_the_winner_what_stops_early_and_the_best():
    trials = [ran("as-written", 1.0), ran("0=unroll(2)", 0.9), ran("0=unroll(4)", 0.5), ran("0=until", 3.0)]
    record = Record("f", {}, "0=unroll(2)", (*trials, Trial("0=inline", Status.FAILED, "boom")))
    found = list(dict.fromkeys(_recheck._worth_trying(record, program_of(root))))
    assert list(map(str, found)) == ["0=unroll(2)", "0=until", "0=unroll(4)"]


def test_what_stops_early_is_tried_although_its_trial_was_not_reached():
    found = _recheck._worth_trying(Record("f", {}, "as-written", (ran("as-written", 1.0),)), program_of(root))
    assert Plan.parse("0=until") in list(found)


def test_times_on_made_up_arguments_stay_as_words():
    earlier = Record("f", {}, "b", (ran("as-written", 1.0), ran("a", 1.31), ran("b", 0.5)), spent_s=2.0)
    record = Record("f", {}, "as-written", (ran("as-written", 1.0), ran("b", 1.5)), spent_s=1.0)
    found = _recheck.merged(record, earlier)
    assert [t.plan for t in found.trials] == ["as-written", "b", "a"]
    assert found.trials[2].status is Status.SKIPPED
    assert found.trials[2].reason == "took 1.31x the time as written on made-up arguments"
    assert found.trials[2].ratio is None
    assert found.spent_s == 3.0
