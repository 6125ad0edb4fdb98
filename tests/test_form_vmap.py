"""`vmap(b)`: which loops it may run, and that it runs them as JAX does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend import core as jec

from autoloop import _apply, _jaxpr, _legal, _outline, _plan
from autoloop._forms import FORMS
from autoloop._forms.vmap import Vmap
from autoloop._loops import find_loops

FORM = Vmap()
FORMS_BY_NAME = {f.name: f for f in (*FORMS, FORM)}
X = jnp.linspace(-1.0, 1.0, 7)
KEYS = jax.random.split(jax.random.key(0), 7)
LENGTH = 7
SIZES = (3, 7)


def loops_of(fun, *args):
    return find_loops(_outline.outline(_jaxpr.trace(jax.jit(fun), args, {}).jaxpr))


def why_not(fun, *args, parameter=1):
    return FORM.why_not(loops_of(fun, *args)[0], parameter)


def planned(text, fun, *args):
    """`fun` with a plan applied, as a function of like arguments."""
    traced = _jaxpr.trace(jax.jit(fun), args, {})
    block, plan = _outline.outline(traced.jaxpr), _plan.Plan.parse(text)
    assert _legal.why_not(plan, find_loops(block), FORMS_BY_NAME) is None

    def run(*inner):
        outs = _apply.Applied(plan, FORMS_BY_NAME).run_block(block, *jax.tree.leaves((inner, {})))
        return jax.tree.unflatten(traced.out_tree, outs)

    return run


def numbers(value):
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(value))
    return np.asarray(value)


def kind(value, weak=True):
    return value.shape, value.dtype, weak and getattr(value, "weak_type", False)  # keys have none


def assert_same(got, wanted, rtol=1e-5, atol=1e-6, weak=True):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert kind(a, weak) == kind(b, weak)
        np.testing.assert_allclose(numbers(a), numbers(b), rtol=rtol, atol=atol)


# ---------------------------------------------------------------- programs it may run


def nested_map(x):
    return lax.map(lambda v: lax.scan(lambda h, w: (jnp.tanh(h * v + w), h), v, X[:3])[0], x)


def passed_through(x):
    return lax.scan(lambda c, v: (c, c["w"] * v + c["b"]), {"w": x[0], "b": x[1:3]}, x)


def counter_only(x):
    return lax.scan(lambda i, _: (i + 1, i * 2.5 + x[0]), 3, None, length=LENGTH)


def nothing_read(x):
    return lax.scan(lambda c, _: (c, (x * 2, 1.0)), 0, None, length=LENGTH)


def overwritten(x):
    return lax.scan(lambda c, v: ((jnp.sin(v), c[1]), v + c[1]), (x[0], x[1]), x)


def reverse_all(x):
    def body(c, v):
        i, _last, w = c
        return (i + 2, v * w + i, w), v * i

    return lax.scan(body, (jnp.int32(5), x[0], x[1]), x, reverse=True)


def counters(x):
    step = jnp.arange(3, dtype=jnp.int32)

    def body(c, v):
        i, j, k, m = c
        return (i - 3, j + step, 100 + k, m), (i, j, k, v * k)

    start = (jnp.uint8(4), jnp.arange(3, dtype=jnp.int32), jnp.int8(90), jnp.int32(0))
    return lax.scan(body, start, x)


def passed_step(x):
    n = jnp.int32(x.shape[0])
    return lax.scan(lambda c, v: ((c[0] + c[1], c[1]), v * c[0]), (n, n), x)


def fori_overwrites(x):
    return lax.fori_loop(0, LENGTH, lambda i, c: x[i] * i, 0.0)


def jitted_body(x):
    @jax.jit
    def body(c, v):
        i, w = c
        return (i + 1, w), jnp.where(v > 0, v * w, i)

    return lax.scan(body, (0, x[1]), x)


def branches(x):
    return lax.map(lambda v: lax.cond(v > 0, jnp.sin, lambda u: u * 2, v), x)


def inner_while(x):
    def halve(v):
        return lax.while_loop(lambda s: s[0] > 0.1, lambda s: (s[0] / 2, s[1] + 1), (v, 0))

    return lax.map(halve, x)


def products(x):
    w = jnp.outer(x, x) + 1
    return lax.scan(lambda c, v: (c, jnp.dot(w @ w, v * x)), None, x)[1]


def custom_rule(x):
    return lax.map(lambda v: jax.nn.relu(jax.nn.silu(v)) + jax.nn.logsumexp(v * x), x)


def rematerialised(x):
    return lax.scan(jax.checkpoint(lambda c, v: (c, jnp.sin(c * v))), x[2], x)


def two_carries_one_value(x):
    def body(c, v):
        new = v * 2
        return (new, new), new

    return lax.scan(body, (x[0], x[1]), x)


def unread_reads(x):
    """A carry read only by what nothing needs."""

    def body(c, v):
        _ = jnp.cos(c) * v
        return v, v

    return lax.scan(body, x[0], x)


def keys(k):
    return lax.scan(lambda c, v: (v, (jax.random.fold_in(v, 1), jax.random.normal(v, (2,)))), k[0], k)


def raw_keys(k):
    return lax.map(lambda v: jax.random.uniform(jax.random.wrap_key_data(v)), jax.random.key_data(k))


def integers(x):
    return lax.map(lambda v: (v > 0, jnp.int32(v * 9), jnp.complex64(v)), x)


def empty_loop(x):
    return lax.scan(lambda c, v: ((c[0] + 1, v), (v * 2, c[0])), (0, x[0]), x[:0])


FLOATING = {
    f.__name__: f
    for f in (
        nested_map,
        passed_through,
        counter_only,
        nothing_read,
        overwritten,
        reverse_all,
        passed_step,
        fori_overwrites,
        jitted_body,
        branches,
        products,
        custom_rule,
        rematerialised,
        two_carries_one_value,
        unread_reads,
    )
}
OTHERS = {f.__name__: (f, X) for f in (counters, inner_while, integers)}
OTHERS |= {f.__name__: (f, KEYS) for f in (keys, raw_keys)}
ALL = {**OTHERS, **{name: (f, X) for name, f in FLOATING.items()}}


@pytest.mark.parametrize("name", ALL)
def test_runs_as_jax_does(name):
    fun, arg = ALL[name]
    wanted = jax.jit(fun)(arg)
    for size in SIZES:
        assert_same(jax.jit(planned(f"0=vmap({size})", fun, arg))(arg), wanted)


@pytest.mark.parametrize("name", ["reverse_all", "keys", "inner_while"])
def test_runs_without_jit(name):
    fun, arg = ALL[name]
    assert_same(planned("0=vmap(2)", fun, arg)(arg), fun(arg))


@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("size", [3, 7])
def test_gradient(name, size):
    fun = FLOATING[name]

    def total(run):
        return lambda x: sum(jnp.sum(jnp.sin(v * 1.0)) for v in jax.tree.leaves(run(x)))

    # A gradient is as weak as the program it comes from: jax 0.8 alone differs by that.
    got = jax.jit(jax.grad(total(planned(f"0=vmap({size})", fun, X))))(X)
    assert_same(got, jax.jit(jax.grad(total(fun)))(X), rtol=1e-4, atol=5e-5, weak=False)


@pytest.mark.parametrize("name", ["nested_map", "reverse_all", "jitted_body", "branches", "inner_while"])
def test_batched(name):
    fun, _ = ALL[name]
    many = jnp.stack([X, X + 0.3])
    wanted = jax.jit(jax.vmap(fun))(many)
    for size in (3, 7):
        assert_same(jax.jit(jax.vmap(planned(f"0=vmap({size})", fun, X)))(many), wanted)


def test_gradient_program_is_itself_rewritten():
    def loss(x):
        return jnp.sum(nested_map(x) ** 2)

    fun = jax.grad(loss)
    legal = [loop.name for loop in loops_of(fun, X) if FORM.why_not(loop, 1) is None]
    assert legal[:1] == ["0"]
    assert len(legal) >= 2  # the outer loop, forward and backward
    text = " ".join(f"{name}=vmap({size})" for name, size in zip(legal, (7, 4), strict=False))
    assert_same(jax.jit(planned(text, fun, X))(X), jax.jit(fun)(X))


def test_inner_choices_are_kept():
    for inner in ("inline", "unroll(2)"):
        assert_same(planned(f"0=vmap(4) 0/0={inner}", nested_map, X)(X), nested_map(X))


def test_stands_inside_another_loop():
    def fun(x):
        return lax.scan(lambda c, v: (c + jnp.sum(lax.map(jnp.sin, x * v)), c), 0.0, x)

    for text in ("0/0=vmap(7)", "0/0=vmap(3) 0=unroll(2)", "0/0=vmap(2) 0=inline"):
        assert_same(jax.jit(planned(text, fun, X))(X), jax.jit(fun)(X))


@pytest.mark.parametrize("reverse", [False, True])
def test_length_zero_and_one(reverse):
    def fun(x):
        return lax.scan(lambda c, v: ((c[0] + 1, v), (v * 2, c[0])), (0, x[0]), x[1:], reverse=reverse)

    for n in (1, 2):
        x = X[:n]
        assert_same(jax.jit(planned("0=vmap(1)", fun, x))(x), jax.jit(fun)(x))


def test_float64():
    with jax.enable_x64(True):
        x = jnp.linspace(-1.0, 1.0, 7)
        for fun in (nested_map, reverse_all, counter_only):
            assert_same(planned("0=vmap(3)", fun, x)(x), fun(x), rtol=1e-12)


def test_bits_of_random_numbers_are_equal():
    wanted = jax.jit(keys)(KEYS)
    got = jax.jit(planned("0=vmap(7)", keys, KEYS))(KEYS)
    assert_same(got[1][0], wanted[1][0], rtol=0, atol=0)


@given(
    length=st.integers(1, 9),
    size=st.integers(1, 9),
    start=st.integers(-128, 127),
    step=st.integers(-128, 127),
    reverse=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_counters_are_exact(length, size, start, step, reverse):
    def fun(x):
        def body(c, v):
            return (c[0] + np.int8(step), v), (c[0], v)

        return lax.scan(body, (jnp.int8(start), x[0]), x, reverse=reverse)

    x = jnp.arange(length)
    got = planned(f"0=vmap({min(size, length)})", fun, x)(x)
    assert_same(got, fun(x), rtol=0, atol=0)


# ---------------------------------------------------------------- programs it may not run


def fake_primitive(name):
    primitive = jec.Primitive(name)
    primitive.def_abstract_eval(lambda aval: aval)
    return primitive.bind


def with_rbg(x):
    return lax.map(lambda k: jax.random.uniform(k), jax.random.split(jax.random.key(0, impl="rbg"), 7))


def with_bits(x):
    return lax.map(lambda v: lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (2,))[1] * v, x)


def with_callback(x):
    shape = jax.ShapeDtypeStruct((), x.dtype)
    return lax.map(lambda v: jax.pure_callback(np.sin, shape, v), x)


def with_print(x):
    return lax.map(lambda v: (jax.debug.print("{}", v), v)[1], x)


def with_while_in_cond(x):
    def loop(v):
        return lax.while_loop(lambda u: u < 1, lambda u: u * 2, v)

    return lax.map(lambda v: lax.cond(v > 0, loop, lambda u: u, v), x)


def with_rule(x):
    @jax.custom_vjp
    def double_gradient(v):
        return v

    double_gradient.defvjp(lambda v: (v, None), lambda _, g: (2 * g,))
    return lax.scan(lambda c, v: (double_gradient(c), v), x[0], x)


def reads(name):
    return f"iteration t reads `{name}` written by t-1"


REFUSED = {
    "a sum": (lambda x: lax.scan(lambda c, v: (c + v, v), 0.0, x), reads("c")),
    "a recurrence": (lambda x: lax.scan(lambda c, v: (jnp.tanh(c) + v, c), 0.0, x), reads("c")),
    "the second carry": (
        lambda x: lax.scan(lambda c, v: ((c[0] + 1, c[1] * v), c[0]), (0, 1.0), x),
        reads("c[1]"),
    ),
    "a delay": (lambda x: lax.scan(lambda c, v: (v, c), 0.0, x), reads("c")),
    "a swap": (lambda x: lax.scan(lambda c, v: ((c[1], c[0]), v), (0.0, 1.0), x), reads("c[0]")),
    "written from another carry": (
        lambda x: lax.scan(lambda c, v: ((v, c[0]), v), (0.0, 1.0), x),
        reads("c[0]"),
    ),
    "fori with an array": (
        lambda x: lax.fori_loop(0, 7, lambda i, c: c.at[i].set(i * 1.0), x),
        reads("c"),
    ),
    "inside jit": (
        lambda x: lax.scan(jax.jit(lambda c, v: (c * v, v)), 0.0, x),
        reads("c"),
    ),
    # i + 0.1 summed is not 0.1 * t, and a step that changes is a sum.
    "a floating counter": (lambda x: lax.scan(lambda c, v: (c + 0.1, v * c), 0.0, x), reads("c")),
    "a changing step": (
        lambda x: lax.scan(lambda c, v: (c + v, c), 0, jnp.arange(7)),
        reads("c"),
    ),
    "a reversed difference": (lambda x: lax.scan(lambda c, v: (1 - c, v * c), 0, x), reads("c")),
    "passed through a call with a derivative rule": (with_rule, reads("c")),
    "side effects": (with_print, "the body has side effects (Debug), whose order would change"),
    "rbg keys": (
        with_rbg,
        "the body holds random_bits with keys that are not threefry: its bits would change",
    ),
    "raw bits": (
        with_bits,
        "the body holds rng_bit_generator with keys that are not threefry: its bits would change",
    ),
    "pure_callback": (
        with_callback,
        "the body holds pure_callback, which means something else for many iterations at once",
    ),
    "a while inside a cond": (
        with_while_in_cond,
        "the body holds a while inside a cond: it may never end where its branch is not taken",
    ),
    **{
        name: (
            lambda x, name=name: lax.map(fake_primitive(name), x),
            f"the body holds {name}, which means something else for many iterations at once",
        )
        for name in ("unvmap_any", "unvmap_all", "unvmap_max", "nonbatchable")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    fun, reason = REFUSED[case]
    assert why_not(fun, X) == reason
    assert FORM.ladders(loops_of(fun, X)[0]) == ()


@pytest.mark.parametrize("parameter", [0, 8, -1, "all", None])
def test_refuses_parameters(parameter):
    wanted = f"the iterations per batch must be a number from 1 to the length 7; got {parameter}"
    assert why_not(branches, X, parameter=parameter) == wanted


@pytest.mark.parametrize(
    ("length", "ladders"),
    [(0, ()), (1, ()), (2, ((2,), ())), (32, ((32,), (8,))), (1000, ((1000,), (8, 32, 128)))],
)
def test_ladders(length, ladders):
    (loop,) = loops_of(lambda x: lax.scan(lambda c, v: (c, v * 2), None, x), jnp.zeros(length))
    assert FORM.ladders(loop) == ladders
    assert all(FORM.why_not(loop, rung) is None for ladder in ladders for rung in ladder)


def test_copies_and_order():
    (loop,) = loops_of(branches, X)
    assert [FORM.copies(loop, b) for b in (1, 3, 7)] == [1, 2, 1]
    assert not FORM.reassociates(loop, 7)
    assert not FORM.on_host
