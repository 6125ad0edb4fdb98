"""`distribute(what)`: what it moves out of a loop, and that results stay those of JAX."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend import core as jec

from autoloop import _apply, _jaxpr, _legal, _outline, _plan, autoloop
from autoloop._forms import FORMS
from autoloop._forms.distribute import Distribute
from autoloop._loops import find_loops
from autoloop._records import Status

FORM = Distribute()
FORMS_BY_NAME = {f.name: f for f in (*FORMS, FORM)}
FAST = {"xla_backend_optimization_level": 0}  # compiling is what these tests do


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


def legal_plans(fun, *args):
    """For every loop every parameter that may run it; all loops at once."""
    found = []
    for loop in loops_of(fun, *args):
        uneven = [k for k in range(2, loop.length) if loop.length % k][:1]
        legal = [p for p in ("heavy", "all", *uneven) if FORM.why_not(loop, p) is None]
        found.append([f"{loop.name}=distribute({p})" for p in legal])
    everywhere = " ".join(plans[-1] for plans in found if plans)
    return list(dict.fromkeys([*(plan for plans in found for plan in plans), everywhere]))


def numbers(value):
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(value))
    return np.asarray(value)


def kind(value):
    return value.shape, value.dtype, getattr(value, "weak_type", False)  # keys have none


def assert_same(got, wanted, rtol, note=""):
    """Relative to the largest magnitude; exact for what is not a floating-point number."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted), note
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert kind(a) == kind(b), note
        a, b = numbers(a), numbers(b)
        if np.issubdtype(b.dtype, np.inexact):
            size = np.max(np.abs(b), initial=1e-30, where=np.isfinite(b))
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * size, err_msg=note)
        else:
            np.testing.assert_array_equal(a, b, err_msg=note)


# ---------------------------------------------------------------- programs

PROGRAMS = {}


def program(*shapes, **flags):
    """Adds a function of arrays of these shapes (or of what a callable makes) to the table."""

    def add(fun):
        PROGRAMS[fun.__name__] = (fun, shapes, flags)
        return fun

    return add


def ramp(*shape, phase=0.3):
    """Different numbers of both signs, in the default precision."""
    return jnp.asarray(np.sin(1.7 * np.arange(math.prod(shape)) + phase).reshape(shape) * 0.9)


def arguments(shapes):
    return [s() if callable(s) else ramp(*s, phase=0.3 + k) for k, s in enumerate(shapes)]


def a_key():
    return jax.random.key(0)


def whole_numbers():
    return jnp.arange(7, dtype=jnp.int32) * 77 - 200


@program(a_key, (4,))
def langevin(key, x):
    def step(c, _):
        key, x = c
        key, sub = jax.random.split(key)
        x = x - 0.1 * (x**3 - x) + 0.2 * jax.random.normal(sub, x.shape, x.dtype)
        return (key, x), x.sum()

    return lax.scan(step, (key, x), None, length=5)


@program((2, 4), (4, 4), (4, 3), (6, 2))
def echo_state_network(w_in, w, w_out, xs):
    def step(h, x):
        h = jnp.tanh(x @ w_in + h @ w)
        return h, jnp.sin(h @ w_out)

    return lax.scan(step, jnp.zeros_like(w[0]), xs)


def _rnn_loss(w, u, b, xs):
    def step(h, x):
        h = jnp.tanh(x @ u + h @ w + b)
        return h, None

    h, _ = lax.scan(step, jnp.zeros((xs.shape[1], w.shape[0]), xs.dtype), xs)
    return jnp.sum(h**2)


@program((3, 3), (2, 3), (3,), (5, 4, 2), grad="slow")
def gradient_of_weights(w, u, b, xs):
    return jax.value_and_grad(_rnn_loss, (0, 1, 2))(w, u, b, xs)


@program((3, 3), (6, 3), grad="slow", vmap="slow")
def gradient_of_tied_weights(w, xs):
    def loss(w):
        step = lambda h, x: (jnp.tanh(w @ (w @ h) - x @ w), None)
        return lax.scan(step, xs[0], xs)[0].sum()

    return jax.grad(loss)(w)


@program((2, 8), (2, 8), (8,), (5, 3, 2), grad="slow", vmap="slow")
def gradient_of_lstm(w, u, b, xs):
    def loss(w, u, b):
        def step(c, x):
            h, s = c
            i, f, o, g = jnp.split(x @ w + h @ u + b, 4, -1)
            s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(s), s), None

        return lax.scan(step, (xs[0], xs[1]), xs)[0][0].sum()

    return jax.grad(loss, (0, 1, 2))(w, u, b)


@program((3, 4), (4,), (4, 2), (4, 5, 3), (4, 5, 2), grad="slow")
def gradient_accumulation(w, b, v, xs, ys):
    def loss(p, x, y):
        return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] - y) ** 2)

    def microbatch(c, xy):
        value, grad = jax.value_and_grad(loss)(c[2], *xy)
        return (jax.tree.map(lambda a, g: a + g / 4, c[0], grad), c[1] + value, c[2]), None

    def optimizer_step(p, _):
        zero = jax.tree.map(jnp.zeros_like, p)
        (grad, value, _), _ = lax.scan(microbatch, (zero, 0.0, p), (xs, ys))
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, grad), value

    return lax.scan(optimizer_step, {"w": w, "b": b, "v": v}, None, length=3)


