"""Decorated functions as objects: copies, pickles, methods, and what they take from what they wrap."""

import copy
import inspect
import pickle

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoloop import autoloop
from autoloop.testing import assert_forms_agree

X = jnp.arange(3.0)


@autoloop
def doubled(x):
    return lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0]


class Model:
    def __init__(self, scale):
        self.scale = scale

    @autoloop(static_argnums=0, forms=["inline"])
    def run(self, x, y=0.0):
        """Runs it."""
        return lax.scan(lambda c, _: (c * self.scale + y, None), x, None, length=3)[0]


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_copy_of_a_function_is_itself(make):
    assert make(doubled) is doubled
    assert copy.deepcopy({"step": doubled})["step"] is doubled


def test_what_can_not_be_imported_is_not_pickled():
    local = autoloop(lambda x: x)
    assert copy.deepcopy(local) is local
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(local)


def test_methods_are_asked_without_their_instance(quick):
    model = Model(2.0)
    assert model.run.plan(X) is None
    assert "no record" in model.run.explain_miss(X)
    assert [str(plan) for plan in model.run.plans(X)] == ["as-written", "0=inline"]
    assert jnp.array_equal(model.run(X, y=1.0), [7.0, 15.0, 23.0])
    record = model.run.warmup(X)
    assert record.winner == str(model.run.plan(X)) == "0=inline"
    assert model.run.report(X) == record
    assert jnp.array_equal(model.run.using("0=unroll(2)")(X), X * 8)
    assert model.run.lower(X).as_text()
    assert model.run.trace(X).jaxpr
    assert model.run.eval_shape(X).shape == (3,)
    assert model.run.__wrapped__ is Model.run.__wrapped__
    model.run.forget(X)
    assert model.run.plan(X) is None
    model.run(X)
    model.run.forget()
    assert model.run.plan(X) is None


def test_a_method_stands_where_functions_do():
    model, other = Model(2.0), Model(3.0)
    assert model.run == model.run
    assert model.run != other.run
    assert len({model.run, model.run, other.run}) == 2
    assert [*inspect.signature(model.run).parameters] == ["x", "y"]
    assert model.run.__name__ == "run"
    assert "Model.run" in repr(model.run)
    assert jnp.array_equal(jax.jit(model.run)(X), X * 8)
    assert jnp.array_equal(jax.vmap(other.run)(X), X * 27)
    assert len(assert_forms_agree(model.run, X, under=("plain", "jit"))) == 2


class Callable:
    """Its attributes have the names of ours."""

    def __init__(self):
        self.plan, self.forget, self.using, self._lock, self._function, self.jitted = (7,) * 6
        self.scale = 2.0

    def __call__(self, x):
        return lax.scan(lambda c, _: (c * self.scale, None), x, None, length=3)[0]


def test_attributes_of_what_is_wrapped_replace_none_of_ours():
    looped = autoloop(Callable())
    assert jnp.array_equal(looped.using("0=inline")(X), X * 8)
    assert looped.plan(X) is None
    assert looped.scale == 2.0
    assert looped.using("0=inline").scale == 2.0
    looped.forget(X)
    assert jnp.array_equal(looped(X), X * 8)


def test_attributes_of_a_function_are_kept():
    def fun(x):
        return x

    fun.tag = "mine"
    assert autoloop(fun).tag == "mine"
    assert autoloop(fun).__doc__ == fun.__doc__
    assert autoloop(fun).__name__ == "fun"


def test_how_often_the_body_is_traced(quick):
    """Once to find the loops, and once for each plan that is tried; the winner's jit is taken over."""
    traced = []

    @autoloop(forms=["inline"])
    def fun(x):
        traced.append(x)
        return lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0]

    fun(X)
    first = len(traced)
    assert first == 1 + len(fun.report(X).trials)
    fun(X)
    assert len(traced) == first
