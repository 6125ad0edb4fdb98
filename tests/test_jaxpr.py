"""Reading traced programs and putting their equations together again unharmed."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import PROGRAMS, assert_same, legal_plans, outline, put_together, ramp, run_plan, split_by_host
from jax import lax
from jax.extend import core as jec

from autoloop import _jaxpr, _parts
from autoloop._records import UnsupportedJaxError

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
# In jax 0.8 it stands elsewhere.
check_jaxpr = getattr(jec, "check_jaxpr", None) or jax.core.check_jaxpr


def trace(fun, *args, **kwargs):
    return _jaxpr.trace(jax.jit(fun), args, kwargs)


def first_scan(fun, *args):
    eqns = _jaxpr.equations(trace(fun, *args).jaxpr)
    return next(eqn for eqn in eqns if eqn.primitive.name == "scan")


# ---------------------------------------------------------------- reading


def summed(w, c, xs):
    return lax.scan(lambda c, x: (c @ w + x[0], (c.sum(), x[1] * 2)), c, xs, reverse=True, unroll=2)


SUMMED = (ramp(3, 3), ramp(3), (ramp(4, 3), jnp.arange(4)))


def test_a_scan_equation():
    scan = _jaxpr.read_scan(first_scan(summed, *SUMMED))
    assert (scan.num_consts, scan.num_carry, scan.length, scan.reverse, scan.unroll) == (1, 1, 4, True, 2)
    consts, carry, xs = scan.split_inputs(scan.in_avals)
    assert [[a.shape for a in part] for part in (consts, carry, xs)] == [[(3, 3)], [(3,)], [(4, 3), (4,)]]
    carry, ys = scan.split_outputs(scan.out_avals)
    assert [[a.shape for a in part] for part in (carry, ys)] == [[(3,)], [(4,), (4,)]]
    consts, carry, x = scan.split_inputs(_jaxpr.in_avals(scan.body))
    assert [[a.shape for a in part] for part in (consts, carry, x)] == [[(3, 3)], [(3,)], [(3,), ()]]
    carry, y = scan.split_outputs(_jaxpr.out_avals(scan.body))
    assert [[a.shape for a in part] for part in (carry, y)] == [[(3,)], [(), ()]]


@pytest.mark.parametrize("missing", ["length", "reverse", "unroll", "jaxpr", "num_carry or ft_in"])
def test_a_scan_equation_of_an_unknown_jax(missing):
    eqn = first_scan(summed, *SUMMED)
    params = {name: value for name, value in eqn.params.items() if name not in missing.split(" or ")}
    assert params != eqn.params
    with pytest.raises(UnsupportedJaxError) as caught:
        _jaxpr.read_scan(eqn.replace(params=params))
    message = str(caught.value)
    assert message.startswith(f"autoloop/_jaxpr.py cannot read a scan equation of jax {jax.__version__} (")
    assert f"(parameters: {', '.join(sorted(params))})" in message
    assert message.endswith(repr(caught.value.__cause__))


def test_a_scan_equation_with_an_odd_value():
    eqn = first_scan(summed, *SUMMED)
    with pytest.raises(UnsupportedJaxError, match="cannot read a scan equation of jax"):
        _jaxpr.read_scan(eqn.replace(params={**eqn.params, "unroll": "often"}))


def test_equations_come_once_each():
    def fun(c):
        c = lax.cond(c > 0, jnp.sin, jnp.cos, c)
        return lax.fori_loop(0, 3, lambda i, c: jax.jit(jnp.tanh)(c), c)

    jaxpr = trace(fun, 1.0).jaxpr
    names = [eqn.primitive.name for eqn in _jaxpr.equations(jaxpr)]
    assert [names.count(name) for name in ("cond", "sin", "cos", "scan", "tanh")] == [1] * 5
    direct = [eqn.primitive.name for eqn in _jaxpr.direct_equations(jaxpr)]
    assert "cond" in direct
    assert not {"sin", "cos", "tanh"} & set(direct)


def test_bodies():
    def fun(c):
        c = lax.switch(1, [jnp.sin, jnp.cos, jnp.tan], c)
        return lax.while_loop(lambda c: c < 0, lambda c: c + 1, c)

    counts = {eqn.primitive.name: len(_jaxpr.bodies(eqn)) for eqn in trace(fun, 1.0).jaxpr.eqns}
    assert {name: counts[name] for name in ("cond", "while")} == {"cond": 3, "while": 2}
    assert set(counts.values()) == {0, 2, 3}
    solve = functools.partial(lax.custom_linear_solve, lambda v: 2 * v, solve=lambda _, b: b / 2)
    (solving,) = [e for e in trace(solve, 1.0).jaxpr.eqns if e.primitive.name.startswith("custom_lin")]
    assert _jaxpr.bodies(solving) == []


def test_effects_have_names():
    def fun(c):
        jax.debug.print("{}", c)
        return c

    assert _jaxpr.effects(trace(fun, 1).jaxpr) == ("Debug",)
    assert _jaxpr.effects(trace(jnp.sin, 1).jaxpr) == ()


# ---------------------------------------------------------------- tracing


def test_a_trace_is_flat():
    def fun(pair, *, scale):
        return {"out": (pair[0] * scale, None), "in": pair}

    traced = trace(fun, (ramp(2), 3), scale=2.0)
    assert [(a.shape, a.dtype.name, a.weak_type) for a in _jaxpr.in_avals(traced.jaxpr)] == [
        ((2,), "float32", False),
        ((), "int32", True),
        ((), "float32", True),
    ]
    assert traced.in_tree == jax.tree.structure((((0, 0),), {"scale": 0}))
    assert traced.out_tree == jax.tree.structure({"out": (0, None), "in": (0, 0)})
    assert traced.donated == (False, False, False)


def test_a_trace_knows_donated_leaves():
    jitted = jax.jit(lambda a, b: (a["x"] + a["y"], b + 1), donate_argnums=0)
    traced = _jaxpr.trace(jitted, ({"x": ramp(2), "y": ramp(2)}, ramp(2)), {})
    assert traced.donated == (True, True, False)


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap], ids=["jit", "grad", "vmap"])
def test_a_function_that_closes_over_a_tracer_has_no_trace(transform):
    found = []

    def outer(x):
        found.append(trace(lambda y: y * x, 2.0))
        return (x * 1.0).sum() if transform is jax.grad else x

    transform(outer)(ramp(3))
    assert found == [None]


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap], ids=["jit", "grad", "vmap"])
def test_tracers_as_arguments_are_fine(transform):
    found = []

    def outer(x):
        found.append(trace(jnp.sum, x))
        return x.sum()

    transform(outer)(ramp(3))
    assert len(_jaxpr.in_avals(found[0].jaxpr)) == 1


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap], ids=["jit", "grad", "vmap"])
def test_a_trace_in_progress_is_noticed(transform):
    found = []

    def outer(x):
        found.append(_jaxpr.under_trace())
        return x * 2.0

    transform(outer)(jnp.ones(()) if transform is jax.grad else ramp(3))
    assert found == [True]
    assert not _jaxpr.under_trace()


# ---------------------------------------------------------------- values and types


KEYS = jax.random.split(jax.random.key(0))


def aval(value):
    return jax.typeof(value)


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("value", [1.5, 2, True, np.float32(3), np.int32([1, 2]), 1j])
def test_conform_changes_the_strength_of_a_type_and_nothing_else(value, weak):
    given = jnp.asarray(value)
    wanted = given.aval.update(weak_type=weak)
    for run in (_jaxpr.conform, jax.jit(_jaxpr.conform, static_argnums=1)):
        got = run(given, wanted)
        assert (aval(got).dtype, aval(got).shape, aval(got).weak_type) == (given.dtype, given.shape, weak)
        np.testing.assert_array_equal(got, given)


def test_conform_leaves_what_fits():
    value, key = ramp(3), jax.random.key(0)
    assert _jaxpr.conform(value, aval(value)) is value
    assert _jaxpr.conform(key, aval(key)) is key


def test_conform_all_counts():
    assert _jaxpr.conform_all([], []) == []
    with pytest.raises(ValueError, match="zip"):
        _jaxpr.conform_all([1, 2], [aval(1)])


@pytest.mark.parametrize("length", [None, 0, 3])
@pytest.mark.parametrize("value", [1.0, 2, True, ramp(2, 0), jnp.bfloat16(1), KEYS[0], KEYS])
def test_empty_is_zeros_of_the_type(value, length):
    got = jax.jit(lambda: _parts.empty(aval(value), length))()
    shape = jnp.shape(value) if length is None else (length, *jnp.shape(value))
    want = aval(value)
    assert (aval(got).shape, aval(got).dtype) == (shape, want.dtype)
    if jnp.issubdtype(want.dtype, jax.dtypes.prng_key):
        got = jax.random.key_data(got)
    else:
        assert aval(got).weak_type == want.weak_type
    assert not np.any(got)


@pytest.mark.parametrize("value", [1.0, 2, np.float32(3), jnp.int8(1), True])
def test_close_and_struct_keep_weak_types(value):
    struct = _jaxpr.struct(aval(value))
    assert (struct.dtype, struct.shape, struct.weak_type) == (
        aval(value).dtype,
        (),
        aval(value).weak_type,
    )
    jaxpr = _jaxpr.close(lambda x: [x, x], [aval(value)])
    assert [a.weak_type for a in _jaxpr.in_avals(jaxpr)] == [aval(value).weak_type]
    assert [a.weak_type for a in _jaxpr.out_avals(jaxpr)] == [aval(value).weak_type] * 2


def test_tracers_are_told_from_values():
    seen = []
    jax.jit(lambda x: seen.append(_jaxpr.is_tracer(x)) or x)(1.0)
    assert [*seen, _jaxpr.is_tracer(ramp(2)), _jaxpr.is_tracer(1.0)] == [True, False, False]


# ---------------------------------------------------------------- rebuilding


def count(c):
    return lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, c)


@jax.custom_jvp
def seven_times_in_jvp(c):
    return count(c)


seven_times_in_jvp.defjvp(lambda p, t: (count(*p), 7 * t[0]))


@jax.custom_vjp
def seven_times_in_vjp(c):
    return count(c)


seven_times_in_vjp.defvjp(lambda c: (count(c), None), lambda _, g: (7 * g,))


def named_function(c):
    return count(c)


POLICY = jax.checkpoint_policies.everything_saveable
AROUND = {
    "scan": count,
    "jit": jax.jit(named_function),
    "remat": jax.checkpoint(count, policy=POLICY, prevent_cse=False),
    "cond": lambda c: lax.cond(c > 0, count, jnp.cos, c),
    "while": lambda c: lax.while_loop(lambda c: c < 9, lambda c: count(c) + 9, c),
    "custom_jvp": seven_times_in_jvp,
    "custom_vjp": seven_times_in_vjp,
}


BODIES = {"jaxpr", "call_jaxpr", "branches", "cond_jaxpr", "body_jaxpr"}
# Functions that jax wraps once more per trace; what they do is tested below.
RULES = {"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees"}


def rebuilt(name, plan=None):
    """The function with its loop's equation put together again, or with its loop in a form."""
    if plan is None:
        return lambda c: put_together(outline(AROUND[name], 1.0)[0], c)[0]
    return functools.partial(run_plan, AROUND[name], plan)