@program((3,), (7,))
def garch(p, returns):
    def step(c, r):
        variance, total = c
        total = total - 0.5 * (jnp.log(variance) + r * r / variance)
        return (0.1 + p[0] ** 2 * r * r + 0.5 * variance, total), None

    return lax.scan(step, (jnp.ones_like(p[0]), 0.0 * p[0]), returns)[0]


@program(a_key, (4, 4), grad="slow", vmap="slow")
def ising(key, spins):
    mask = jnp.add.outer(jnp.arange(4), jnp.arange(4)) % 2

    def sweep(c, _):
        key, s = c
        key, *subs = jax.random.split(key, 3)
        for parity, sub in enumerate(subs):
            field = sum(jnp.roll(s, shift, axis) for shift in (1, -1) for axis in (0, 1))
            flip = (jax.random.uniform(sub, s.shape) < jnp.exp(-0.8 * s * field)) & (mask == parity)
            s = jnp.where(flip, -s, s)
        return (key, s), s.mean()

    return lax.scan(sweep, (key, jnp.sign(spins)), None, length=4)


@program((3, 3), (3, 4), whole_numbers)
def viterbi(trans, emit, observed):
    def step(score, o):
        paths = score[:, None] + trans
        return paths.max(0) + emit[:, o % 4], paths.argmax(0)

    return lax.scan(step, trans[0], observed)


@program((4, 5), ())
def map_of_scan(xs, a):
    return lax.map(lambda x: lax.scan(lambda h, v: (jnp.tanh(a * h + v), h), x[0], x), xs)


@program((4, 6), (), grad="slow")
def kalman_over_series(series, q):
    def likelihood(y):
        def step(c, v):
            m, p = c[0], c[1] + q * q
            gain = p / (p + 0.5)
            return (m + gain * (v - m), (1 - gain) * p), jnp.log(p + 0.5) + (v - m) ** 2 / (p + 0.5)

        return lax.scan(step, (0.0 * q, 1.0 + 0.0 * q), y)[1].sum()

    return lax.scan(lambda total, y: (total + likelihood(y), None), 0.0, series)[0]


@program((6, 2), (6, 2))
def generalised_advantages(rewards, values):
    def step(c, x):
        advantage, later = c
        reward, value = x
        advantage = reward + 0.9 * later - value + 0.8 * advantage
        return (advantage, value), advantage + value

    zero = jnp.zeros_like(values[0])
    return lax.scan(step, (zero, zero), (rewards, values), reverse=True)


@program((3, 3), (6, 3))
def with_cond(w, xs):
    def step(h, x):
        y = lax.cond(x[0] > 0, lambda v: w @ v, jnp.sin, x)
        return jnp.tanh(h + y), h * y

    return lax.scan(step, xs[0], xs)


@program((3,), (5, 3), grad=False)
def with_while(c, xs):
    def step(h, x):
        y, n = lax.while_loop(lambda s: s[0].sum() < 4, lambda s: (s[0] * 2, s[1] + 1), (jnp.abs(x), 0))
        return jnp.tanh(h + y), n

    return lax.scan(step, c, xs)


@program((3,), (5, 3))
def with_inner_scan(c, xs):
    def step(h, x):
        total, _ = lax.scan(lambda a, v: (jnp.sin(a * v) + x, None), x, x)
        return jnp.tanh(h + total), h

    return lax.scan(step, c, xs)


@program((3, 3), (5, 3))
def with_custom_rule(w, xs):
    @jax.custom_vjp
    def product(w, v):
        return w @ v

    # Not the derivative: a lost rule shows.
    product.defvjp(lambda w, v: (w @ v, v), lambda v, g: (5 * jnp.outer(g, v), 3 * g))
    return lax.scan(lambda h, x: (jnp.tanh(h) + product(w, x), jax.nn.relu(h)), xs[0], xs)


@program((3, 3), (5, 3))
def with_remat(w, xs):
    step = jax.checkpoint(lambda h, x: (jnp.tanh(h + w @ x), jnp.sin(h) @ w))
    return lax.scan(step, xs[0], xs)


@program((3, 3), (4, 3), grad="slow", vmap="slow")
def gradient_through_remat(w, xs):
    def loss(w):
        step = jax.checkpoint(lambda h, x: (jnp.tanh(h @ w + w @ x), None))
        return lax.scan(step, xs[0], xs)[0].sum()

    return jax.grad(loss)(w)


@program(whole_numbers, grad=False, vmap=False)
def integers_accumulate(n):
    def step(c, v):
        return (c[0] + v.astype(jnp.int8), c[1] * v, c[2] - v, c[3] & v, c[4] | v), None

    start = (jnp.int8(100), jnp.int32(3), jnp.int32(5), jnp.int32(-1), jnp.int32(1))
    return lax.scan(step, start, n)


