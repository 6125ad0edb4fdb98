"""Eight threads: one tunes, the others wait; afterwards no call takes a lock."""

import threading

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import _tuner, autoloop

XS = ramp(3, 2)
COUNT = 8

pytestmark = pytest.mark.usefixtures("quick")


def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(2), xs)


def in_threads(*works, seconds=60):
    """What each of the works returns, all begun at once; an error in one is raised here."""
    start, found, errors = threading.Barrier(len(works)), [None] * len(works), []

    def run(number):
        start.wait()
        try:
            found[number] = works[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    if errors:
        raise errors[0]
    return found


@pytest.mark.parametrize("form", ["inline", "python"])
def test_one_of_eight_tunes(form, tunings):
    fun = autoloop(total, forms=[form])
    wanted = jax.jit(total)(XS)
    for one in in_threads(*[lambda: fun(XS)] * COUNT):
        assert_same(wanted, one)
    assert len(tunings) == 1
    assert str(fun.plan(XS)).startswith(f"0={form}")


def test_eight_signatures_at_once_are_tuned_each_once(tunings):
    fun, shapes = autoloop(total, forms=["inline"]), [ramp(length, 2) for length in (2, 3, 4, 5)] * 2
    for xs, one in zip(shapes, in_threads(*[lambda xs=xs: fun(xs) for xs in shapes]), strict=True):
        assert_same(jax.jit(total)(xs), one)
    assert len(tunings) == 4


def test_wrappers_of_one_function_share_the_store_and_the_device(tunings):
    funs = [autoloop(total, forms=["inline"]) for _ in range(COUNT)]
    wanted = jax.jit(total)(XS)
    for one in in_threads(*[lambda fun=fun: fun(XS) for fun in funs]):
        assert_same(wanted, one)
    assert {str(fun.plan(XS)) for fun in funs} == {"0=inline"}


def test_calls_in_a_trace_and_calls_with_values_at_once(tunings):
    fun = autoloop(total, forms=["inline"])
    wanted = jax.jit(total)(XS)
    found = in_threads(*[lambda: fun(XS), lambda: jax.jit(lambda xs: fun(xs))(XS)] * (COUNT // 2))
    for one in found:
        assert_same(wanted, one)
    assert len(tunings) == 1


def test_a_tuning_that_fails_frees_the_others(monkeypatch):
    monkeypatch.setattr(_tuner._trial, "guarded", lambda work, what, failed: failed("no"))
    fun = autoloop(total, forms=["inline"])
    wanted = jax.jit(total)(XS)
    for one in in_threads(*[lambda: fun(XS)] * COUNT):
        assert_same(wanted, one)
    assert str(fun.plan(XS)) == "as-written"


@pytest.mark.parametrize("form", ["inline", "python"])
def test_after_tuning_no_call_takes_a_lock(form):
    fun = autoloop(total, forms=[form])
    wanted = fun(XS)
    with fun._lock, fun._decider._lock:
        for one in in_threads(*[lambda: fun(XS)] * COUNT):
            assert_same(wanted, one)
