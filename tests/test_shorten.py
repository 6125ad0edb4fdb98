import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoloop import _decide, _estimate, _loops, _shorten
from autoloop._function import Function
from autoloop._program import Program


def nest(h, xs):
    def outer(h, x):
        h, ys = lax.scan(lambda h, y: (h * 0.5 + y, h), h, x)
        return h, ys.sum()

    h, sums = lax.scan(outer, h, xs)
    back = lax.scan(lambda c, s: (c + s, c), 0.0, sums, reverse=True)
    return h, sums, back


ARGS = (jnp.float32(1.0), jnp.arange(200.0).reshape(40, 5))


def program(fun=nest, args=ARGS, **jit_options):
    function = Function(fun, jit_options)
    return Program.trace(function, _decide.Call.of(function, args, {}).key, args, {})


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.5, {(0,): 20, (1,): 20}),
        (0.1, {(0,): 4, (1,): 4}),
        (0.01, {(0,): 4, (1,): 4, (0, 0): 4}),
        (1.0, {}),
    ],
)
def test_lengths_leave_about_the_share(share, expected):
    assert _shorten.lengths(program().loops, share) == expected


def test_a_shortened_program_computes_the_first_rows_and_repeats_the_last():
    whole = program()
    short = _shorten.shortened(whole, {(0,): 10, (1,): 10})
    h, sums, last, back = jax.jit(short.function.fun)(*ARGS)
    expected, (full, _) = nest(ARGS[0], ARGS[1][:10]), (nest(*ARGS)[1], None)
    np.testing.assert_allclose(h, expected[0])
    np.testing.assert_allclose(sums[:10], full[:10])
    np.testing.assert_allclose(sums[10:], np.full(30, full[9]))
    # The reverse loop starts from the end, so the rows it did not reach are the first ones.
    np.testing.assert_allclose(last, 10 * full[9], rtol=1e-6)
    np.testing.assert_allclose(back[30:], np.arange(9, -1, -1) * full[9], rtol=1e-6)
    np.testing.assert_allclose(back[:30], np.full(30, 9 * full[9]), rtol=1e-6)


def test_a_shortened_program_has_the_same_loops_and_outputs():
    whole = program()
    short = _shorten.shortened(whole, {(0,): 8})
    assert [loop.path for loop in short.loops] == [loop.path for loop in whole.loops]
    assert [loop.length for loop in short.loops] == [8, 5, 40]
    assert [a.str_short() for a in short.traced.jaxpr.out_avals] == [
        a.str_short() for a in whole.traced.jaxpr.out_avals
    ]
    assert 0.15 < _shorten.work_share(short, whole) < 0.4


def test_donation_stays_with_the_leaves():
    args = ((jnp.ones(2), jnp.ones(3)), jnp.ones((40, 2)))
    whole = program(lambda c, xs: lax.scan(lambda c, x: ((c[0] + x, c[1]), None), c, xs)[0], args, donate_argnums=0)
    short = _shorten.shortened(whole, {(0,): 4})
    assert short.traced.donated == (True, True, False)


class Clock:
    """Times a program by its work: `fixed + rate * work`."""

    def __init__(self, fixed, rate):
        self.fixed, self.rate, self.asked = fixed, rate, []

    def __call__(self, short, share):
        work = sum(loop.work for loop in short.loops if len(loop.path) == 1)
        self.asked.append(work)
        return self.fixed + self.rate * work


def long_program(length=200_000):
    return program(lambda x: lax.scan(lambda c, _: (c * 0.5 + 1, None), x, None, length=length)[0], (1.0,))


def test_a_short_program_is_run_whole_without_a_probe():
    clock = Clock(0.0, 1.0)
    assert _shorten.fit(program(), 30.0, clock) is None
    assert clock.asked == []


def test_a_long_program_is_fitted_from_two_shares():
    whole = long_program(2_000_000)
    work = sum(loop.work for loop in whole.loops)
    found = _shorten.fit(whole, 30.0, Clock(0.01, 100.0 / work))
    assert found.whole_s == pytest.approx(100.01, rel=1e-3)
    assert found.fixed_s == pytest.approx(0.01, rel=0.05)
    seconds = 0.01 + 100.0 * found.share
    assert 0.02 <= seconds <= 3.0
    assert found.scale(seconds) == pytest.approx(100.01, rel=1e-3)
    assert found.scale(0.01 + 50.0 * found.share) == pytest.approx(50.01, rel=1e-3)
    assert "extrapolated" in found.note