@program((7,), grad=False)
def any_and_all(x):
    return lax.scan(lambda c, v: ((c[0] | (v > 0.8), c[1] & (v < 2)), None), (False, True), x)


@program((6, 3))
def extremes(xs):
    def step(c, x):
        return (jnp.maximum(c[0], jnp.sin(x)), jnp.minimum(x * 2, c[1]), c[2] * (x + 2)), None

    return lax.scan(step, (xs[0], xs[1], xs[2]), xs, reverse=True)


@program((6, 3), (3,))
def accumulates_several_terms(xs, w):
    def step(c, x):
        return (c[0] + x * w - jnp.sin(x), w * x + (c[1] + 1j * x)), None

    return lax.scan(step, (w, w * 2j), xs)


@program((6, 3))
def accumulator_is_an_output(xs):
    def step(c, x):
        total = c[0] + jnp.sin(x)
        return (total, c[1] + x * x), total

    return lax.scan(step, (xs[0], xs[1]), xs)


@program((6, 3), (3, 3))
def accumulator_is_read(xs, w):
    def step(c, x):
        return (c[0] + w @ x, jnp.tanh(c[1] + c[0])), None

    return lax.scan(step, (xs[0], xs[1]), xs)


@program(a_key, (3,), (6, 3))
def fori(key, c, xs):
    def body(i, c):
        return 0.5 * c + jax.random.normal(jax.random.fold_in(key, i), c.shape, c.dtype) * xs[i] + i

    return lax.fori_loop(0, 6, body, c)


@program((5, 3), whole_numbers)
def counters_and_delays(xs, n):
    def step(c, x):
        i, last, before_last, a, b = c
        return (i - 2, x * 2, last, b, a), (i, last - before_last, a, x[0] * i)

    start = (jnp.uint8(3), xs[0], xs[1], n[0], n[1])
    return lax.scan(step, start, xs), lax.scan(step, start, xs, reverse=True)


@program((5, 3), whole_numbers)
def counters_with_steps(xs, n):
    def step(c, x):
        i, j, k, given = c
        return (i + given, j + n[1] * 2, k - n[2], given), (i * x, j, jnp.sin(x) * k)

    return lax.scan(step, (n[0], n[1], n[2], n[3]), xs)


@program((4, 2), (2, 2))
def odd_outputs(xs, w):
    def step(c, x):
        kept, thrown, h = c
        y = x @ w
        _ = jnp.cos(y) * h
        return (kept, y, jnp.tanh(h)), (y, y, x, kept, 2.0, h, jnp.zeros(2), thrown, w[0])

    return lax.scan(step, (xs[0], xs[1], xs[2]), xs)


@program((5,), (3, 3))
def weak_types(xs, w):
    def step(c, x):
        return (c[0] * 0.5 + 1, c[1] + 2.0, c[2] + 1), (c[0] * x, c[2] * 2.5, w @ (w * x))

    return lax.scan(step, (1.0, 0.0, 0), xs)


@program((3, 3), (1, 3))
def length_one(w, xs):
    return lax.scan(lambda c, x: ((c[0] + w @ x, jnp.tanh(c[1] + x)), c[1]), (xs[0], xs[0]), xs)


@program((3, 3), (0, 3))
def length_zero(w, xs):
    return lax.scan(lambda c, x: ((c[0] + w @ x, jnp.tanh(c[1] + x)), c[1]), (w[0], w[1]), xs)


@program(lambda: jax.random.PRNGKey(3), (2, 3))
def raw_keys(key, xs):
    def step(c, x):
        key, sub = jax.random.split(c[0])
        return (key, jnp.tanh(c[1] + x.sum() * jax.random.uniform(sub))), (sub, c[1])

    return lax.scan(step, (key, xs[0, 0]), xs)


@program(lambda: jax.random.split(jax.random.key(1), 5), a_key, (5, 2), (2, 2))
def keys_as_data(keys, key, xs, w):
    def step(c, kx):
        k, x = kx
        last, fixed, _ = c
        return (k, fixed, key), (last, fixed, key, jnp.tanh(w @ x) * jax.random.uniform(last, (2,), x.dtype))

    return lax.scan(step, (key, keys[1], keys[2]), (keys, xs), reverse=True)


@program((3, 3), (5, 3), grad="slow", vmap="slow")
def linear_algebra(a, xs):
    eye = np.eye(3) * 4

    def step(h, x):
        z = jnp.linalg.solve(a + eye, jnp.sort(x))
        return jnp.tanh(h + z), jnp.linalg.cholesky(eye + jnp.outer(x, x))

    return lax.scan(step, xs[0], xs)


@program((1, 1, 2, 2), (4, 1, 1, 5, 5))
def convolutions(kernel, images):
    def step(c, image):
        y = lax.conv_general_dilated(image, kernel, (1, 1), "VALID")
        return (jnp.tanh(c[0] + y), c[1] + y), None

    zero = jnp.zeros_like(images[0, :, :, :4, :4])
    return lax.scan(step, (zero, zero), images)


