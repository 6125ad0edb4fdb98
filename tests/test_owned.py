"""Python loops keep to what `jax.jit` fixes at the trace, and look again where it does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same
from jax import lax

from autoloop import _owned, autoloop
from autoloop.testing import fake_timings

XS = jnp.arange(1.0, 5.0)
PLANS = ["0=python(1)", "0=python(3)", "0=eager"]
every_plan = pytest.mark.parametrize("plan", PLANS)


@pytest.fixture(params=["using", "tuned"])
def run(request):
    """A function in a plan: pinned, or decorated with the plan in force."""

    def find(fun, plan):
        if request.param == "using":
            return autoloop(fun, mode="cached").using(plan)
        with fake_timings({"as-written": 2e-3, plan: 1e-3}):
            tuned = autoloop(fun, mode="tune", forms=[plan[2:].split("(")[0]])
            assert tuned.warmup(XS).winner == plan
        return tuned

    return find


def summed(const):
    return lambda xs: (
        lax.scan(lambda c, x: (c + (x * jnp.asarray(const)).sum(), None), 0.0, xs)[0],
        jnp.asarray(const),
    )


def nested(const):
    inner = jax.jit(lambda xs: lax.scan(lambda c, x: (c + (x * jnp.asarray(const)).sum(), None), 0.0, xs)[0])
    return lambda xs: (inner(xs), xs)


@every_plan
@pytest.mark.parametrize("make", [summed, nested])
def test_a_numpy_array_that_is_changed_later_changes_no_result(run, plan, make):
    const = np.ones(4, np.float32)
    fun = run(make(const), plan)
    before = jax.tree.map(np.array, fun(XS))
    const[:] = 5
    assert_same(before, fun(XS))
    assert_same(before, fun(XS))


@every_plan
@pytest.mark.parametrize("make", [summed, nested])
def test_an_array_that_is_deleted_later_is_not_missed(run, plan, make):
    const = jnp.ones(4) * 2
    fun = run(make(const), plan)
    before = jax.tree.map(np.array, fun(XS))
    const.delete()
    got = fun(XS)
    assert_same(before, got)
    got[1].delete()  # an output is the caller's own
    assert_same(before, fun(XS))


@every_plan
def test_clearing_the_caches_takes_in_what_the_function_reads(run, plan):
    scale = [1.0]
    fun = run(lambda xs: lax.scan(lambda c, x: (c + scale[0] * x, None), 0.0, xs)[0], plan)
    assert fun(XS) == 10
    scale[0] = 2.0
    assert fun(XS) == 10
    jax.clear_caches()
    assert fun(XS) == 20


@every_plan
def test_clearing_the_caches_where_nothing_has_changed_builds_nothing_anew(plan):
    fun = autoloop(summed(np.ones(4, np.float32)), mode="cached").using(plan)
    fun(XS)
    (before,) = fun._hosts.hosts.values()
    jax.clear_caches()
    fun(XS)
    assert list(fun._hosts.hosts.values()) == [before]


@every_plan
def test_a_plan_that_no_longer_fits_gives_way_to_as_written(plan):
    loops = [True]

    def body(xs):
        return lax.scan(lambda c, x: (c + x, None), 0.0, xs)[0] if loops else 2 * xs.sum()

    fun = autoloop(body, mode="cached").using(plan)
    assert fun(XS) == 10
    loops.clear()
    jax.clear_caches()
    assert fun(XS) == 20


@every_plan
def test_a_mesh_in_force_is_seen(run, plan):
    def names(xs):
        mesh = jax.sharding.get_abstract_mesh()
        return lax.scan(lambda c, x: (c + len(mesh.axis_names) * x, None), 0.0, xs)[0]

    fun = run(names, plan)
    assert fun(XS) == 0
    with jax.set_mesh(jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))):
        assert fun(XS) == 10
    assert fun(XS) == 0


@every_plan
@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_literals_and_constants_that_are_outputs_are_no_transfers(run, plan, guard):
    const = np.ones(4, np.float32)

    def fun(xs):
        inner = jax.jit(lambda xs, w: (lax.scan(lambda c, x: (c + x, c * w), 0.0, xs), w))
        return inner(xs, 0.5), const

    tuned = run(fun, plan)
    expected = tuned(XS)
    with jax.transfer_guard_host_to_device(guard):
        assert_same(expected, tuned(XS))


@every_plan
@pytest.mark.parametrize("setting", [jax.debug_nans, jax.debug_infs])
def test_only_outputs_are_looked_at_for_nans(plan, setting):
    def hidden(xs):
        return jnp.where(jnp.isfinite(lax.scan(lambda c, x: (c + jnp.log(x), None), 0.0, xs)[0]), 1.0, 0.0)

    def shown(xs):
        return lax.scan(lambda c, x: (c + jnp.log(x), None), 0.0, xs)[0]

    bad = -XS if setting is jax.debug_nans else 0 * XS
    quiet, loud = (autoloop(fun, mode="cached").using(plan) for fun in (hidden, shown))
    quiet(XS)
    loud(XS)
    with setting(True):
        assert quiet(bad) == 0
        with pytest.raises(FloatingPointError):
            loud(bad)


def test_copies_are_of_the_same_types():
    consts = (np.ones(2), jnp.ones(2, jnp.bfloat16), jax.random.key(3), np.int8([1, 2]), jnp.float32(2) * jnp.ones(()))
    jaxpr = jax.make_jaxpr(lambda: [jnp.sin(c) if jnp.issubdtype(c.dtype, jnp.floating) else c for c in consts])()
    copied, copies = _owned.owned(jaxpr)
    assert [jax.typeof(c) for c in copied.consts] == [v.aval for v in copied.jaxpr.constvars]
    assert _owned.same(copies, _owned.owned(jaxpr)[1])
    assert not any(a is b for a in copies for b in consts)