def equation(fun, around):
    names = {"remat": ("checkpoint", "remat2"), "custom_jvp": ("custom_jvp_call",)}
    names |= {"custom_vjp": ("custom_vjp_call",)}
    eqns = _jaxpr.equations(jax.make_jaxpr(fun)(1.0))
    return next(eqn for eqn in eqns if eqn.primitive.name in names.get(around, (around,)))


@pytest.mark.parametrize("plan", [None, "0=inline", "0=unroll(2)"])
@pytest.mark.parametrize("around", [name for name in AROUND if name != "scan"])
def test_equations_around_a_loop_keep_their_parameters(around, plan):
    before = equation(AROUND[around], around).params
    after = equation(rebuilt(around, plan), around).params
    assert set(before) == set(after)
    same = set(before) - BODIES - RULES
    assert {name: str(after[name]) for name in same} == {name: str(before[name]) for name in same}


def test_the_name_of_a_jit_and_the_policy_of_a_remat_are_kept():
    assert equation(rebuilt("jit", "0=inline"), "jit").params["name"] == "named_function"
    remat = equation(rebuilt("remat", "0=inline"), "remat").params
    assert remat["policy"] is POLICY
    assert remat["prevent_cse"] is False


@pytest.mark.parametrize("plan", [None, "0=inline", "0=unroll(2)"])
@pytest.mark.parametrize("around", ["custom_jvp", "custom_vjp"])
def test_custom_rules_are_kept(around, plan):
    assert jax.grad(AROUND[around])(0.3) == 7
    assert jax.grad(rebuilt(around, plan))(0.3) == 7
    assert jax.vmap(jax.grad(rebuilt(around, plan)))(ramp(2)).tolist() == [7, 7]