@program((2, 1, 2, 2), (3, 2, 1, 4, 4), grad="slow")
def gradient_of_convolutions(kernel, images):
    def loss(kernel, image):
        return jnp.sum(jnp.tanh(lax.conv_general_dilated(image, kernel, (2, 1), "SAME")) ** 2)

    return lax.scan(lambda c, x: (c + jax.grad(loss)(kernel, x), None), kernel, images)[0]


@program((40, 40), whole_numbers)
def big_look_up(table, rows):
    def step(h, r):
        return jnp.tanh(h + table[(r + jnp.arange(40)) % 40]), h[0, 0]

    return lax.scan(step, table, rows)


@program((3, 3), (5, 3))
def recurrences_between_products(w, xs):
    def step(c, x):
        a = jnp.tanh(c[0] + w @ x)
        b = jnp.sin(c[1] * (w @ a))
        return (a, b, c[2] * 0.5 + w @ b, c[3] * 0.9 + 1), (c[3], c[2] * c[3])

    return lax.scan(step, (xs[0], xs[1], xs[2], xs[0, 0]), xs)


@program((3,), (5, 3), vmap=False)
def with_callback(w, xs):
    def step(h, x):
        y = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")
        return jnp.tanh(h + jnp.outer(x, x) @ w) + y, y

    return lax.scan(step, xs[0], lax.stop_gradient(xs))


def values_and_gradient(fun, args):
    """The outputs, and the gradient of a number that depends on all floating-point ones."""
    at = [k for k, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating)]

    def value(*args):
        outs = fun(*args)
        leaves = [v for v in jax.tree.leaves(outs) if jnp.issubdtype(v.dtype, jnp.inexact)]
        return sum(jnp.sum(jnp.sin(v.real)) for v in leaves), outs

    return jax.grad(value, at, has_aux=True)


def batched(fun, args):
    axes = [0 if jnp.issubdtype(a.dtype, jnp.floating) else None for a in args]

    def many(*args):
        pairs = [jnp.stack([a, a * 0.7]) if m == 0 else a for a, m in zip(args, axes, strict=True)]
        return jax.vmap(fun, axes)(*pairs)

    return many


def results(fun, plans, args, transform):
    """As written and for each plan, in one compilation."""
    funs = [transform(f, args) for f in (fun, *(planned(plan, fun, *args) for plan in plans))]
    return jax.jit(lambda *args: [f(*args) for f in funs], compiler_options=FAST)(*args)


def check(name, transform, rtol):
    fun, shapes, _ = PROGRAMS[name]
    args = arguments(shapes)
    plans = legal_plans(fun, *args)
    assert plans[0], f"no loop of {name} may be distributed"
    wanted, *got = results(fun, plans, args, transform)
    for plan, have in zip(plans, got, strict=True):
        assert_same(have, wanted, rtol, f"{name} as {plan}")


def names(flag):
    """Rows of the table whose flag is not False; those that take long are marked."""
    flags = {name: flags.get(flag, True) for name, (_, _, flags) in PROGRAMS.items()}
    slow = {"slow": pytest.mark.slow}
    return [pytest.param(n, marks=slow[f]) if f == "slow" else n for n, f in flags.items() if f]


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_as_jax_does(name):
    check(name, lambda fun, _: fun, rtol=2e-5)


@pytest.mark.parametrize("name", [n for n, (_, _, flags) in PROGRAMS.items() if flags.get("grad") in (False, "slow")])
def test_float64(name):
    with jax.enable_x64(True):
        check(name, lambda fun, _: fun, rtol=1e-12)


@pytest.mark.parametrize("name", names("grad"))
def test_float64_and_gradient(name):
    with jax.enable_x64(True):
        check(name, values_and_gradient, rtol=1e-12)


@pytest.mark.parametrize("name", names("vmap"))
def test_batched(name):
    check(name, batched, rtol=2e-5)


@pytest.mark.parametrize("name", ["langevin", "echo_state_network", "big_look_up", "extremes"])
def test_without_jit(name):
    fun, shapes, _ = PROGRAMS[name]
    args = arguments(shapes)
    for what in ("heavy", 2):
        assert_same(planned(f"0=distribute({what})", fun, *args)(*args), fun(*args), rtol=2e-5)


@pytest.mark.parametrize(
    "plan", ["0=distribute(all) 0/0=unroll(2)", "0=distribute(2) 0/0=inline", "0=inline 0/0=distribute(all)"]
)
def test_next_to_other_forms(plan):
    fun, shapes, _ = PROGRAMS["kalman_over_series"]
    args = arguments(shapes)
    assert_same(jax.jit(planned(plan, fun, *args))(*args), fun(*args), rtol=2e-5)


def test_bits_are_equal():
    fun, shapes, _ = PROGRAMS["raw_keys"]
    args = arguments(shapes)
    got, wanted = jax.jit(planned("0=distribute(heavy)", fun, *args))(*args), jax.jit(fun)(*args)
    assert_same((got[0][0], got[1][0]), (wanted[0][0], wanted[1][0]), rtol=0)


# ---------------------------------------------------------------- random bodies

