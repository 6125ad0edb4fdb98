"""`associative`: which recurrences it solves, and that it solves them as JAX runs them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from autoloop import _apply, _form, _jaxpr, _legal, _outline, _plan
from autoloop._forms import FORMS
from autoloop._forms.associative import Associative
from autoloop._forms.vmap import Vmap
from autoloop._loops import find_loops

FORM = Associative()
FORMS_BY_NAME = {f.name: f for f in (*FORMS, Vmap(), FORM)}
X = jnp.array([0.5, -0.25, 1.5, -1.0, 0.75, 0.1, -2.0])
INTS = jnp.array([3, -200, 7, 1 << 30, -5, 0, 11], jnp.int32)


def loops_of(fun, *args):
    return find_loops(_outline.outline(_jaxpr.trace(jax.jit(fun), args, {}).jaxpr))


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


def assert_same(got, wanted, rtol=1e-5, weak=True):
    """Relative to the largest magnitude; exact for integers."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert kind(a, weak) == kind(b, weak)
        a, b = numbers(a), numbers(b)
        if np.issubdtype(b.dtype, np.inexact):
            size = np.max(np.abs(b), initial=1e-30, where=np.isfinite(b))
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * size)
        else:
            np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------- one carry


def step_of(update, start=0.3):
    """A loop that returns the carry before and after each iteration, and after the last."""

    def fun(x, reverse=False):
        def body(h, v):
            new = update(h, v)
            return new, (jnp.sin(h), new)

        init = jnp.asarray(start, jnp.result_type(start, x.dtype if np.ndim(start) == 0 else start))
        return lax.scan(body, init, x, reverse=reverse)

    return fun


@jax.jit
def leaky(h, v):
    return jnp.where(v > 0, h * 0.5, h * 0.25) + v


def layout(h, v):
    h = jnp.squeeze(jnp.reshape(h[:, None] * 0.5, (1, 3)), 0)
    return h + jnp.expand_dims(jnp.full(3, v), 0).reshape(3)


VECTOR = jnp.arange(3.0)
UPDATES = {
    "constant factor": step_of(lambda h, v: 0.9 * h + v),
    "changing factor": step_of(lambda h, v: v * h + jnp.sin(v)),
    "a sum": step_of(lambda h, v: h + v),
    "a difference": step_of(lambda h, v: v - h),
    "a product": step_of(lambda h, v: h * v),
    "a quotient": step_of(lambda h, v: (h - 1) / (v + 3)),
    "negated": step_of(lambda h, v: -(h * v) + 1),
    "read twice": step_of(lambda h, v: 0.5 * h + (v - h) * 0.25),
    "doubled": step_of(lambda h, v: (h + h) * 0.4 - v),
    "less itself": step_of(lambda h, v: (h - 0.5 * h) + (h - h) + v),
    "a cast and a power": step_of(lambda h, v: h.astype(jnp.float32) ** 1 + v),
    "kept where masked": step_of(lambda h, v: jnp.where(v > 0, h * v + 1, h)),
    "reset": step_of(lambda h, v: jnp.where(v > 1, v, h * v + 1)),
    "reset, then more": step_of(lambda h, v: 0.5 * (jnp.where(v > 0, 1.0, h) - v) / 2),
    "reset on one side": step_of(lambda h, v: jnp.where(v > 0, 0.0, h * v) + 0.5 * h),
    "reset on both sides": step_of(lambda h, v: jnp.where(v > 0, 1.0, h) - jnp.where(v < 1, v, 0.5 * h)),
    "one of three": step_of(
        lambda h, v: lax.select_n(jnp.int32(v > 0) + jnp.int32(v > 1), h * v, v, jnp.float32(0.5) * h)
    ),
    "inside jit": step_of(leaky),
    "a vector": step_of(lambda h, v: h * jnp.cos(VECTOR) * v + VECTOR, VECTOR),
    "another layout": step_of(layout, VECTOR),
    "masked elements": step_of(lambda h, v: jnp.where(v < VECTOR, h * 0.5, h + v), VECTOR),
    "complex": step_of(lambda h, v: h * jnp.exp(1j * v) + v, jnp.complex64(1 + 2j)),
    "a maximum": step_of(jnp.maximum),
    "a minimum": step_of(lambda h, v: jnp.minimum(h, v * v)),
    "the best path": step_of(lambda h, v: jnp.maximum(h + v, v * 2)),
    "the cheapest path": step_of(lambda h, v: jnp.minimum(jnp.sin(v) + h, v) - v),
    "the best of two": step_of(lambda h, v: jnp.maximum(jnp.maximum(h - 1, h + v), 0)),
    "the best since a reset": step_of(lambda h, v: jnp.where(v < -0.5, -1.0, jnp.maximum(h + v, 0))),
    "both in one": step_of(lambda h, v: jnp.maximum(jnp.where(v > 0, v, h), h - 0.5)),
}
INTEGERS = {
    "affine": step_of(lambda h, v: h * v + 7, jnp.int32(2)),
    "wraps": step_of(lambda h, v: (h - v.astype(jnp.uint8)) * 3, jnp.uint8(250)),
    "a maximum": step_of(jnp.maximum, jnp.int32(-9)),
    "a maximum since a reset": step_of(lambda h, v: jnp.where(v == 0, v, jnp.maximum(h, v)), jnp.int32(-9)),
    "both in one": step_of(lambda h, v: jnp.maximum(jnp.where(v == 0, -9, h), h), jnp.int32(-9)),
}


