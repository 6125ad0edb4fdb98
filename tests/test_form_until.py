"""`until`: which loops may stop early, and that those that do give what JAX gives, bit for bit."""

from __future__ import annotations

import functools
from typing import NamedTuple

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
from autoloop._forms.until import Until
from autoloop._loops import find_loops

FORM = Until()
forms = {f.name: f for f in (*FORMS, Until())}
# Few bits each, and products with powers of two: XLA may contract a product and a sum in one program
# and not in another, and these come out the same. (Newton's steps do round; they agree all the same.)
A = jnp.array([0.25, 2.0, 50.0, 7.0])
XS = jnp.arange(1.0, 13.0) / 16
LENGTH = 12


def loops_of(fun, *args):
    return find_loops(_outline.outline(_jaxpr.trace(jax.jit(fun), args, {}).jaxpr))


def planned(text, fun, *args):
    """`fun` with a plan applied, as a function of like arguments."""
    traced = _jaxpr.trace(jax.jit(fun), args, {})
    block, plan = _outline.outline(traced.jaxpr), _plan.Plan.parse(text)
    assert _legal.why_not(plan, find_loops(block), forms) is None

    def run(*inner):
        outs = _apply.Applied(plan, forms).run_block(block, *jax.tree.leaves((inner, {})))
        return jax.tree.unflatten(traced.out_tree, outs)

    return run