LEAF = st.integers(0, 99)
EQUATION = st.tuples(st.sampled_from(["sin", "mean", "mul", "max", "product", "shift", "loop", "sum"]), LEAF, LEAF)
CARRY = st.tuples(st.sampled_from(["any", "any", "sum", "less", "max", "kept"]), LEAF)


@st.composite
def bodies(draw):
    """A loop's body of random equations: carries, equations, ys; and whether the loop is reversed."""
    return {
        "carries": draw(st.lists(CARRY, min_size=1, max_size=4)),
        "equations": draw(st.lists(EQUATION, min_size=1, max_size=7)),
        "ys": draw(st.lists(LEAF, max_size=3)),
        "reverse": draw(st.booleans()),
        "length": draw(st.integers(1, 5)),
    }


def _equation(name, a, b, w):
    """Values stay within -1 and 1, so that rounding does not grow."""
    if name == "sin":
        return jnp.sin(a)
    if name == "mean":
        return (a + b) / 2
    if name == "mul":
        return a * b
    if name == "max":
        return jnp.maximum(a, b)
    if name == "product":
        return w @ a
    if name == "shift":
        return jnp.roll(a, 1)
    if name == "sum":
        return jnp.full(3, jnp.tanh(jnp.dot(a, b)))
    return lax.scan(lambda h, v: (jnp.tanh(h + v * b), None), a, b)[0]


def _next(rule, before, value):
    if rule == "any":
        return jnp.sin(value)
    if rule == "kept":
        return before
    return {"sum": jnp.add, "less": jnp.subtract, "max": jnp.maximum}[rule](before, value)


def random_loop(body):
    def fun(w, inits, xs, kept):
        def step(c, x):
            values = [*c[:-1], x, kept]
            for name, a, b in body["equations"]:
                values.append(_equation(name, *(jnp.sin(values[k % len(values)]) for k in (a, b)), w))
            new = [
                _next(rule, before, values[-1 - k % len(values)])
                for (rule, k), before in zip(body["carries"], c, strict=False)
            ]
            return [*new, c[-1] + 2], [values[-1 - k % len(values)] for k in body["ys"]]

        init = [*inits[: len(body["carries"])], jnp.int32(0)]
        return lax.scan(step, init, xs[: body["length"]], reverse=body["reverse"])

    return fun


def check_random(body, transform):
    with jax.enable_x64(True):
        fun = random_loop(body)
        args = ramp(3, 3) / 3, ramp(4, 3), ramp(5, 3), ramp(3)
        plans = [p for p in legal_plans(fun, *args) if p]
        wanted, *got = results(fun, plans, args, transform)
        for plan, have in zip(plans, got, strict=True):
            assert_same(have, wanted, 1e-12, plan)


def as_it_is(fun, _):
    return fun


@given(bodies())
@settings(max_examples=24, deadline=None)
def test_random_bodies(body):
    check_random(body, as_it_is)


def may_tie(body):
    """Where values tie, the loop and its reduction share the gradient of a maximum out otherwise."""
    return any(rule == "max" for rule, _ in body["carries"])


@pytest.mark.parametrize("transform", [values_and_gradient, batched])
@given(body=bodies())
@settings(max_examples=5, deadline=None, derandomize=True)
def test_random_bodies_under_transformations(transform, body):
    check_random(body, as_it_is if may_tie(body) and transform is values_and_gradient else transform)


@pytest.mark.fuzz
@pytest.mark.parametrize("transform", [values_and_gradient, batched])
@given(body=bodies())
@settings(max_examples=200, deadline=None)
def test_more_random_bodies(transform, body):
    check_random(body, as_it_is if may_tie(body) and transform is values_and_gradient else transform)


# ---------------------------------------------------------------- memory


def products(w, xs):
    """Distributed, the products of all iterations stand side by side; what is sorted no XLA fuses away."""
    return lax.scan(lambda h, x: (h * 0.5 + jnp.sort(jnp.outer(x, x) @ w).max(), None), 0.0, xs)[0]


def test_what_needs_more_memory_than_allowed_is_skipped_with_the_numbers(quick):
    args = ramp(16, 16), ramp(50, 16)

    def tuned(limit):
        return autoloop(forms=["distribute"], max_memory_bytes=limit)(products).warmup(*args)

    free = tuned(None)
    written, distributed = free.trials[0], free.trial("0=distribute(heavy)")
    assert distributed.ok
    assert distributed.peak_bytes > 2 * written.peak_bytes
    limit = (written.peak_bytes + distributed.peak_bytes) // 2
    record = tuned(limit)
    skipped = record.trial("0=distribute(heavy)")
    assert skipped.status is Status.SKIPPED
    assert skipped.reason == f"needs {distributed.peak_bytes:,} bytes of memory, {limit:,} are allowed or free"
    assert record.winner != "0=distribute(heavy)"


# ---------------------------------------------------------------- what moves


def scans_and_rest(text, fun, *args):
    """The primitives inside each scan, in order, and those outside; calls are looked into."""
    jaxpr = jax.make_jaxpr(planned(text, fun, *args))(*args)
    scans, rest = [], []

    def visit(jaxpr):
        for eqn in jaxpr.jaxpr.eqns:
            if eqn.primitive.name == "scan":
                scans.append([e.primitive.name for e in _jaxpr.equations(_jaxpr.bodies(eqn)[0])])
                continue
            rest.append(eqn.primitive.name)
            for body in _jaxpr.bodies(eqn):
                visit(body)

    visit(jaxpr)
    return scans, rest