@pytest.mark.parametrize("case", UPDATES)
def test_solves_in_both_directions(case):
    def fun(x):
        return UPDATES[case](x), UPDATES[case](x, reverse=True)

    assert_same(jax.jit(planned("0=associative 1=associative", fun, X))(X), jax.jit(fun)(X))


@pytest.mark.parametrize("case", INTEGERS)
def test_integers_are_exact(case):
    fun = INTEGERS[case]
    got, wanted = jax.jit(planned("0=associative", fun, INTS))(INTS), jax.jit(fun)(INTS)
    assert_same((got[0], got[1][1]), (wanted[0], wanted[1][1]))


@pytest.mark.parametrize(
    "case",
    [
        "changing factor",
        "read twice",
        "reset on both sides",
        "one of three",
        "inside jit",
        "another layout",
        "masked elements",
        "the best path",
        "the best since a reset",
    ],
)
def test_gradient(case):
    fun = UPDATES[case]

    def total(run):
        return lambda x: sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(run(x)))

    # A gradient is as weak as the program it comes from: jax 0.8 alone differs by that.
    got = jax.jit(jax.grad(total(planned("0=associative", fun, X))))(X)
    assert_same(got, jax.jit(jax.grad(total(fun)))(X), rtol=1e-4, weak=False)


@pytest.mark.parametrize("case", ["changing factor", "reset", "the best path", "another layout", "inside jit"])
def test_batched(case):
    fun, many = UPDATES[case], jnp.stack([X, X[::-1]])
    got = jax.jit(jax.vmap(planned("0=associative", fun, X)))(many)
    assert_same(got, jax.jit(jax.vmap(fun))(many))


@pytest.mark.parametrize("case", ["reset"])
def test_without_jit(case):
    assert_same(planned("0=associative", UPDATES[case], X)(X), UPDATES[case](X))


@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_short_loops(length, reverse):
    fun, x = functools.partial(UPDATES["reset"], reverse=reverse), X[:length]
    assert_same(jax.jit(planned("0=associative", fun, x))(x), jax.jit(fun)(x))


def test_a_reset_stops_nan_and_inf():
    def fun(x):
        return lax.scan(lambda h, v: (jnp.where(v == 0, 1.0, h * v), h), jnp.inf, x)

    for bad in (jnp.nan, jnp.inf):
        x = jnp.array([2.0, bad, -1.0, 0.0, 3.0, 4.0, 0.0])
        got, wanted = planned("0=associative", fun, x)(x), fun(x)
        np.testing.assert_array_equal(got[1], wanted[1])
        assert np.isfinite(got[0])


# ---------------------------------------------------------------- several carries


def adam_moments(x):
    def body(c, g):
        i, m, v, rate = c
        m, v, i = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g, i + 1
        return (i, m, v, rate), rate * (m / (1 - 0.9**i)) / (jnp.sqrt(v / (1 - 0.99**i)) + 1e-3)

    return lax.scan(body, (0, x[0], x[1] ** 2, 0.1), x)


def cascade(x):
    """Each carry's recurrence uses the ones before it: one's last value, the other's new one."""

    def body(c, v):
        a, b, d = c
        new = 0.5 * a + v
        return (new, b * jnp.tanh(a) + 1, jnp.maximum(d, new) - 1.0), (a, b)

    return lax.scan(body, (x[0], x[1], x[2]), x, reverse=True)


def delays(x):
    return lax.scan(lambda c, v: ((v, c[0], c[1]), v + c[2] * c[1]), (x[0], x[1], x[2]), x)