@pytest.mark.parametrize(("whole_s", "budget_s"), [(20.0, 30.0), (100.0, 12.0), (10_000.0, 30.0)])
def test_a_call_longer_than_the_budget_is_tuned_for_a_part_of_its_time(whole_s, budget_s):
    whole = long_program(2_000_000)
    work = sum(loop.work for loop in whole.loops)
    found = _shorten.fit(whole, 30.0, Clock(0.0, whole_s / work))
    assert found.budget_s == pytest.approx(budget_s, rel=1e-3)
    said = f"tuning had 12% of its time, {found.budget_s:.3g} s: a budget over {found.whole_s:.3g} s is used in full"
    assert (said in found.note) == (budget_s < 30.0)


def test_a_program_that_only_looked_long_is_run_whole():
    whole = long_program(2_000_000)
    work = sum(loop.work for loop in whole.loops)
    assert _shorten.fit(whole, 30.0, Clock(0.0, 0.2 / work)) is None


@pytest.mark.parametrize(("guess_s", "probed"), [(1.1, False), (1.3, True)])
def test_what_is_estimated_short_is_not_probed(guess_s, probed, monkeypatch):
    monkeypatch.setattr(_estimate, "seconds", lambda jaxpr: guess_s)
    clock = Clock(0.0, 1e-9)
    assert _shorten.fit(long_program(), 30.0, clock) is None
    assert bool(clock.asked) == probed


def test_one_probe_suffices_where_even_its_overhead_times_the_shares_is_short():
    whole = long_program(2_000_000)
    work = sum(loop.work for loop in whole.loops)
    clock = Clock(1e-6, 0.3 / work)
    assert _shorten.fit(whole, 30.0, clock) is None
    assert len(clock.asked) == 1


@pytest.mark.parametrize(("probe_s", "most"), [(0.0, 6), (10.0, 2)])
def test_probes_that_compile_for_long_are_no_more_than_two(probe_s, most):
    whole = long_program(500_000_000)
    work = sum(loop.work for loop in whole.loops)
    clock = Clock(0.0, 1.0 / work)  # far faster than estimated, so that the target is reached in steps
    found = _shorten.fit(whole, 30.0, clock, lambda: probe_s * len(clock.asked))
    assert found.whole_s == pytest.approx(1.0, rel=1e-3)
    assert 2 <= len(clock.asked) <= most
    assert (len(clock.asked) > 2) == (probe_s == 0.0)


def test_timer_copies_what_is_donated():
    args = (jnp.ones(4), jnp.ones((40, 4)))
    whole = program(lambda c, xs: lax.scan(lambda c, x: (c + x, None), c, xs)[0], args, donate_argnums=0)
    time_call = _shorten.timer(args, whole.traced.donated)
    assert time_call(_shorten.shortened(whole, {(0,): 4})) > 0
    assert not args[0].is_deleted()


# ---------------------------------------------------------------- the estimate


def test_estimate_counts_trips_bytes_and_products():
    def seconds(fun, *args):
        return _estimate.seconds(jax.jit(fun).trace(*args).jaxpr)

    loop = lambda n: lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=n)[0]
    assert seconds(loop(1000), 1.0) == pytest.approx(100 * seconds(loop(10), 1.0))
    assert seconds(loop(10), jnp.ones(10**6)) > 100 * seconds(loop(10), 1.0)
    product = seconds(lambda a: a @ a, jnp.ones((512, 512)))
    assert product > 2 * 512**3 / _estimate._FLOPS_PER_S
    assert seconds(loop(10), 1.0) == pytest.approx(seconds(jax.jit(loop(10)), 1.0), rel=0.3)


def test_work_of_loops_is_what_shares_are_made_of():
    loops = program().loops
    assert isinstance(loops[0], _loops.Loop)
    assert loops[0].work > loops[1].work > 0