def moved_in(name, text):
    fun, shapes, _ = PROGRAMS[name]
    return scans_and_rest(text, fun, *arguments(shapes))


def test_a_gradient_of_weights_is_one_product():
    (forward, backward), rest = moved_in("gradient_of_weights", "1=distribute(heavy)")
    assert forward.count("dot_general") == 2
    assert backward.count("dot_general") == 1  # the recurrence's own
    assert rest.count("dot_general") == 2  # of w and of u
    assert "add_any" in backward  # the bias is cheap: its gradient stays


def test_everything_means_cheap_sums_too():
    (_, backward), rest = moved_in("gradient_of_weights", "1=distribute(all)")
    assert backward.count("dot_general") == 1
    assert rest.count("dot_general") == 2
    assert "reduce_sum" in rest


def test_input_and_readout_products_move():
    for what in ("heavy", "all"):
        (scan,), rest = moved_in("echo_state_network", f"0=distribute({what})")
        assert scan.count("dot_general") == 1
        assert rest.count("dot_general") == 2


def test_accumulated_gradients_leave_no_loop():
    scans, rest = moved_in("gradient_accumulation", "0/0=distribute(heavy)")
    (step,) = scans
    assert step.count("dot_general") == 5  # two forward, three backward: none to the data
    assert "scan" not in step
    assert "dot_general" not in rest


def test_a_gradient_of_kernels_is_one_convolution():
    scans, rest = moved_in("gradient_of_convolutions", "0=distribute(heavy)")
    assert scans == []
    assert rest.count("conv_general_dilated") == 2
    fun, shapes, _ = PROGRAMS["gradient_of_convolutions"]
    jaxpr = jax.make_jaxpr(planned("0=distribute(heavy)", fun, *arguments(shapes)))(*arguments(shapes))
    found = [e.params for e in _jaxpr.equations(jaxpr) if e.primitive.name == "conv_general_dilated"]
    assert [p["feature_group_count"] for p in found] == [1, 1]


def test_long_sums_of_products():
    def fun(w, xs):
        def step(c, x):
            total = w @ x
            for _ in range(1100):
                total = total + w @ x
            return c + total, None

        return lax.scan(step, xs[0], xs)[0]

    (loop,) = loops_of(fun, ramp(3, 3), ramp(5, 3))
    assert FORM.why_not(loop, "heavy") is None


def test_random_numbers_leave_the_scan_of_the_state():
    (keys, state), rest = moved_in("langevin", "0=distribute(heavy)")
    assert "random_split" in keys
    assert "random_bits" not in keys
    assert not any(name.startswith("random") for name in state)
    assert "random_bits" in rest
    assert "erf_inv" in rest  # what is made of the bits alone, and is no larger


def test_an_induction_variable_is_no_recurrence():
    (state,), rest = moved_in("fori", "0=distribute(heavy)")
    assert not any(name.startswith("random") for name in state)
    assert "random_fold_in" in rest


def test_independent_recurrences_share_a_scan():
    def fun(xs, w):
        def step(c, x):
            return (jnp.tanh(c[0] + w @ x), jnp.sin(c[1] * 2)), w @ c[1]

        return lax.scan(step, (xs[0], xs[1]), xs)

    (scan,), rest = scans_and_rest("0=distribute(heavy)", fun, ramp(5, 3), ramp(3, 3))
    assert {"tanh", "sin"} <= set(scan)
    assert rest.count("dot_general") == 2


def test_a_recurrence_joins_the_scan_that_reads_it():
    """The clock could run with the keys; then its values would have to be kept."""

    def fun(key, x):
        def step(c, _):
            key, t, x = c
            key, sub = jax.random.split(key)
            return (key, jnp.cos(t), jnp.tanh(x + t * jax.random.normal(sub))), None

        return lax.scan(step, (key, x, x), None, length=4)

    (keys, state), _ = scans_and_rest("0=distribute(heavy)", fun, jax.random.key(0), jnp.ones(()))
    assert "cos" not in keys
    assert "cos" in state


def test_work_that_never_changes_runs_once():
    def fun(w, xs):
        return lax.scan(lambda h, x: (jnp.tanh(h + (w @ w) @ x), None), xs[0], xs)

    (scan,), rest = scans_and_rest("0=distribute(heavy)", fun, ramp(3, 3), ramp(5, 3))
    assert "dot_general" not in scan
    assert rest.count("dot_general") == 2


@pytest.mark.parametrize("name", ["any_and_all", "extremes", "integers_accumulate", "accumulates_several_terms"])
def test_accumulators_become_reductions(name):
    scans, rest = moved_in(name, "0=distribute(all)")
    assert scans == []
    assert any(p.startswith("reduce") for p in rest)


def test_an_accumulator_that_is_an_output_stays_a_recurrence():
    (scan,), rest = moved_in("accumulator_is_an_output", "0=distribute(all)")
    assert scan == ["add"]
    assert rest.count("reduce_sum") == 1