def delayed_keys(x):
    keys = jax.random.split(jax.random.key(3), x.shape[0])
    return lax.scan(lambda c, k: (k, (c, jax.random.normal(c))), keys[0], keys)


def random_walk(x):
    keys = jax.random.split(jax.random.key(3), x.shape[0])
    return lax.scan(lambda c, k: (0.5 * c + jax.random.normal(k), c), 0.0, keys)


def inner_loops(x):
    def body(h, v):
        a, _ = lax.scan(lambda s, w: (jnp.tanh(s * v + w), None), v, x[:3])
        out = lax.fori_loop(0, 3, lambda i, s: jnp.sin(s) + i, h)
        return a * h + 1, out

    return lax.scan(body, x[0], x)


def activations(x):
    w = jnp.outer(x, x)
    return lax.scan(lambda h, v: (0.5 * h + w @ w @ x * v, jax.nn.silu(h @ w)), jnp.zeros(7), x)


def written_from_another(x):
    return lax.scan(lambda c, v: ((0.5 * c[0] + v, c[0] * 2, 1.5), c[1] + c[2]), (1.0, x[0], x[1]), x)


def same_new_value(x):
    def body(c, v):
        new = c[0] * v + 1
        return (new, new), c[1]

    return lax.scan(body, (x[0], x[1]), x)


def only_the_last(x):
    """A sum, a maximum and a minimum that nothing but the result reads."""

    def body(c, v):
        return (c[0] + v * VECTOR, jnp.maximum(c[1], v), jnp.minimum(c[2], v)), None

    return lax.scan(body, (VECTOR, -jnp.inf, jnp.inf), x)


def fori_sum(x):
    return lax.fori_loop(0, 7, lambda i, s: s + x[i] * i, 0.0)


def weak(x):
    return lax.scan(lambda c, _: (c * 0.5, 2.0), 1.0, None, length=5), x


def nothing_to_solve(x):
    return lax.scan(lambda c, v: ((c[0] + 1, c[1]), (v * c[0], 1.0, c[1])), (0, x[0]), x)


SEVERAL = {
    f.__name__: f
    for f in (
        adam_moments,
        cascade,
        delays,
        delayed_keys,
        random_walk,
        inner_loops,
        activations,
        written_from_another,
        same_new_value,
        only_the_last,
        fori_sum,
        weak,
        nothing_to_solve,
    )
}


@pytest.mark.parametrize("name", SEVERAL)
def test_solves_several(name):
    fun = SEVERAL[name]
    assert_same(jax.jit(planned("0=associative", fun, X))(X), jax.jit(fun)(X), rtol=3e-5)


def floats(tree):
    return [v for v in map(jnp.asarray, jax.tree.leaves(tree)) if jnp.issubdtype(v.dtype, jnp.floating)]


@pytest.mark.parametrize("name", ["adam_moments", "cascade", "delays", "inner_loops", "written_from_another"])
def test_gradient_of_several(name):
    fun = SEVERAL[name]

    def total(run):
        return lambda x: sum(jnp.sum(jnp.cos(v)) for v in floats(run(x)))

    # A gradient is as weak as the program it comes from: jax 0.8 alone differs by that.
    got = jax.jit(jax.grad(total(planned("0=associative", fun, X))))(X)
    assert_same(got, jax.jit(jax.grad(total(fun)))(X), rtol=2e-4, weak=False)


def test_inner_choices_are_kept():
    for inner in ("0/0=inline 0/1=unroll(3)", "0/0=unroll(2) 0/1=inline"):
        got = jax.jit(planned(f"0=associative {inner}", inner_loops, X))(X)
        assert_same(got, jax.jit(inner_loops)(X))


def test_gradient_program_is_itself_rewritten():
    def loss(a, x):
        return jnp.sum(lax.scan(lambda h, v: (a * h + v, jnp.sin(h)), 0.5, x)[1])

    fun = jax.grad(loss, argnums=(0, 1))
    a = jnp.float32(0.7)
    assert [FORM.why_not(loop, None) for loop in loops_of(fun, a, X)] == [None, None]
    got = jax.jit(planned("0=associative 1=associative", fun, a, X))(a, X)
    assert_same(got, jax.jit(fun)(a, X))


def test_only_what_is_read_is_scanned():
    program = jax.make_jaxpr(planned("0=associative", only_the_last, X))(X)
    names = {e.primitive.name for e in _jaxpr.equations(program)}
    assert {"reduce_sum", "reduce_max", "reduce_min"} <= names
    assert "concatenate" not in names


