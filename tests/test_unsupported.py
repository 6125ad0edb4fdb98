"""A jax of the future that writes jaxprs otherwise: functions run as written, with one warning that says why."""

import contextlib
import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoloop import AutoloopWarning, _installed, _jaxpr, autoloop, settings
from autoloop._records import UnsupportedJaxError

X = jnp.arange(3.0)
NAMED = re.escape(f"jax {jax.__version__}")


def doubled(x):
    return lax.scan(lambda c, _: (c * 2, c.sum()), x, None, length=3)


def same(got):
    for a, b in zip(got, doubled(X), strict=True):
        np.testing.assert_array_equal(a, b)


class OtherScan:
    """A scan equation whose parameters have other names."""

    def __init__(self, eqn):
        self._eqn = eqn
        self.params = {"body": eqn.params["jaxpr"], "how_often": eqn.params["length"]}

    def __getattr__(self, name):
        return getattr(self._eqn, name)


@pytest.fixture
def other_scans(monkeypatch):
    """`jax.jit(...).trace` gives scan equations with unknown parameters."""
    real = _jaxpr.read_scan
    monkeypatch.setattr(_jaxpr, "read_scan", lambda eqn: real(OtherScan(eqn)))


@pytest.fixture
def lacking(monkeypatch):
    """jax lacks two names that autoloop needs; one of them by now."""
    monkeypatch.delattr("jax.extend.core.jaxpr_as_fun")
    monkeypatch.delattr("jax.extend.core.Var")
    _jaxpr.missing.cache_clear()
    yield
    _jaxpr.missing.cache_clear()


def other_equations(monkeypatch):
    monkeypatch.setattr(_jaxpr, "bodies", lambda eqn: eqn.bodies)


@contextlib.contextmanager
def one_warning(*texts):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    (only,) = [w for w in told if issubclass(w.category, AutoloopWarning)]
    assert all(text in str(only.message) for text in ("autoloop/_jaxpr.py", jax.__version__, "runs as written", *texts))


def test_scan_equations_with_unknown_parameters_run_as_written_with_one_warning(other_scans):
    looped = autoloop(doubled)
    with one_warning("parameters: body, how_often"):
        for _ in range(3):
            same(looped(X))
        same(jax.jit(looped)(X))
        np.testing.assert_array_equal(jax.vmap(looped)(X[None])[0][0], doubled(X)[0])
        jax.grad(lambda x: looped(x)[0].sum())(X)
        looped(X[:2])  # another signature: no other warning
        record = looped.warmup(X)
        assert looped.plan(X).as_written
    assert record.winner == "as-written"
    assert "autoloop/_jaxpr.py cannot read a scan equation" in str(record)


def test_a_plan_that_is_forced_runs_as_written_too(other_scans):
    with one_warning(), settings(plan="0=inline", mode="cached"):
        same(autoloop(doubled)(X))


def test_warming_up_under_grad_says_the_same(other_scans):
    with one_warning():
        record = autoloop(doubled).warmup(X, under="grad")
    assert record.winner == "as-written"


def test_nothing_is_known_of_a_program_that_can_not_be_read(other_scans):
    assert autoloop(doubled).plan(X) is None
    assert autoloop(doubled).report(X) is None


def test_what_is_only_for_people_raises(other_scans):
    with pytest.raises(UnsupportedJaxError, match=f"_jaxpr.py cannot read a scan equation of {NAMED}"):
        autoloop(doubled).plans(X)


def test_strict_mode_does_not_stop_a_program_for_it(other_scans):
    with one_warning(), settings(mode="strict"):
        same(autoloop(doubled)(X))


def test_equations_without_the_fields_that_we_know_run_as_written(monkeypatch):
    other_equations(monkeypatch)
    with one_warning("has no attribute 'bodies'"):
        same(autoloop(doubled)(X))


def test_errors_of_the_function_are_its_own(monkeypatch):
    other_equations(monkeypatch)

    def wrong(x):
        return doubled(x) + x.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        autoloop(wrong)(X)


def test_names_that_jax_lacks_are_listed_and_functions_run_as_written(lacking):
    looped = autoloop(doubled)
    with one_warning("lacks: jax.extend.core.Var, jax.extend.core.jaxpr_as_fun"):
        same(looped(X))
        same(jax.jit(looped)(X))
        same(looped(X))
        record = looped.warmup(X)
    assert "_jaxpr.py" in str(record)
    assert looped.plan(X) is None


def test_without_warnings_as_errors_a_second_function_warns_for_itself(lacking):
    for _ in range(2):
        with one_warning():
            same(autoloop(doubled)(X))


def test_a_module_that_jax_lacks():
    assert _installed.module("jax.no_such_module") is None
    text = _installed.lacks({"jax.no_such_module": ("a", "b"), "jax": ("jit", "no_such_name")})
    assert text == (
        f"autoloop/_jaxpr.py needs what jax {jax.__version__} lacks: "
        "jax.no_such_module.a, jax.no_such_module.b, jax.no_such_name"
    )
    assert _installed.lacks({"jax": ("jit",)}) == ""


def test_this_jax_lacks_nothing():
    assert _jaxpr.missing() == ""


IMPORT = """
import sys, types, warnings
import jax
for name in ("jax.extend.core", "jax.extend"):
    sys.modules[name] = types.ModuleType(name)
import jax.numpy as jnp
from autoloop import autoloop
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    print(autoloop(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * 2, x))(jnp.float32(1)))
print(len(told), told[0].message)
"""


def test_a_jax_without_its_extension_module_still_runs_programs(python):
    value, told = python(IMPORT).splitlines()
    assert value == "8.0"
    assert told.startswith("1 autoloop: autoloop/_jaxpr.py needs what jax")
    assert "jax.extend.core.ClosedJaxpr" in told


def test_what_is_read_wrong_is_named_with_its_cause():
    with pytest.raises(UnsupportedJaxError, match=f"cannot read the jaxprs of {NAMED}: KeyError") as caught, _reading():
        {}["x"]
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ZeroDivisionError), _reading():
        functools.reduce(lambda a, b: a / b, (1, 0))


def _reading():
    return _installed.reading()