def numbers(value):
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def assert_equal(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        a, b = jnp.asarray(a), jnp.asarray(b)
        np.testing.assert_array_equal(numbers(a), numbers(b))
        assert numbers(a).tobytes() == numbers(b).tobytes()  # signs of zeros too


# ---------------------------------------------------------------- loops that may stop early


def newton_step(x, a):
    return x - (x * x * x - a) / (3 * x * x)


def flag_in_carry(a):
    def step(state):
        x, count, _ = state
        new = newton_step(x, a)
        return new, count + 1, jnp.abs(new - x) < 1e-3

    def body(state, _):
        return lax.cond(state[2], lambda s: s, step, state), None

    return lax.scan(body, (a, 0, False), None, length=LENGTH)[0]


def go_on_flag(a):
    def body(state, x):
        def step(s):
            return (s[0] * 0.5, s[0] * x > 1e-2)

        return lax.cond(state[1], step, lambda s: s, state), None

    return lax.scan(body, (a, True), XS)[0]


def false_once_over(a):  # as jaxopt writes it: the branch that changes nothing returns a literal
    def body(state, x):
        def step(s):
            return (s[0] * 0.5 + x, s[0] > 1e-1)

        return lax.cond(state[1], step, lambda s: (s[0], False), state), None

    return lax.scan(body, (a, True), XS[:3])[0]


def condition_from_numbers(a):
    def body(i, x):
        go = jnp.abs(x * x * x - a) > 1e-3
        return jnp.where(go, newton_step(x, a), x)

    return lax.fori_loop(0, LENGTH, body, a)


def many_shapes(a):
    def body(state, x):
        vector, matrix, count, done = state
        new = (vector * 0.5, matrix - x, count + 1, jnp.max(vector) < 0.3)
        return jax.tree.map(lambda n, o: jnp.where(done, o, n), new, state), None

    init = (jnp.full(3, a), jnp.full((2, 3), a), jnp.int32(0), jnp.array(False))
    return lax.scan(body, init, XS)[0]


def two_flags(a):
    def body(state, x):
        value, best, done = state
        go = ~done & (value > 0.05)
        new = value * 0.5
        best = jnp.where(go & (new < best), new, best)
        return (jnp.where(go, new, value), best, done | (new < 0.02 * x)), None

    return lax.scan(body, (a, a, jnp.array(False)), XS)[0]


def condition_written_twice(a):
    def body(state, x):
        value, best = state
        return (jnp.where(value < 0.2, value, value * x), jnp.where(value < 0.2, best, value + x)), None

    return lax.scan(body, (a, a), XS)[0]


def flag_set_at_once(a):
    def body(state, _):
        value, done = state
        new = jnp.sqrt(value)
        done = done | (jnp.abs(new - value) < 1e-1)
        return (jnp.where(done, value, new), done), None

    return lax.scan(body, (a, False), None, length=LENGTH)[0]


def three_branches(a):
    def body(state, _):
        value, phase = state

        def shrink(v, p):
            return (v * 0.5, jnp.where(v < 1.0, 2, p))

        def grow(v, p):
            return (v * 1.5, jnp.where(v > 9.0, 0, p))

        return lax.switch(phase, (shrink, grow, lambda v, p: (v, p)), value, phase), None

    return lax.scan(body, (a, 1), None, length=20)[0]


def masked_count(a):
    def body(state, _):
        value, count, left = state
        active = value > 0.1
        return (jnp.where(active, value * 0.5, value), count + active, left - active.astype("int32")), None

    return lax.scan(body, (a, 0, jnp.int32(40)), None, length=LENGTH)[0]


def counts_on(a):
    def body(i, state):
        value, down, small = state
        value = lax.cond(value < 0.1, lambda v: v, lambda v: v * 0.5 + i / 256, value)
        return value, down - 3, small + jnp.int8(100)  # the last one wraps

    return lax.fori_loop(2, LENGTH, body, (a, jnp.full(2, 9), jnp.int8(7)))


def typed_key(a):
    def step(state):
        key, value = state
        key, sub = jax.random.split(key)
        return key, value - jax.random.uniform(sub)

    def body(state, _):
        return lax.cond(state[1] < 0.2, lambda s: s, step, state), None

    key = jax.random.fold_in(jax.random.key(0), (10 * a).astype(int))
    return lax.scan(body, (key, a), None, length=LENGTH)[0]


def keys_stacked(a):
    def body(state, _):
        key, value = state
        new = jax.random.split(key, 1)[0], value * 0.5
        state = jax.tree.map(functools.partial(jnp.where, value > 0.2), new, state)
        return state, state[0]

    return lax.scan(body, (jax.random.key(0), a), None, length=5)


def trajectory(a):
    def body(value, x):
        new = lax.cond(value < 0.2, lambda v: v, lambda v: v * 0.5 + x / 64, value)
        return new, (value, jnp.sin(new) * a, jnp.full(2, new), jnp.where(value < 0.2, -1.0, x))

    return lax.scan(body, a, XS)


def trajectory_reversed(a):
    def body(value, x):
        new = jnp.where(value < 0.2, value, value * 0.5 + x / 64)
        return new, (new, value)

    return lax.scan(body, a, XS, reverse=True)


def inside_calls(a):
    @jax.checkpoint
    @jax.jit
    def body(state, x):
        value, scale = lax.optimization_barrier(state)
        done = jax.jit(lambda v: jnp.reshape(v < 0.3, (1,)))(value)
        new = jax.jit(lambda d, v: jnp.where(d[0], v, v * scale + x / 64))(done, value)
        return (new, lax.stop_gradient(scale)), None

    return lax.scan(body, (a, 0.5), XS)[0]


@jax.custom_jvp
def halved(state):
    value, done = state
    return jnp.where(done, value, value * 0.5), done | (value < 0.4)


@halved.defjvp
def halved_jvp(primals, tangents):
    ((value, done),), ((dot, done_dot),) = primals, tangents
    return halved((value, done)), (jnp.where(done, dot, dot * 0.5), done_dot)


def custom_rule(a):
    return lax.scan(lambda s, _: (halved(s), None), (a, False), None, length=LENGTH)[0]


def always_done(a):
    def body(v, x):
        return (lax.cond(v > -1e9, lambda v: v, lambda v: v * x, v),) * 2

    return lax.scan(body, a, XS)


def never_done(a):
    def body(value, x):
        done = value * jnp.nan < 1.0
        return (jnp.where(done, value, value * x),) * 2

    return lax.scan(body, a, XS)


def weak(a):
    def body(state, _):
        value, count = state

        def step():
            return (value * 0.5, count + 2)

        return lax.cond(value < 0.3, lambda: (value, count), step), value

    return a, lax.scan(body, (3.0, 0), None, length=LENGTH)


def half_precision(a):
    def body(value, x):
        return jnp.where(value < 0.2, value, value * 0.5 - x), None

    return lax.scan(body, a.astype(jnp.bfloat16), XS.astype(jnp.bfloat16) / 16)[0]


def of_length(length, a):
    def body(value, x):
        return jnp.where(value < 0.2, value, value * x), value

    return lax.scan(body, a, XS[:length])


def lane_conditions(a):
    """A condition for each lane, which selects for carries of several shapes share."""

    def body(state, x):
        value, wide, done = state

        def keep(new, old):
            return jnp.where(jnp.expand_dims(done, range(1, old.ndim)), old, new)

        new = (value * 0.5, wide * 0.5 + x, value < 0.3)
        return jax.tree.map(keep, new, state), jnp.sum(value)

    wide = jnp.ones((4, 2, 3)) * jnp.reshape(A, (4, 1, 1))
    return lax.scan(body, (A * a, wide, jnp.zeros(4, bool)), XS)


def of_lanes(solve):
    return lambda a: jax.vmap(solve)(A * a)


LEGAL = {
    **{
        fun.__name__: fun
        for fun in (
            flag_in_carry, go_on_flag, false_once_over, condition_from_numbers, many_shapes, two_flags,
            condition_written_twice,
            flag_set_at_once, three_branches, masked_count, counts_on, typed_key, keys_stacked, trajectory,
            trajectory_reversed, inside_calls, custom_rule, always_done, never_done, weak, half_precision,
            lane_conditions,
        )
    },
    **{
        f"lanes_of_{fun.__name__}": of_lanes(fun)
        for fun in (
            flag_in_carry, false_once_over, condition_from_numbers, many_shapes, three_branches, counts_on,
            typed_key, trajectory, inside_calls,
        )
    },
    "length_0": functools.partial(of_length, 0),
    "length_1": functools.partial(of_length, 1),
    "lanes_of_length_1": of_lanes(functools.partial(of_length, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_agrees_with_jax(name):
    fun, a = LEGAL[name], jnp.float32(2.5)
    new = planned("0=until", fun, a)
    assert_equal(jax.jit(new)(a), jax.jit(fun)(a))
    assert LENGTH not in [loop.length for loop in loops_of(new, a)]  # it is a while now
    if hasattr(jec, "check_jaxpr"):  # not in jax 0.8
        jec.check_jaxpr(jax.make_jaxpr(new)(a).jaxpr)


@pytest.mark.parametrize("name", ["flag_in_carry", "trajectory_reversed", "counts_on", "keys_stacked"])
def test_agrees_without_jit(name):
    fun, a = LEGAL[name], jnp.float32(2.5)
    assert_equal(planned("0=until", fun, a)(a), fun(a))


@pytest.mark.parametrize(
    "name",
    ["flag_in_carry", "trajectory", "counts_on", "condition_from_numbers", "keys_stacked", "lane_conditions"],
)
def test_agrees_under_vmap(name):
    fun = LEGAL[name]
    new = planned("0=until", fun, A[0])
    assert_equal(jax.jit(jax.vmap(new))(A), jax.jit(jax.vmap(fun))(A))


@pytest.mark.parametrize("name", ["trajectory", "condition_from_numbers", "lanes_of_inside_calls", "custom_rule"])
def test_agrees_under_forward_differentiation(name):
    fun, a = LEGAL[name], jnp.float32(2.5)
    new = planned("0=until", fun, a)

    @jax.jit
    def tangents(a):
        return [
            [t for t in jax.tree.leaves(jax.jvp(f, (a,), (jnp.ones_like(a),))[1]) if t.dtype == a.dtype]
            for f in (new, fun)
        ]

    got, wanted = tangents(a)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), got, wanted)


def test_forward_differentiation_inside():
    def solve(a):
        return jax.jvp(condition_from_numbers, (a,), (jnp.ones_like(a),))

    fun = of_lanes(solve)
    assert_equal(jax.jit(planned("0=until", fun, 1.0))(1.0), jax.jit(fun)(1.0))


def test_is_not_differentiable_in_reverse():
    assert not FORM.reverse_differentiable
    new = planned("0=until", condition_from_numbers, 2.0)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(new)(2.0)


def test_forward_half_of_a_gradient():
    """The scan that records what the backward one reads: after the end it records zeros."""
    fun = jax.value_and_grad(lambda a: flag_in_carry(a)[0])
    first, second = loops_of(fun, 2.0)
    assert FORM.why_not(first, None) is None
    assert FORM.why_not(second, None) is not None
    assert_equal(jax.jit(planned("0=until", fun, 2.0))(2.0), jax.jit(fun)(2.0))


# ---------------------------------------------------------------- in a nest


def time_steps(solve):
    def step(y, drive):
        z, *_ = jax.vmap(solve)(jnp.abs(y) + drive)
        return 0.5 * y + 0.25 * z, z

    return lambda y: lax.scan(step, y, XS)


@pytest.mark.parametrize("around", ["", "0=unroll(4) ", "0=inline "])
def test_inside_a_loop_of_time_steps(around):
    fun = time_steps(flag_in_carry)
    # More copies of the body may round in other ways, with or without this form.
    wanted = jax.jit(planned(around, fun, A) if around else fun)(A)
    assert_equal(jax.jit(planned(f"{around}0/0=until", fun, A))(A), wanted)


def test_inside_a_python_loop():
    fun = time_steps(flag_in_carry)
    traced = _jaxpr.trace(jax.jit(fun), (A,), {})
    plan = _plan.Plan.parse("0=python(1) 0/0=until")
    program = _apply.Applied(plan, forms).build_block(_outline.outline(traced.jaxpr))
    assert_equal(jax.tree.unflatten(traced.out_tree, program(A)), jax.jit(fun)(A))


def around_a_loop(a):
    def body(value, _):
        def inner(v, x):
            return (v * 0.5 + x, v)

        def step(v):
            return lax.scan(inner, v, XS[:4])[0] * 0.25

        return lax.cond(value < 0.3, lambda v: v, step, value), value

    return lax.scan(body, a, None, length=LENGTH)


def of_a_loop(a):
    def body(value, _):
        size = lax.fori_loop(0, 4, lambda i, s: s + value * i, 0.0)
        return jnp.where(size < 0.3, value, value * 0.5), value

    return lax.scan(body, a, None, length=LENGTH)


@pytest.mark.parametrize("fun", [around_a_loop, of_a_loop, of_lanes(around_a_loop)])
@pytest.mark.parametrize("inner", ["", " 0/0=inline", " 0/0=unroll(2)"])
def test_around_another_form(fun, inner):
    wanted = jax.jit(planned(inner, fun, 2.5) if inner else fun)(2.5)
    assert_equal(jax.jit(planned(f"0=until{inner}", fun, 2.5))(2.5), wanted)


# ---------------------------------------------------------------- how many rounds it runs


def counted(calls, value):
    def called(v):
        calls.append(1)
        return np.asarray(v)

    return jax.pure_callback(called, jax.ShapeDtypeStruct(value.shape, value.dtype), value)


class Rounds(NamedTuple):
    from_flag: bool  # the condition is in the carry, or else computed from it with rounding
    stacks: bool
    start: float
    wanted: int


@pytest.mark.parametrize(
    "case",
    [
        Rounds(from_flag=True, stacks=False, start=1.0, wanted=3),
        Rounds(from_flag=True, stacks=False, start=0.01, wanted=1),
        Rounds(from_flag=True, stacks=False, start=jnp.nan, wanted=LENGTH),
        Rounds(from_flag=True, stacks=True, start=1.0, wanted=4),  # one more computes the other ys
        Rounds(from_flag=False, stacks=False, start=1.0, wanted=4),  # one more finds that all is done
        Rounds(from_flag=False, stacks=True, start=0.01, wanted=1),
        Rounds(from_flag=False, stacks=False, start=jnp.nan, wanted=LENGTH),
    ],
)
def test_rounds(case):
    calls = []

    def fun(start):
        def body(state, _):
            value, done = state
            if not case.from_flag:
                done = value * 1.1 < 0.15
            new = counted(calls, value) * 0.5
            after = (jnp.where(done, value, new), jnp.where(done, state[1], new < 0.15))
            return after, value if case.stacks else None

        return lax.scan(body, (start, jnp.array(False)), None, length=LENGTH)

    start = jnp.float32(case.start)
    new = jax.jit(planned("0=until", fun, start))
    got = jax.block_until_ready(new(start))
    assert len(calls) == case.wanted
    assert_equal(got, jax.jit(fun)(start))


def test_exact_condition_is_looked_up_before_the_first_round():
    calls = []

    def fun(a):
        def body(v, _):
            return (jnp.where(v < 3.0, v, counted(calls, v)), None)

        return lax.scan(body, a, None, length=LENGTH)[0]

    assert jax.jit(planned("0=until", fun, jnp.float32(2.0)))(jnp.float32(2.0)) == 2.0
    assert not calls


# ---------------------------------------------------------------- loops that may not


def scanned(body, init):
    return lambda: lax.scan(body, init, XS)


def done_at(value):
    return value < 0.2


def kept(value, new):
    return jnp.where(done_at(value), value, new)


def with_effects(v, x):
    jax.debug.print("{}", v)
    return kept(v, v * x), None


def two_conditions(state, x):
    a, b = state
    return (jnp.where(a < 0.2, a, a * x), jnp.where(b < 0.3, b, b * x)), None


@jax.jit
def small(value):
    return jnp.sin(value) < 0.2


def one_condition_of_two(state, x):
    a, b = state
    return (jnp.where(small(a), a, a * x), jnp.where(small(b), b, b * x)), None


def swapped(state, x):
    a, b = state
    return (jnp.where(a < 0.2, b, a * x), jnp.where(a < 0.2, a, b)), None


def reset(state, x):
    a, done = state
    return (jnp.where(done, 0.0, a * x), jnp.where(done, done, a < 0.2)), None


REFUSED = {
    "effects": (
        scanned(with_effects, 1.0),
        "its body has side effects (Debug), of which none may be left out",
    ),
    "no carry": (
        lambda: lax.map(lambda x: jnp.where(x < 0.5, x, x * x), XS),
        "without a carry no iteration can tell that it is the last",
    ),
    "no condition": (
        scanned(lambda v, x: (v * x, None), 1.0),
        "no carry is kept under a condition, so none tells that the loop is over",
    ),
    "masked by a product": (  # 0 * inf is no zero
        scanned(lambda v, x: (v + (v > 0.2) * x, None), 1.0),
        "no carry is kept under a condition, so none tells that the loop is over",
    ),
    "condition reads xs": (
        scanned(lambda v, x: (jnp.where(x < 0.5, v, v * x), None), 1.0),
        "the condition reads stacked inputs, so that it need not hold for ever",
    ),
    "condition reads xs in part": (
        scanned(lambda v, x: (jnp.where(v * x < 0.5, v, v * x), None), 1.0),
        "the condition reads stacked inputs, so that it need not hold for ever",
    ),
    "condition reads a counter": (
        lambda: lax.fori_loop(0, 9, lambda i, v: jnp.where(i > 4, v, v * 0.5), 1.0),
        "the condition reads the counter in `i`, so that it need not hold for ever",
    ),
    "condition reads consts only": (
        lambda: (lambda c: lax.scan(lambda v, x: (jnp.where(c, v, v * x), None), 1.0, XS))(XS[0] > 0.5),
        "the condition reads no carry, so that it never changes",
    ),
    "a carry goes on": (
        scanned(lambda s, x: ((kept(s[0], s[0] * x), s[1] + s[0]), None), (1.0, 0.0)),
        "`s[1]` changes even where a condition keeps `s[0]`",
    ),
    "a carry settles later": (
        scanned(lambda s, x: ((kept(s[0], s[0] * x), s[0]), None), (1.0, 0.0)),
        "`s[1]` changes even where a condition keeps `s[0]`",
    ),
    "a key goes on": (
        scanned(
            lambda s, x: ((kept(s[0], s[0] * x), jax.random.split(s[1], 1)[0]), None),
            (1.0, jax.random.key(0)),
        ),
        "`s[1]` changes even where a condition keeps `s[0]`",
    ),
    "a counter of floats": (  # adding often rounds in another way than multiplying once
        scanned(lambda s, x: ((kept(s[0], s[0] * x), s[1] + 0.1), None), (1.0, 0.0)),
        "`s[1]` changes even where a condition keeps `s[0]`",
    ),
    "a counter while it lasts": (
        scanned(lambda s, x: ((kept(s[0], s[0] * x), s[1] + done_at(s[0])), None), (1.0, 0)),
        "`s[1]` changes even where a condition keeps `s[0]`",
    ),
    "carries change places": (
        scanned(swapped, (1.0, 2.0)),
        "`state[0]` changes even where a condition keeps `state[1]`",
    ),
    "the end resets": (scanned(reset, (1.0, False)), "`state[0]` changes even where a condition keeps `state[1]`"),
    "output reads xs": (
        scanned(lambda v, x: (kept(v, v * x), (v, v + x)), 1.0),
        "stacked output 1 depends on the iteration after the end: it reads stacked inputs",
    ),
    "output reads a counter": (
        scanned(lambda s, x: ((kept(s[0], s[0] * x), s[1] + 1), s[0] * s[1]), (1.0, 0)),
        "stacked output 0 depends on the iteration after the end: it reads the counter in `s[1]`",
    ),
    "two conditions": (
        scanned(two_conditions, (1.0, 2.0)),
        "`state[0]` and `state[1]` are kept under different conditions",
    ),
    "two conditions by one function": (
        scanned(one_condition_of_two, (1.0, 2.0)),
        "`state[0]` and `state[1]` are kept under different conditions",
    ),
    "too long": (
        lambda: lax.scan(lambda v, _: (kept(v, v * 0.5), None), 1.0, None, length=2**31),
        "it has more iterations than 2147483647; got 2147483648",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    fun, reason = REFUSED[name]
    (loop, *_) = loops_of(fun)
    assert FORM.why_not(loop, None) == reason
    assert FORM.ladders(loop) == ()


def test_is_proposed_only_where_it_can_save():
    (loop,) = loops_of(flag_in_carry, 2.0)
    assert FORM.ladders(loop) == ((None,),)
    for length in (0, 1):
        (loop,) = loops_of(functools.partial(of_length, length), 2.0)
        assert FORM.why_not(loop, None) is None
        assert FORM.ladders(loop) == ()


# ---------------------------------------------------------------- random masked scans


class Program(NamedTuple):
    lanes: int
    length: int
    reverse: bool
    branch: str
    condition: str
    frozen: int  # carries under the condition, beside the first one
    flaw: str
    stacks: str


PROGRAMS = st.builds(
    Program,
    lanes=st.sampled_from((0, 1, 3)),
    length=st.integers(0, 7),
    reverse=st.booleans(),
    branch=st.sampled_from(("cond", "cond inverted", "where", "where inverted")),
    condition=st.sampled_from(("flag", "flag or", "count", "number", "rounded")),
    frozen=st.integers(0, 2),
    flaw=st.sampled_from(("", "", "", "condition", "carry", "output", "mask")),
    stacks=st.sampled_from(("", "carry", "computed")),
)


def built(program):
    """The program as a function of (start, threshold, xs); the carries: value, flag, count, others."""

    def condition(state, threshold, x):
        value, flag, count, *_ = state
        done = {
            "flag": flag, "flag or": flag | (count > 4), "count": count >= 2,
            "number": value < threshold, "rounded": value * 1.25 - 0.5 < threshold,
        }[program.condition]  # fmt: skip
        return done | (x > 0.9) if program.flaw == "condition" else done

    def step(state, threshold, x):
        value, _, count, *others = state
        new = value * 0.5 + x / 4
        return (new, new < threshold, count + 1, *(o / 2 + x - value for o in others))

    def choose(done, old, new):
        pick = {
            "cond": lambda o, n: lax.cond(done, lambda: o, lambda: n),
            "cond inverted": lambda o, n: lax.cond(~done, lambda: n, lambda: o),
            "where": lambda o, n: jnp.where(done, o, n),
            "where inverted": lambda o, n: jnp.where(jnp.logical_not(done), n, o),
        }[program.branch]
        return jax.tree.map(pick, old, new)

    def one(start, threshold, xs):
        def body(state, x):
            done = condition(state, threshold, x)
            after = choose(done, state, step(state, threshold, x))
            if program.flaw == "carry":
                after = (*after[:-1], after[-1] + 1)
            if program.flaw == "mask":
                after = (state[0] + (1 - done.astype(state[0].dtype)) * x, *after[1:])
            y = {"": (), "carry": (state[0], after[1]), "computed": (after[0] * threshold + 1,)}
            return after, (*y[program.stacks], x + done) if program.flaw == "output" else y[program.stacks]

        init = (
            start,
            jnp.array(False),
            jnp.int32(0),
            *(jnp.ones((k,)) * start for k in range(program.frozen)),
        )
        return lax.scan(body, init, xs, reverse=program.reverse)

    return jax.vmap(one, in_axes=(0, 0, None)) if program.lanes else one


def check_program(program, seed):
    shape = (program.lanes,) if program.lanes else ()
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = (shape, shape, (program.length,))
    args = [jax.random.randint(k, s, 0, 17) / 16 for k, s in zip(keys, shapes, strict=True)]
    fun = built(program)
    (loop,) = loops_of(fun, *args)
    legal = FORM.why_not(loop, None) is None
    if not program.flaw:
        assert legal
    if legal:
        assert_equal(jax.jit(planned("0=until", fun, *args))(*args), jax.jit(fun)(*args))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(program=PROGRAMS, seed=st.integers(0, 100))
def test_random_masked_scans(program, seed):
    check_program(program, seed)


@pytest.mark.fuzz
@settings(max_examples=1000, deadline=None)
@given(program=PROGRAMS, seed=st.integers(0, 100))
def test_many_random_masked_scans(program, seed):
    check_program(program, seed)


# ---------------------------------------------------------------- random bodies


class Pool:
    """Values of a body by kind, to pick from and to combine."""

    def __init__(self, rng, values):
        self.rng = rng
        self.values = {"b": [], "i": [], "f": []}
        for value in values:
            self.add(value)

    def add(self, value):
        self.values[value.dtype.kind].append(value)

    def pick(self, kind):
        return self.values[kind][self.rng.integers(len(self.values[kind]))]

    def combine(self):
        b, i, f = (self.pick(kind) for kind in "bif")
        b2, i2, f2 = (self.pick(kind) for kind in "bif")
        made = (
            lambda: b & b2, lambda: b | b2, lambda: ~b, lambda: i > 3, lambda: i == i2, lambda: f < 0.5,
            lambda: jnp.all(jnp.broadcast_to(b, (2,))), lambda: b.astype(jnp.int32) != 0, lambda: b == True,  # noqa: E712
            lambda: i + 1, lambda: i - b, lambda: i + i2, lambda: jnp.where(b, i, i2), lambda: i * b,
            lambda: lax.switch(i, (lambda: i2, lambda: i, lambda: i2 + 1)),
            lambda: f * 0.5, lambda: f + i, lambda: jnp.where(b, f, f2), lambda: jnp.where(b, jnp.abs(f), f),
            lambda: lax.cond(b, lambda: lax.cond(b2, lambda: f, lambda: f2), lambda: f * 2),
            lambda: jax.jit(lambda b, f, f2: jnp.where(~b, f, f2))(b, f, f2),
        )  # fmt: skip
        self.add(made[self.rng.integers(len(made))]())

    def carried(self, old, done):
        """What becomes of a carry: most are kept under the condition."""
        kind, how = old.dtype.kind, self.rng.integers(12)
        new = self.pick(kind)
        if how < 6:
            return jnp.where(done, old, new)
        if how < 9:
            return lax.cond(~done, lambda: new, lambda: old)
        if how == 9 and kind == "i":
            return old + 2
        return old if how == 10 else new


def random_body(seed):
    def body(state, x):
        rng = np.random.default_rng(seed)
        early = Pool(rng, (*state, jnp.bool_(False)))
        for _ in range(rng.integers(6)):
            early.combine()
        pool = Pool(rng, (*early.values["b"], *early.values["i"], *early.values["f"], x, x > 0.5))
        done = (pool if rng.integers(4) == 0 else early).pick("b")
        for _ in range(rng.integers(6)):
            pool.combine()
        after = tuple(pool.carried(old, done) for old in state)
        late = Pool(rng, (*after, done, *(pool if rng.integers(4) == 0 else early).values["i"]))
        for _ in range(rng.integers(3)):
            late.combine()
        return after, [late.pick("i"), late.pick("f")][: rng.integers(3)]

    return body


def check_body(seed):
    def fun(state, xs):
        return lax.scan(random_body(seed), state, xs)

    state = (jnp.array(seed % 7 == 0), jnp.array(False), jnp.int32(1), jnp.int32(seed % 4), jnp.float32(1.5))
    xs = jnp.arange(6.0) / 4
    loops = [loop for loop in loops_of(fun, state, xs) if loop.num_carry]
    if loops and FORM.why_not(loops[0], None) is None:
        assert_equal(jax.jit(planned("0=until", fun, state, xs))(state, xs), jax.jit(fun)(state, xs))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_random_bodies(seed):
    check_body(seed)


@pytest.mark.fuzz
@settings(max_examples=5000, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_many_random_bodies(seed):
    check_body(seed)