# ---------------------------------------------------------------- float64


@pytest.mark.parametrize("case", ["changing factor", "one of three", "the best path"])
def test_float64(case):
    with jax.enable_x64(True):
        x = jnp.sin(jnp.arange(40.0) * 7)
        if case == "one of three":

            def fun(x):
                def body(h, v):
                    which = jnp.int32(v > 0) + jnp.int32(v > 0.5)
                    return lax.select_n(which, h * v, v, 0.5 * h), h

                return lax.scan(body, 1.0, x)
        else:
            fun = UPDATES[case]
        got = jax.jit(planned("0=associative", fun, x))(x)
        assert all(v.dtype == jnp.float64 for v in jax.tree.leaves(got))
        assert_same(got, jax.jit(fun)(x), rtol=1e-12)


CHAIN = {
    "add x": lambda h, v: h + v,
    "minus one": lambda h, v: h - 1,
    "from x": lambda h, v: v - h,
    "times x": lambda h, v: h * v,
    "over": lambda h, v: h / (v + 2.5),
    "negate": lambda h, v: -h,
    "reset": lambda h, v: jnp.where(v > 0.8, v, h),
    "mask": lambda h, v: jnp.where(v < 0, h * 0.5, h),
    "elements": lambda h, v: jnp.where(jnp.arange(2) > v, h, v * 2),
    "halve twice": lambda h, v: 0.5 * h + h * v * 0.25,
    "layout": lambda h, v: (h[None] * 1.0).reshape(2, 1)[:, 0],
    "jit": jax.jit(lambda h, v: 0.9 * h + jnp.sin(v)),
    "outside": lambda h, v: h * jnp.cumsum(jnp.array([v, 0.5])),
}


@given(
    names=st.lists(st.sampled_from(sorted(CHAIN)), min_size=1, max_size=6),
    length=st.integers(1, 33),
    reverse=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=12, deadline=None)
def test_random_affine_chains(names, length, reverse, seed):
    def fun(x):
        def body(h, v):
            new = functools.reduce(lambda value, name: CHAIN[name](value, v), names, h)
            return new, (h, new)

        return lax.scan(body, jnp.array([0.5, -2.0]), x, reverse=reverse)

    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(seed).uniform(-1, 1, length))
        wanted = jax.jit(fun)(x)
        assert_same(jax.jit(planned("0=associative", fun, x))(x), wanted, rtol=1e-12)


# ---------------------------------------------------------------- refused


def bent(name, carry="h"):
    return f"{name} makes `{carry}` neither affine in its last value nor a max or min of sums with it"


def overflows(carry="h"):
    return f"the integers of `{carry}` might overflow when summed in another order"


def recurrence(update, start=0.3):
    return lambda x: lax.scan(lambda h, v: (update(h, v), None), jnp.asarray(start), x)[0]


def half_then_back(h, v):
    return (h.astype(jnp.float16) * jnp.float16(0.5)).astype(jnp.float32) + v


def coupled(x):
    return lax.scan(lambda c, v: ((c[0] + c[1], c[0] - c[1]), v), (x[0], x[1]), x)


def late(x):
    return lax.scan(lambda c, v: ((0.5 * c[0] + v, jnp.tanh(c[1]) + c[0]), v), (x[0], x[1]), x)


@jax.custom_jvp
def custom(v):
    return v * 1.0


custom.defjvp(lambda primals, tangents: (primals[0], tangents[0] * 2))

