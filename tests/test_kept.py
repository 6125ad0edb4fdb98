"""Leaves that JAX can't trace, inside arguments: they are static, as under `equinox.filter_jit`."""

import dataclasses
import enum
import re
from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ramp

import autoloop
from autoloop import settings


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    weights: object
    activation: object = jnp.tanh
    name: object = "a name"
    number: object = None

    def __call__(self, x):
        return self.activation(self.weights @ x)


XS = ramp(5, 2)
MODEL = Model(ramp(2, 2))


def fold(model, xs):
    def step(h, x):
        return model(h + x), h.sum()

    h, sums = jax.lax.scan(step, xs[0], xs)
    return dataclasses.replace(model, weights=model.weights + h), sums


def expected(model=MODEL, xs=XS):
    inner = jax.jit(
        lambda w, xs: (lambda out: (out[0].weights, out[1]))(fold(dataclasses.replace(model, weights=w), xs))
    )
    return inner(model.weights, xs)


def check(got, model=MODEL):
    new, sums = got
    weights, want = expected(model)
    assert jnp.allclose(new.weights, weights)
    assert jnp.allclose(sums, want)
    assert new.activation is model.activation
    assert new.name == model.name


def test_a_model_with_a_function_among_its_leaves_is_tuned_like_any_other(quick, tunings):
    fun = autoloop.autoloop(forms=["inline"])(fold)
    check(fun(MODEL, XS))
    check(fun(MODEL, XS))
    check(fun(model=MODEL, xs=XS))
    assert len(tunings) == 1
    assert str(fun.plan(MODEL, XS)) == "0=inline"
    assert fun.report(MODEL, XS).winner == "0=inline"
    assert [str(plan) for plan in fun.plans(MODEL, XS)] == ["as-written", "0=inline"]
    assert "no miss" in fun.explain_miss(MODEL, XS)
    assert fun.lower(MODEL, XS).compile() is not None
    assert fun.trace(MODEL, XS).jaxpr is not None
    assert fun.eval_shape(MODEL, XS)[0].activation is jnp.tanh
    fun.forget(MODEL, XS)
    assert fun.plan(MODEL, XS) is None
    assert fun.warmup(MODEL, XS).winner == "0=inline"


def test_another_function_is_another_program(quick, tunings):
    fun = autoloop.autoloop(forms=["inline"])(fold)
    for activation in (jnp.tanh, jnp.sin, jnp.tanh):
        model = dataclasses.replace(MODEL, activation=activation)
        check(fun(model, XS), model)
    assert len(tunings) == 2


@pytest.mark.parametrize("plan", ["0=python(2)", "0=unroll(2)", "as-written"])
def test_pinned_and_forced_plans_take_them(plan):
    fun = autoloop.autoloop(fold)
    check(fun.using(plan)(MODEL, XS))
    with settings(plan=plan):
        check(fun(MODEL, XS))


@pytest.mark.parametrize("mode", ["off", "cached"])
def test_modes_that_do_not_tune_take_them(mode):
    with settings(mode=mode):
        check(autoloop.autoloop(fold)(MODEL, XS))


def test_without_jit_they_are_what_they_are():
    with jax.disable_jit():
        check(autoloop.autoloop(fold)(MODEL, XS))


def test_traces_take_them():
    fun = autoloop.autoloop(mode="cached")(fold)

    def loss(run, weights):
        model, sums = run(dataclasses.replace(MODEL, weights=weights), XS)
        return sums.sum() + model.weights.sum()

    want = jax.grad(lambda w: loss(fold, w))(MODEL.weights)
    assert jnp.allclose(jax.jit(jax.grad(lambda w: loss(fun, w)))(MODEL.weights), want, rtol=1e-4)


def test_static_and_donated_arguments_keep_their_meaning():
    def fun(model, times, xs):
        assert type(times) is int
        return jax.lax.scan(lambda c, x: (model(c) + x * times, c), xs[0], xs)[1]

    donating = autoloop.autoloop(mode="cached", static_argnames="times", donate_argnums=2)(fun)
    xs = jnp.array(XS)
    assert jnp.allclose(donating(MODEL, 2, xs), fun(MODEL, 2, XS))
    assert jnp.allclose(donating(MODEL, xs=jnp.array(XS), times=3), fun(MODEL, 3, XS))


@pytest.mark.parametrize("arg", ["fast", jnp.tanh, object()])
def test_an_argument_that_is_no_array_as_a_whole_is_refused_as_jit_refuses_it(arg):
    def fun(xs, arg):
        return xs

    with pytest.raises(TypeError) as plain:
        jax.jit(fun)(XS, arg)
    with pytest.raises(TypeError) as ours:
        autoloop.autoloop(fun)(XS, arg)
    assert type(ours.value) is type(plain.value)
    assert "static_argnames" in str(ours.value)


def test_an_error_of_the_function_itself_comes_once_and_unchanged():
    calls = []

    def fun(xs):
        calls.append(1)
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine") as error:
        autoloop.autoloop(fun)(XS)
    assert error.value.__context__ is None
    assert len(calls) == 1


def test_a_number_that_a_library_means_to_be_static_is_named_with_what_to_do():
    def fun(model, xs):
        return fold(model, xs) if model.number else xs

    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        autoloop.autoloop(fun)(dataclasses.replace(MODEL, number=True), XS)
    (note,) = [note for note in error.value.__notes__ if "autoloop" in note]
    assert ".number" in note
    assert "equinox.partition(model, equinox.is_array)" in note


def test_no_note_where_no_number_is_inside():
    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        autoloop.autoloop(lambda xs: xs if xs[0, 0] else -xs)(XS)
    assert not [note for note in getattr(error.value, "__notes__", []) if "autoloop" in note]


@dataclasses.dataclass
class Gain:  # with an equality and so without a hash
    gain: float


class Letter(enum.StrEnum):
    A = "a"


def scaled(x, held):
    factor = 2 if isinstance(held[0], (Letter, Fraction)) else 3
    return jax.lax.scan(lambda c, _: (c * factor, None), x, None, length=3)[0]


def values_of(fun):
    return [float(fun(1.0, [held])) for held in ("a", Letter.A, "a", Fraction(1, 2), Decimal("0.5"))]


@pytest.mark.parametrize("pin", [False, True])
def test_equal_leaves_of_another_type_are_other_leaves(pin, quick):
    fun = autoloop.autoloop(scaled)
    assert values_of(fun.using("0=inline") if pin else fun) == [27, 8, 27, 8, 27]


@pytest.mark.parametrize("mode", ["tune", "off"])
@pytest.mark.parametrize("leaf", [Gain(2.0), {1}, np.array(["a", "b"]), np.array([None, 1])], ids=repr)
@pytest.mark.parametrize("beside", [None, "a name"])
def test_a_leaf_without_a_hash_is_refused_as_by_jit_and_harms_no_other_call(leaf, beside, mode, quick):
    fun = autoloop.autoloop(lambda x, held, beside: scaled(x, held), mode=mode)
    assert fun(1.0, ["a"], [beside]) == 27
    with pytest.raises(TypeError) as refused:
        jax.jit(scaled)(1.0, [leaf])
    with pytest.raises(TypeError, match=re.escape(str(refused.value)[:40])):
        fun(1.0, [leaf], [beside])
    assert fun(1.0, ["a"], [beside]) == 27
