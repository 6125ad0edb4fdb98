"""Callbacks in loops: as often and in the order that jit gives; trials repeat none; pure ones are no obstacle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, ramp
from jax import lax
from jax.experimental import io_callback

from autoloop import autoloop

XS = ramp(3, 2)

pytestmark = pytest.mark.usefixtures("quick")


class Heard:
    """What callbacks said, in order."""

    def __init__(self):
        self.values = []

    def __call__(self, value):
        self.values.append(float(np.ravel(value)[0]))

    def take(self):
        jax.effects_barrier()
        found, self.values = self.values, []
        return found


TELL = {
    "debug": lambda heard, x: jax.debug.callback(heard, x),
    "debug ordered": lambda heard, x: jax.debug.callback(heard, x, ordered=True),
    "io": lambda heard, x: io_callback(heard, None, x),
    "io ordered": lambda heard, x: io_callback(heard, None, x, ordered=True),
}


def telling(heard, how):
    def told(xs):
        def inner(c, x):
            TELL[how](heard, x)
            return c * 0.5 + x, c

        return lax.scan(lambda c, x: (lax.scan(inner, c, jnp.stack([x, x + 1]))[0], c.sum()), jnp.zeros(2), xs)

    return told


@pytest.mark.parametrize("how", TELL)
def test_each_call_is_heard_as_from_jit(how, tunings):
    heard = Heard()
    fun = autoloop(telling(heard, how))
    wanted = jax.jit(telling(heard, how))(XS)
    said = heard.take()
    assert len(said) == 6
    calls = [fun, fun, jax.jit(lambda xs: fun(xs)), lambda xs: lax.map(fun, xs[None])]
    for call in calls:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(np.ravel(a), np.ravel(b)), wanted, call(XS))
        now = heard.take()
        assert now == said if "ordered" in how else sorted(now) == sorted(said)
    record = fun.warmup(XS)
    assert heard.take() == []
    silent = how.startswith("debug")  # trials leave these out; other callbacks they can't
    assert ("side effects" in record.verdict) != silent
    assert bool(tunings) == silent


@pytest.mark.parametrize("how", TELL)
@pytest.mark.parametrize("plan", ["0=unroll(2)", "0/0=unroll(2)", "0=inline"])
def test_a_form_that_keeps_effects_has_them_in_order(how, plan):
    heard = Heard()
    wanted = jax.jit(telling(heard, how))(XS)
    said = heard.take()
    assert_same(wanted, autoloop(telling(heard, how)).using(plan)(XS))
    now = heard.take()
    assert now == said if "ordered" in how else sorted(now) == sorted(said)


@pytest.mark.parametrize("plan", ["0=python(1)", "0=eager"])
def test_a_form_that_does_not_keep_effects_says_so(plan):
    heard = Heard()
    fun = autoloop(telling(heard, "io ordered"))
    with pytest.raises(ValueError, match="the body has side effects"):
        fun.using(plan)(XS)
    assert heard.take() == []


def test_prints_are_shown_once_and_in_order(capfd):
    def printing(xs):
        def step(c, x):
            jax.debug.print("x is {}", x[0], ordered=True)
            return c + x.sum(), c

        return lax.scan(step, jnp.float32(0), xs)

    fun = autoloop(printing)
    shown = []
    for call in (jax.jit(printing), fun, fun, fun.using("0=unroll(3)")):
        call(XS)
        jax.effects_barrier()
        shown.append(capfd.readouterr().out)
    assert shown[0].count("x is") == 3
    assert shown == [shown[0]] * 4


@pytest.mark.parametrize("form", ["inline", "python", "eager", "unroll"])
@pytest.mark.parametrize("method", [None, "sequential", "expand_dims"])
def test_a_pure_callback_does_not_stand_in_the_way(form, method, tunings):
    def host(xs):
        def step(c, x):
            sine = jax.pure_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct((2,), "float32"), x, vmap_method=method)
            return c + sine, c.sum()

        return lax.scan(step, jnp.zeros(2), xs)

    fun = autoloop(host, forms=[form])
    for _ in range(2):
        assert_same(jax.jit(host)(XS), fun(XS))
    assert str(fun.plan(XS)).startswith(f"0={form}")
    assert len(tunings) == 1


@pytest.mark.parametrize("method", [None, "sequential", "expand_dims"])
def test_batching_a_pure_callback_gives_the_same_or_is_no_candidate(method):
    def host(xs):
        return lax.map(
            lambda x: jax.pure_callback(
                lambda v: np.asarray(np.sum(v, -1)), jax.ShapeDtypeStruct((), "float32"), x, vmap_method=method
            ),
            xs,
        )

    fun = autoloop(host, forms=["vmap"])
    for _ in range(2):
        assert_same(jax.jit(host)(XS), fun(XS))
    trials = fun.report(XS).trials
    assert all(trial.ok or trial.reason for trial in trials)
