"""A function at one signature: what is compiled when, and what a candidate returns."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same, ramp
from jax import lax

from autoloop import Plan, PlanError, _host, _plans
from autoloop._decide import Call
from autoloop._function import Function
from autoloop._plans import check_plan, runs_in_trace, runs_on_host
from autoloop._program import HostProgram, OneProgram, Program

XS = ramp(3, 2)


def program_of(fun, *args, **options):
    function = Function(fun, options)
    return Program.trace(function, Call.of(function, args, {}).key, args, {})


def from_argument(start, xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), start, xs)


def from_literal(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x.sum(), c), jnp.float32(0), xs)


def from_computed(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.sin(xs[0]), jnp.cos(xs))


TABLE = np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2)


def from_constant(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x[0] * x[1], c.sum()), jnp.zeros(2), (xs, TABLE))


def nested(xs):
    def outer(c, x):
        return lax.scan(lambda d, y: (d * 0.5 + y, d), c, jnp.stack([x, x]))

    return lax.scan(outer, jnp.zeros(2), xs)


PROGRAMS = {
    "from an argument": (from_argument, (ramp(2), XS)),
    "from a literal": (from_literal, (XS,)),
    "from computed values": (from_computed, (XS,)),
    "from a constant": (from_constant, (XS,)),
    "nested": (nested, (XS,)),
}


@pytest.mark.parametrize("plan", ["as-written", "0=inline", "0=unroll(2)", "0=python(1)", "0=python(2)"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_candidate_that_is_compiled_compiles_nothing_when_it_runs(name, plan, caplog, request):
    fun, args = PROGRAMS[name]
    candidate, cost = program_of(fun, *args).candidate(Plan.parse(plan)), _host.Cost()
    candidate.lower(args, {}, cost)
    candidate.compile(args, {}, cost)
    assert cost.trace_s > 0
    assert cost.compile_s > 0
    assert cost.peak_bytes > 0
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        outs = candidate(*args)
    compiled = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Compiling")]
    assert compiled == []
    assert_same(jax.jit(fun)(*args), outs)


def test_a_compile_is_seen(caplog):
    # The test above rests on it.
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        jax.jit(lambda x: x * 3)(1.0)
    assert any(r.getMessage().startswith("Compiling") for r in caplog.records)


@pytest.mark.parametrize("plan", ["as-written", "0=inline", "0=python(1)", "0=eager"])
def test_equal_programs_have_equal_digests(plan):
    def digest(fun, plan):
        return program_of(fun, XS).candidate(Plan.parse(plan)).lower((XS,), {}, _host.Cost())

    if runs_on_host(Plan.parse(plan)):
        assert digest(from_literal, plan) is None
        return
    assert digest(from_literal, plan) == digest(from_literal, plan)
    assert digest(from_literal, plan) != digest(from_computed, plan)
    assert digest(from_literal, plan) != digest(from_literal, "0=unroll(2)")
    assert digest(from_literal, plan) != digest(
        from_literal, f"{plan} xla_backend_optimization_level=1".removeprefix("as-written ")
    )


KINDS = {
    "as-written": (OneProgram, True),
    "0=inline": (OneProgram, True),
    "0=unroll(2)": (OneProgram, True),
    "xla_backend_optimization_level=1": (OneProgram, False),
    "0=inline xla_backend_optimization_level=1": (OneProgram, False),
    "0=python(1)": (HostProgram, False),
    "0=eager": (HostProgram, False),
    "0=python(1) xla_backend_optimization_level=1": (HostProgram, False),
}


@pytest.mark.parametrize(("text", "kind", "in_trace"), [(text, *kind) for text, kind in KINDS.items()])
def test_kinds_of_candidates(text, kind, in_trace):
    plan = check_plan(text)
    candidate = program_of(from_computed, XS).candidate(plan)
    assert type(candidate) is kind
    assert runs_in_trace(plan) is in_trace
    assert runs_on_host(plan) is (kind is HostProgram)
    assert_same(jax.jit(from_computed)(XS), candidate(XS))


@pytest.mark.parametrize("plan", ["0=python(1)", "0=eager"])
def test_a_host_program_runs_again_and_again(plan):
    candidate = program_of(nested, XS).candidate(Plan.parse(plan))
    for xs in (XS, 2 * XS, XS):
        assert_same(jax.jit(nested)(xs), candidate(xs))


@pytest.mark.parametrize("plan", ["0=python(1)", "0=eager"])
def test_outputs_of_a_host_program_are_as_weak_as_of_jit(plan):
    def fun(a, xs):
        return lax.scan(lambda c, x: (c * a + x.sum(), a), jnp.float32(0), xs)

    assert_same(jax.jit(fun)(2.0, XS), program_of(fun, 2.0, XS).candidate(Plan.parse(plan))(2.0, XS))


def test_a_program_knows_its_loops_and_effects():
    assert [loop.name for loop in program_of(nested, XS).loops] == ["0", "0/0"]
    assert program_of(nested, XS).effects == ()
    assert program_of(lambda x: jax.debug.print("{}", x), 1.0).effects == ("Debug",)
    assert program_of(lambda x: x, 1.0).loops == ()


def test_a_function_that_closes_over_tracers_is_no_program():
    found = []

    def whole(w):
        found.append(program_of(lambda xs: xs * w, XS))
        return w

    jax.jit(whole)(1.0)
    jax.grad(whole)(1.0)
    assert found == [None, None]


def test_functions_are_named_for_records():
    assert Function(nested).name == f"{__name__}.nested"
    assert Function(jax.jit(nested)).name == f"{__name__}.nested"
    local = Function(lambda x: x).name
    assert local == f"{__name__}.test_functions_are_named_for_records.<locals>.<lambda>"


def test_the_program_has_the_name_of_the_function():
    # So that profiles and compile logs show it.
    candidate = program_of(nested, XS).candidate(Plan.parse("0=inline"))
    assert candidate.planned.jitted.lower(XS).as_text().startswith("module @jit_nested")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0=unroll(-3)", "0=unroll(-3): the number must be at least 1; got -3"),
        ("0=python(0)", "0=python(0): the number must be at least 1; got 0"),
        ("0=inline(-3)", "0=inline(-3): write 0=inline"),
        ("", "a plan must say something; got ''; write 'as-written' for the function as you wrote it"),
        (" \n", "a plan must say something; got ' \\n'; write 'as-written' for the function as you wrote it"),
    ],
)
def test_plans_that_users_may_not_give(text, message):
    with pytest.raises(PlanError) as caught:
        _plans.check_plan(text)
    assert str(caught.value) == message
