"""A remembered plan that fails while it runs: the call runs as written, and the plan is demoted."""

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import AutoloopWarning, _config, _program, _stores, autoloop, settings

XS = ramp(3, 2)
FULL = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore lines")

pytestmark = pytest.mark.usefixtures("quick")


def total(xs, scale=0.5):
    return lax.scan(lambda c, x: (c * scale + x, c * scale), jnp.zeros(xs.shape[1:]), xs)


def failing(*args, **kwargs):
    raise FULL


def broken(form, monkeypatch, **options):
    """A tuned function whose plan fails from now on, as on a device that others filled."""
    fun = autoloop(total, forms=[form], **options)
    jax.block_until_ready(fun(jnp.copy(XS)))
    if form == "inline":
        real, fast = fun._fast, lambda *args: failing()
        fast._cache_size = real._cache_size
        fun._fast = fast
    else:
        monkeypatch.setattr(_program.HostProgram, "call_flat", failing)
    return fun


@pytest.mark.parametrize("form", ["inline", "python"])
def test_the_call_runs_as_written_and_the_plan_is_demoted(form, monkeypatch, tunings):
    fun = broken(form, monkeypatch)
    with pytest.warns(AutoloopWarning, match=r"0=.* failed in .*total \(RESOURCE_EXHAUSTED: out of memory\)"):
        assert_same(jax.jit(total)(XS), fun(XS))
    for _ in range(2):
        assert_same(jax.jit(total)(XS), fun(XS))
    assert len(tunings) == 1
    assert fun.plan(XS).as_written
    (record,) = (record for _, record in _stores.store_of(_config.current()).items())
    assert record.winner == "as-written"
    assert "demoted" in record.verdict


@pytest.mark.parametrize("form", ["inline", "python"])
def test_an_error_of_the_function_itself_demotes_nothing(form, monkeypatch, tunings):
    fun = broken(form, monkeypatch)
    fun._function.__dict__["plain"] = failing
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        fun(XS)
    assert not fun.plan(XS).as_written


def test_arguments_that_are_gone_leave_the_error(monkeypatch):
    fun = broken("inline", monkeypatch, donate_argnums=0)
    xs = jnp.copy(XS)
    xs.delete()
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        fun(xs)
    assert not fun.plan(XS).as_written


def test_a_function_that_runs_as_written_anyway_leaves_the_error(monkeypatch):
    fun = broken("inline", monkeypatch)
    monkeypatch.setenv("AUTOLOOP_MODE", "off")
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        fun(XS)


def test_a_forced_plan_that_fails_leaves_the_error(monkeypatch, tunings):
    monkeypatch.setenv("AUTOLOOP_PLAN", "0=inline")
    fun = autoloop(total)
    fun(XS)
    real, fun._fast = fun._fast, lambda *args: failing()
    fun._fast._cache_size = real._cache_size
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        fun(XS)
    assert tunings == []


def test_nothing_is_tuned_on_the_way_from_an_error(monkeypatch, tunings):
    fun = broken("inline", monkeypatch)
    fun._decider._known.clear()
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        fun(XS)
    assert len(tunings) == 1


@pytest.mark.parametrize("told", [{}, {"budget_s": 7.0}])
def test_a_remembered_plan_that_fails_at_its_first_call_gives_way_too(told, monkeypatch, tunings):
    broken("python", monkeypatch)
    again = autoloop(total, forms=["python"])
    with settings(**told), pytest.warns(AutoloopWarning, match=r"0=python\(1\) failed in .*total"):
        assert_same(jax.jit(total)(XS), again(XS))
    assert_same(jax.jit(total)(XS), again(XS))
    assert again.plan(XS).as_written
    assert len(tunings) == 1
