"""Every legal plan of every program of the table against plain JAX, plain and transformed."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    PROGRAMS,
    assert_same,
    differentiable,
    in_pairs,
    legal_plans,
    one_per_form,
    run_plan,
    split_by_host,
    weighted_sum,
)

from autoloop._forms import FORMS


def rows(programs):
    return pytest.mark.parametrize("program", [pytest.param(p, id=p.name) for p in programs])


every_program = rows(PROGRAMS)
every_differentiable_program = rows(p for p in PROGRAMS if p.grad)
every_program_to_vmap = rows(p for p in PROGRAMS if p.vmap)


def gradient(program):
    return lambda fun: jax.grad(lambda *args: weighted_sum(fun(*args)), program.grad)


def assert_all_same(program, plans, transform, args, **options):
    """All the plans in one compiled program, each transformed, against the transformed function."""

    def everything(*args):
        return [transform(functools.partial(run_plan, program.fun, plan))(*args) for plan in plans]

    expected = jax.jit(transform(program.fun))(*args)
    for plan, outputs in zip(plans, jax.jit(everything)(*args), strict=True):
        assert_same(expected, outputs, f"{program.name}, {plan}", **options)


def assert_all_gradients_same(program, plans, args):
    """Whether the type of a gradient is weak depends, in old jax, on where JAX adds up parts of it."""
    assert_all_same(program, differentiable(plans), gradient(program), args, weak_types=False)


@every_program
def test_python_loops(program):
    with program.args() as args:
        _, host = split_by_host(legal_plans(program.fun, args))
        assert_loops_same(program, one_per_form(host), args)


def assert_loops_same(program, plans, args):
    """Plans with Python loops, called as a user calls them, against the function; arguments stay."""
    expected = jax.jit(program.fun)(*args)
    before = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(args) if not is_key(leaf)]
    for plan in plans:
        assert_same(expected, run_plan(program.fun, plan, *args), f"{program.name}, {plan}")
    after = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(args) if not is_key(leaf)]
    assert after == before, "a plan changed the arguments"


def is_key(leaf):
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


@every_program
def test_under_jit(program):
    with program.args() as args:
        one, _ = split_by_host(legal_plans(program.fun, args))
        assert_all_same(program, one_per_form(one), lambda fun: fun, args)


@every_differentiable_program
def test_under_grad(program):
    with program.args() as args:
        one, _ = split_by_host(legal_plans(program.fun, args))
        assert_all_gradients_same(program, one_per_form(one), args)


@every_program_to_vmap
def test_under_vmap(program):
    with program.args() as args:
        one, _ = split_by_host(legal_plans(program.fun, args))
        assert_all_same(program, one_per_form(one), jax.vmap, jax.tree.map(in_pairs, args))


@pytest.mark.slow
@every_program
def test_every_plan_under_every_transformation(program):
    with program.args() as args:
        one, host = split_by_host(legal_plans(program.fun, args))
        assert_loops_same(program, host, args)
        expected = jax.jit(program.fun)(*args)
        for plan in one:
            got = jax.jit(functools.partial(run_plan, program.fun, plan))(*args)
            assert_same(expected, got, f"{program.name}, {plan}")
        if program.grad:
            assert_all_gradients_same(program, one, args)
        if program.vmap:
            assert_all_same(program, one, jax.vmap, jax.tree.map(in_pairs, args))


def test_every_form_runs_in_several_programs():
    programs = Counter()
    for program in PROGRAMS:
        with program.args() as args:
            plans = legal_plans(program.fun, args)
        programs.update({choice.form for plan in plans for choice in plan.choices})
    assert {form.name for form in FORMS if programs[form.name] < 3} == set()