def test_what_grows_when_stacked_is_computed_where_it_is_read():
    def fun(w, xs):
        def step(h, x):
            return jnp.tanh(h + jnp.exp(jnp.tile(w @ x, 5))), w @ jnp.sin(h[:3])

        return lax.scan(step, jnp.zeros(15), xs)

    (scan,), rest = scans_and_rest("0=distribute(heavy)", fun, ramp(3, 3), ramp(5, 3))
    assert "exp" in scan
    assert "sin" in scan  # as large as what it is computed from
    assert rest.count("dot_general") == 2


def test_a_derivative_still_recomputes():
    fun, shapes, _ = PROGRAMS["with_remat"]
    args = arguments(shapes)
    run = planned("0=distribute(heavy)", fun, *args)
    jaxpr = jax.make_jaxpr(jax.grad(lambda *args: run(*args)[1].sum()))(*args)
    again = [e for e in _jaxpr.equations(jaxpr) if e.params.get("differentiated")]
    assert any(e.primitive.name == "tanh" for r in again for b in _jaxpr.bodies(r) for e in _jaxpr.equations(b))


def test_blocks():
    fun, shapes, _ = PROGRAMS["echo_state_network"]
    jaxpr = jax.make_jaxpr(planned("0=distribute(4)", fun, *arguments(shapes)))(*arguments(shapes))
    lengths = [e.params["length"] for e in _jaxpr.equations(jaxpr) if e.primitive.name == "scan"]
    assert lengths == [1, 4, 2]  # one block of 4, and a remainder of 2


# ---------------------------------------------------------------- what it may not run


def fake_primitive(name):
    primitive = jec.Primitive(name)
    primitive.def_abstract_eval(lambda aval: aval)
    return primitive.bind


def with_print(x):
    return lax.scan(lambda c, v: (c + v, jax.debug.print("{}", v)), 0.0, x)


def with_odd_keys(x):
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 7)
    return lax.scan(lambda c, k: (jnp.tanh(c + jax.random.uniform(k)), c), x[0], keys)


def with_bits(x):
    state = jnp.zeros(4, jnp.uint32)
    return lax.scan(lambda c, v: (jnp.tanh(c * v) + lax.rng_bit_generator(state, ())[1], None), x[0], x)


def with_while_in_cond(x):
    def loop(v):
        return lax.while_loop(lambda u: u < 1, lambda u: u * 2, v)

    return lax.scan(lambda c, v: (jnp.tanh(c + lax.cond(v > 0, loop, lambda u: u, v)), None), x[0], x)