def test_inlining_a_loop_leaves_no_scan():
    for around in AROUND:
        names = {e.primitive.name for e in _jaxpr.equations(jax.make_jaxpr(rebuilt(around, "0=inline"))(1.0))}
        assert "scan" not in names
        assert "sin" in names


def test_rebuild_changes_the_parameters_given():
    eqn = first_scan(summed, *SUMMED)
    values = [SUMMED[0], SUMMED[1], *SUMMED[2]]
    run = _jaxpr.rebuild(eqn, _jaxpr.bodies(eqn), unroll=4)
    again = next(e for e in jax.make_jaxpr(run)(*values).eqns if e.primitive.name == "scan")
    assert (again.params["unroll"], again.params["reverse"]) == (4, True)
    assert_same(jax.tree.leaves(summed(*SUMMED)), run(*values))


def test_rebuild_takes_an_equation_that_uses_a_variable_twice():
    eqn = first_scan(lambda z: lax.scan(lambda c, _: ((c[1] + 1, c[0]), None), (z, z), None, 3)[0], 1.0)
    got = _jaxpr.rebuild(eqn, _jaxpr.bodies(eqn))(jnp.float32(10), jnp.float32(10))
    assert [float(x) for x in got] == [12, 11]


def test_rebuild_returns_outputs_that_nobody_reads():
    eqn = first_scan(lambda c: lax.scan(lambda c, _: (c * 2, c), c, None, 3)[0], 1.0)
    carry, ys = _jaxpr.rebuild(eqn, _jaxpr.bodies(eqn))(jnp.float32(1))
    assert (carry, ys.tolist()) == (8, [1, 2, 4])


def test_a_body_that_can_hold_no_constants_gets_none():
    eqn = equation(AROUND["remat"], "remat")
    constant = ramp(3)
    body = jax.make_jaxpr(lambda c: [c + constant.sum(), constant])(1.0)
    if isinstance(eqn.params["jaxpr"], jec.ClosedJaxpr):
        pytest.skip("in this jax one class holds both")
    assert body.consts, "make_jaxpr keeps constants apart"
    with pytest.raises(UnsupportedJaxError, match=re.escape("autoloop/_jaxpr.py: a body that can hold no")):
        _jaxpr.rebuild(eqn, [body])


@every_program
def test_rewritten_programs_pass_jax_own_check(program):
    with program.args() as args:
        one, _ = split_by_host(legal_plans(program.fun, args))
        for plan in one:
            jaxpr = jax.make_jaxpr(functools.partial(run_plan, program.fun, plan))(*args)
            check_jaxpr(jaxpr.jaxpr)