REFUSED = {
    "a nonlinear function": (recurrence(lambda h, v: jnp.tanh(h) + v), bent("tanh")),
    "after a legal start": (recurrence(lambda h, v: jnp.exp(h * 0.5 - v) * 2), bent("exp")),
    "a square": (recurrence(lambda h, v: h * h * v), bent("mul")),
    "integer_pow": (recurrence(lambda h, v: h**2 + v), bent("integer_pow")),
    "a reciprocal": (recurrence(lambda h, v: v / h), bent("div")),
    "a product in a matrix": (
        recurrence(lambda h, v: jnp.ones((3, 3)) @ h + v, VECTOR),
        bent("dot_general"),
    ),
    "neighbours": (recurrence(lambda h, v: jnp.flip(h) + v, VECTOR), bent("rev")),
    "an outer product": (
        recurrence(lambda h, v: (h[:, None] * jnp.ones((3, 2)))[:, 0], VECTOR),
        "mul does not keep the elements of `h` where they are",
    ),
    "another order of elements": (
        recurrence(lambda h, v: lax.reshape(h, (3, 2), (1, 0)).reshape(2, 3), jnp.ones((2, 3))),
        "reshape does not keep the elements of `h` where they are",
    ),
    "another precision": (
        recurrence(half_then_back),
        "convert_element_type changes the dtype of `h`",
    ),
    "a condition on the carry": (recurrence(lambda h, v: jnp.where(h > 0, v, h)), bent("gt")),
    "a branch on the carry": (
        recurrence(lambda h, v: lax.cond(v > 0, lambda s: s * 2, lambda s: s, h)),
        bent("cond"),
    ),
    "twice in a path": (recurrence(lambda h, v: jnp.maximum(h + v, 0) + h), bent("add")),
    "a maximum times x": (recurrence(lambda h, v: jnp.maximum(h + 1, v) * v), bent("mul")),
    "remat": (recurrence(jax.checkpoint(lambda h, v: h * v)), bent("checkpoint")),
    "a derivative rule": (recurrence(lambda h, v: custom(h) + v), bent("custom_jvp_call")),
    "an inner loop": (
        recurrence(lambda h, v: lax.fori_loop(0, 3, lambda i, s: s * 0.5, h)),
        bent("scan"),
    ),
    "a boolean": (recurrence(lambda h, v: h | (v > 0), False), bent("or")),
    "two carries at once": (coupled, "`c[0]` depends on `c[1]`, which can't be solved before it"),
    "the second carry": (late, bent("tanh", "c[1]")),
    "integers: a division": (recurrence(lambda h, v: h // 2, 5), None),
    "integers: lax.div": (recurrence(lambda h, v: lax.div(h, 2), 5), bent("div")),
    "integers: the best path": (
        recurrence(lambda h, v: jnp.maximum(h + jnp.int32(v), 0), jnp.int32(1)),
        overflows(),
    ),
    "side effects": (
        recurrence(lambda h, v: (jax.debug.print("{}", v), h + v)[1]),
        "the body has side effects (Debug), whose order would change",
    ),
    "rbg keys": (
        lambda x: lax.scan(
            lambda h, k: (h + jax.random.uniform(k), None),
            0.0,
            jax.random.split(jax.random.key(0, impl="rbg"), 7),
        ),
        "the body holds random_bits with keys that are not threefry: its bits would change",
    ),
    "pure_callback": (
        recurrence(lambda h, v: h + jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), v.dtype), v)),
        "the body holds pure_callback, which means something else for many iterations at once",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    fun, reason = REFUSED[case]
    loop = loops_of(fun, X)[0]
    got = FORM.why_not(loop, None)
    if case == "remat":  # its name in the jaxpr
        reason = reason.replace("checkpoint", "remat2") if "remat2" in got else reason
    assert got
    assert reason is None or got == reason
    assert FORM.ladders(loop) == ()


def test_choices_inside_cannot_make_it_illegal_silently():
    def fun(x):
        return lax.scan(lambda h, v: (0.5 * h + v, jnp.sin(h)), 0.0, x)

    traced = _jaxpr.trace(jax.jit(fun), (X,), {})
    (node,) = _outline.outline(traced.jaxpr).nodes
    site = _form.Site(node.scan, node, lambda h, v: [jnp.sin(h) + v, h], body_changed=True)
    with pytest.raises(ValueError, match="with the choices inside the loop, sin makes `h`"):
        FORM.emit(site, None, [jnp.float32(0), X])


def test_ladders_and_order():
    (loop,) = loops_of(UPDATES["a sum"], X)
    assert FORM.ladders(loop) == ((None,),)
    assert FORM.reassociates(loop, None)
    assert FORM.copies(loop, None) == 1
    assert FORM.takes == ""
    (loop,) = loops_of(nothing_to_solve, X)
    assert FORM.why_not(loop, None) is None
    assert FORM.ladders(loop) == ()
    (loop,) = loops_of(UPDATES["a sum"], X[:1])
    assert FORM.ladders(loop) == ()


@pytest.mark.parametrize(("length", "offered"), [(32, True), (33, False)])
def test_it_is_not_tried_where_iterations_are_wide_by_themselves(length, offered):
    """One try of such a loop took as long as 50 calls; whoever asks for it gets it."""
    wide = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    (loop,) = loops_of(lambda h: lax.scan(lambda h, _: (h * 0.9 + 1, None), h, None, length)[0], wide)
    assert bool(FORM.ladders(loop)) is offered
    assert FORM.why_not(loop, None) is None