ONE = "the whole body is one recurrence through `c`: nothing can move"
REFUSED = {
    "one recurrence": (lambda x: lax.scan(lambda c, v: (jnp.tanh(c + v), c), 0.0, x), "all", ONE),
    "a call": (lambda x: lax.scan(jax.jit(lambda c, v: (jnp.tanh(c + v), c)), 0.0, x), "all", ONE),
    "a sum that is an output": (
        lambda x: lax.scan(lambda c, v: (c + v,) * 2, 0.0, x),
        "all",
        ONE,
    ),
    "a swap": (
        lambda x: lax.scan(lambda c, v: ((c[1], jnp.sin(c[0] * v)), None), (0.5, 1.0), x),
        "all",
        "the whole body is one recurrence through `c[0]` and `c[1]`: nothing can move",
    ),
    "two recurrences": (
        lambda x: lax.scan(lambda c, v: ((jnp.sin(c[0]), jnp.cos(c[1] * v)), None), (0.5, 1.0), x),
        "all",
        "the whole body is recurrences through `c[0]` and `c[1]`: nothing can move",
    ),
    "many carries": (
        lambda x: lax.scan(lambda c, v: ((*c[1:], jnp.tanh(c[0] * v)), None), (x[0],) * 6, x),
        "all",
        "the whole body is one recurrence through 6 carries: nothing can move",
    ),
    "half precision sums": (
        lambda x: lax.scan(lambda c, v: (c + v, None), jnp.bfloat16(0), x.astype(jnp.bfloat16)),
        "all",
        ONE,
    ),
    "a floating counter": (lambda x: lax.scan(lambda c, v: (c + 0.1, c), 0.0, x), "all", ONE),
    "cheap work": (
        lambda x: lax.scan(lambda c, v: (jnp.tanh(c + jnp.sin(v * 2)), jnp.cos(c)), 0.0, x),
        "heavy",
        "outside the recurrence through `c` the body holds nothing worth moving (mul, sin, cos)",
    ),
    "side effects": (with_print, "heavy", "the body has side effects (Debug), whose order would change"),
    "rbg keys": (
        with_odd_keys,
        "heavy",
        "the body holds random_bits with keys that are not threefry, whose bits would change, "
        "and nothing else that could leave the recurrence through `c`",
    ),
    "raw bits": (
        with_bits,
        "heavy",
        "the body holds rng_bit_generator with keys that are not threefry, whose bits would change, "
        "and nothing else that could leave the recurrence through `c`",
    ),
    "a while inside a cond": (
        with_while_in_cond,
        "heavy",
        "the body holds a while inside a cond, which may never end where its branch is not taken, "
        "and nothing else that could leave the recurrence through `c`",
    ),
    **{
        name: (
            lambda x, name=name: lax.scan(lambda c, v: (c, fake_primitive(name)(v)), None, x),
            "all",
            f"the body holds {name}, which means something else for many iterations at once, "
            "and nothing else that could leave the scan",
        )
        for name in ("unvmap_any", "unvmap_all", "unvmap_max", "nonbatchable", "pure_callback")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    fun, parameter, reason = REFUSED[case]
    (loop,) = loops_of(fun, jnp.linspace(-1.0, 1.0, 7))
    assert FORM.why_not(loop, parameter) == reason
    assert (parameter,) not in FORM.ladders(loop)


@pytest.mark.parametrize("parameter", [0, 1, 8, -1, "light", None])
def test_refuses_parameters(parameter):
    (loop,) = loops_of(lambda x: lax.scan(lambda c, v: (c + v, None), 0.0, x), ramp(7))
    wanted = f"write heavy, all, or a number of iterations from 2 to the length 7; got {parameter}"
    assert FORM.why_not(loop, parameter) == wanted


def test_pinned_equations_stay_in_the_scan():
    (scan,), rest = moved_in("with_callback", "0=distribute(heavy)")
    assert "pure_callback" in scan
    assert "dot_general" not in scan

    def odd_bits(w, xs):
        keys = jax.random.split(jax.random.key(0, impl="rbg"), 5)
        step = lambda c, kx: (jnp.tanh(c + w @ kx[1]), jax.random.uniform(kx[0]))
        return lax.scan(step, xs[0], (keys, xs))

    args = ramp(3, 3), ramp(5, 3)
    (scan,), rest = scans_and_rest("0=distribute(all)", odd_bits, *args)
    assert "random_bits" in scan
    assert "dot_general" in rest
    got = jax.jit(planned("0=distribute(all)", odd_bits, *args))(*args)[1]
    assert_same(got, jax.jit(odd_bits)(*args)[1], rtol=0)


# ---------------------------------------------------------------- what the search is told


def _projected(length, cheap):
    def fun(w, xs):
        def step(h, x):
            return jnp.tanh(h + w @ x), jnp.cos(h) if cheap else None

        return lax.scan(step, xs[0], xs)

    return loops_of(fun, ramp(3, 3), ramp(length, 3))[0]


@pytest.mark.parametrize(
    ("length", "cheap", "ladders"),
    [
        (7, False, (("heavy",),)),
        (7, True, (("heavy",), ("all",))),
        (64, True, (("heavy",), ("all",))),
        (65, True, (("heavy",), ("all",), (64,))),
        (1, True, ()),
    ],
)
def test_ladders(length, cheap, ladders):
    loop = _projected(length, cheap)
    assert FORM.ladders(loop) == ladders
    assert all(FORM.why_not(loop, rung) is None for ladder in ladders for rung in ladder)


def test_ladders_leave_out_what_is_next_to_nothing():
    def fun(x):
        def step(h, v):
            h = lax.fori_loop(0, 50, lambda i, h: jnp.tanh(h + v), h)
            return h, jnp.cos(h)

        return lax.scan(step, x[0], x)

    loop = loops_of(fun, ramp(5, 3))[0]
    assert FORM.why_not(loop, "all") is None
    assert FORM.ladders(loop) == ()


def test_ladders_leave_batches_to_vmap():
    (loop,) = loops_of(lambda x: lax.map(lambda v: jnp.outer(v, v) @ v, x), ramp(5, 3))
    assert FORM.why_not(loop, "all") is None
    assert FORM.ladders(loop) == ()


def test_copies():
    loop = _projected(7, cheap=True)
    assert [FORM.copies(loop, p) for p in ("heavy", "all", 2, 7)] == [1, 1, 2, 1]
    assert not FORM.on_host


@pytest.mark.parametrize(
    ("step", "heavy", "everything"),
    [
        (lambda c, x: (c + x @ x, None), True, True),
        (lambda c, x: (c * x[0], None), True, True),
        (lambda c, x: (jnp.maximum(c, x[0]), None), False, False),
        (lambda c, x: (jnp.tanh(c + jnp.outer(x, x).sum()), jnp.cos(c)), False, False),
    ],
)
def test_reassociates(step, heavy, everything):
    (loop,) = loops_of(lambda xs: lax.scan(step, xs[0, 0], xs), ramp(5, 3))
    assert [FORM.reassociates(loop, p) for p in ("heavy", "all")] == [heavy, everything]


def test_reassociates_only_where_the_sum_moves():
    def fun(w, xs):
        step = lambda c, x: ((jnp.tanh(c[0] + w @ x), c[1] + c[0]), None)
        return lax.scan(step, (xs[0], xs[0]), xs)

    (loop,) = loops_of(fun, ramp(3, 3), ramp(5, 3))
    assert [FORM.reassociates(loop, p) for p in ("heavy", "all", 2)] == [False, True, True]
