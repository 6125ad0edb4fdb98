"""JAX's own settings, global and as contexts: what changes a program or its speed separates records; none breaks."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import _config, _stores, autoloop

XS = ramp(3, 2)
FORMS = ("inline", "python", "eager")

pytestmark = pytest.mark.usefixtures("quick")


def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(2), xs)


@contextlib.contextmanager
def updated(name, value):
    """A setting that has no context of its own."""
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


SEPARATING = {
    "x64": lambda: jax.enable_x64(True),
    "x64 for all threads": lambda: updated("jax_enable_x64", True),
    "matmul precision": lambda: jax.default_matmul_precision("float32"),
    "matmul precision for all threads": lambda: updated("jax_default_matmul_precision", "tensorfloat32"),
    "rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "dtype promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "default device": lambda: jax.default_device(jax.devices()[0]),
    "default device for all threads": lambda: updated("jax_default_device", jax.devices()[0]),
    "default platform": lambda: updated("jax_default_device", "cpu"),
}
#: jit does not trace anew for these, so a call of a one-program plan goes on as it is.
LATER = {
    "debug nans": lambda: jax.debug_nans(True),
    "debug infs": lambda: jax.debug_infs(True),
    "leaks": jax.checking_leaks,
    "checks": lambda: updated("jax_enable_checks", True),
    "log of compiles": lambda: jax.log_compiles(False),
    "transfers": lambda: jax.transfer_guard("disallow"),
}


HOST = ("x64", "default device for all threads", "debug nans", "transfers")


def cases(contexts):
    """Each context with a one-program form, some with Python loops too."""
    pairs = [(name, form) for name in contexts for form in FORMS if form == "inline" or name in HOST]
    return pytest.mark.parametrize(
        ("context", "form"), [pytest.param(contexts[name], form, id=f"{name}-{form}") for name, form in pairs]
    )


@cases(SEPARATING)
def test_a_setting_that_changes_the_program_has_records_of_its_own(context, form, tunings):
    fun, plain = autoloop(total, forms=[form]), jax.jit(total)
    assert_same(plain(XS), fun(XS))
    for _ in range(2):
        with context():
            assert_same(plain(XS), fun(XS))
        assert len(tunings) == 2
        assert_same(plain(XS), fun(XS))
        assert len(tunings) == 2
    assert len(list(_stores.store_of(_config.current()).items())) == 2


@cases(LATER)
def test_a_first_call_and_a_later_one_work_with_any_setting(context, form, tunings):
    first, later, plain = autoloop(total, forms=[form]), autoloop(total, forms=[form]), jax.jit(total)
    wanted = plain(XS)
    later(XS)
    with context():
        found = [first(XS), first(XS), later(XS)]
    for one in [*found, first(XS)]:
        assert_same(wanted, one)


@pytest.mark.parametrize("name", ["jax_enable_checks", "jax_debug_nans", "jax_debug_infs"])
def test_settings_for_debugging_have_records_of_their_own(name, tunings):
    for value in (False, True, False, True):
        with updated(name, value):
            autoloop(total, forms=["inline"])(XS)
    flags = [record.key["flags"] for _, record in _stores.store_of(_config.current()).items()]
    assert [f"{name}=True" in text for text in flags] == [False, True]
    assert len(tunings) == 2


def test_two_settings_have_plans_of_their_own():
    fun = autoloop(total, forms=["inline"])
    fun(XS)
    with jax.default_matmul_precision("float32"):
        fun(XS)
        ((key, record),) = [i for i in _stores.store_of(_config.current()).items() if "float32" in i[1].key["flags"]]
        _stores.store_of(_config.current()).put(key, record.replace(winner="as-written"))
    again = autoloop(total, forms=["inline"])
    assert str(again.plan(XS)) == "0=inline"
    with jax.default_matmul_precision("float32"):
        assert str(again.plan(XS)) == "as-written"
        assert "scan[" in str(jax.make_jaxpr(lambda xs: again(xs))(XS))
    assert "scan[" not in str(jax.make_jaxpr(lambda xs: again(xs))(XS))


# ------------------------------------------------ NaN where NaN is an error


def root(xs):
    return lax.scan(lambda c, x: (c + jnp.sqrt(x), c), jnp.float32(0), xs)


@pytest.mark.parametrize("form", FORMS[:2])
def test_a_nan_is_the_error_that_jit_raises(form, tunings):
    fun, bad = autoloop(root, forms=[form]), np.float32([1, -1, 4])
    good = np.float32([1, 1, 4])
    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError) as wanted:
            jax.jit(root)(bad)
        assert_same(jax.jit(root)(good), fun(good))
        with pytest.raises(FloatingPointError) as got:
            fun(bad)
        assert_same(jax.jit(root)(good), fun(good))
    assert type(got.value) is type(wanted.value)
    assert np.isnan(fun(bad)[0])


def test_a_form_that_makes_nans_of_its_own_loses(tunings):
    # As written the division is never run; a batch runs it and throws the result away.
    def masked(xs):
        return lax.map(lambda x: lax.cond(x > 0, lambda: jnp.log(x), lambda: 0.0 * x), xs)

    fun, xs = autoloop(masked, forms=["vmap"]), np.float32([1, -1, 2, 0.5])
    with jax.debug_nans(True):
        wanted = jax.jit(masked)(xs)
        for _ in range(2):
            assert_same(wanted, fun(xs))
