"""Random programs in their legal plans against plain JAX, plain and transformed.

A program that failed is kept below under a name, as hypothesis printed it. `python -m pytest -m fuzz` runs
thousands in many plans; the default suite a hundred in a few plans each, compiled without XLA's expensive
passes, in one of two precisions and under one of the transformations each.
"""

import os
import random
import zlib

import jax
import numpy as np
import pytest
from helpers import FORMS_BY_NAME, differentiable, in_pairs, legal_plans, outline, split_by_host, weighted_sum
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from programs import SMOOTH, build, holds_while, make_args, programs

from autoloop import PlanError, _legal, autoloop
from autoloop.testing import assert_forms_agree

#: Programs of the nightly run.
NIGHTLY = int(os.environ.get("FUZZ_PROGRAMS", "2000"))
#: Programs whose plans would compile more equations than this are not built.
_LARGEST = 1500
#: Largest error, absolute or relative to the largest magnitude: operations spread none, so it only adds up.
_ALLOWED = {np.dtype("float32"): 2e-5, np.dtype("float64"): 1e-11}
_TRANSFORMS = ("plain", "jit", "grad", "vmap")
#: Halves the time of a compile.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def assert_close(want, have, note):
    """Same tree, shapes, dtypes and weak types; equal values where they are exact, else close ones."""
    wanted, tree = jax.tree.flatten(want)
    found, found_tree = jax.tree.flatten(have)
    assert found_tree == tree, f"{note}: outputs are {found_tree}, not {tree}"
    for position, (a, b) in enumerate(zip(wanted, found, strict=True)):
        kinds = [(v.dtype, v.shape, v.weak_type) for v in (jax.typeof(a), jax.typeof(b))]
        assert kinds[0] == kinds[1], f"{note}: output {position} is {kinds[1]}, not {kinds[0]}"
        x, y = (np.asarray(jax.random.key_data(v) if is_key(v) else v) for v in (a, b))
        if not np.issubdtype(x.dtype, np.inexact):
            np.testing.assert_array_equal(y, x, f"{note}: output {position}")
            continue
        allowed = _ALLOWED[x.real.dtype] * max(1.0, np.max(np.abs(x), initial=0.0))
        np.testing.assert_allclose(y, x, rtol=0, atol=allowed, err_msg=f"{note}: output {position}")


def is_key(value):
    return jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def some_plans(fun, args, most):
    """At most so many legal plans that are not too large, drawn alike in every run; all forms first."""
    _, loops = outline(fun, *args)
    looped = autoloop(fun)
    plans = [plan for plan in legal_plans(fun, args) if plan and _legal.size(plan, loops, FORMS_BY_NAME) <= _LARGEST]
    random.Random(zlib.crc32(" ".join(map(str, plans)).encode())).shuffle(plans)
    by_form = {}
    for plan in plans:
        by_form.setdefault(tuple(choice.form for choice in plan.choices), plan)
    ordered = list(dict.fromkeys([*by_form.values(), *plans]))[:most]
    return [(plan, looped.using(plan)) for plan in ordered]


def check(program, transform, x64, most, options=None):
    """Compares the plans of a program with it under plain JAX, all of one transformation in one compile."""
    with jax.enable_x64(x64):
        fun, args = build(program), make_args()
        pinned = some_plans(fun, args, most)
        one, host = split_by_host(plan for plan, _ in pinned)
        if transform == "plain":
            want = jax.jit(fun, compiler_options=options)(*args)
            for plan, run in pinned:
                if plan in host:
                    assert_close(want, run(*args), plan)
            return
        wrapped = {"jit": jax.jit, "grad": gradient, "vmap": jax.vmap}[transform]
        if transform == "grad":
            one = [] if holds_while(program) else differentiable(one)
        if transform == "vmap":
            args = jax.tree.map(in_pairs, args)
        runs = [run for plan, run in pinned if plan in one]

        def everything(*args):
            return [wrapped(run)(*args) for run in (fun, *runs)]

        want, *got = jax.jit(everything, compiler_options=options)(*args) if runs else [None]
        for plan, have in zip(one, got, strict=True):
            assert_close(want, have, f"{plan}, under {transform}")


def gradient(fun):
    return jax.grad(lambda *args: weighted_sum(fun(*args)["values"]), SMOOTH)


NO_SHRINK = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]


@given(program=programs(), transform=st.sampled_from(_TRANSFORMS), x64=st.booleans())
@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
def test_random_programs(program, transform, x64):
    check(program, transform, x64, most=4, options=_QUICK)


@pytest.mark.fuzz
@given(program=programs())
@settings(max_examples=NIGHTLY, deadline=None, suppress_health_check=list(HealthCheck), phases=NO_SHRINK)
def test_many_random_programs(program):
    for transform in _TRANSFORMS:
        check(program, transform, False, most=8)
        check(program, transform, True, most=8)


# ---------------------------------------------------------------- what failed


def test_a_custom_jvp_call_that_ignores_an_input_is_not_batched():
    """jax can't differentiate one that is batched in that input only: as written works, so must every plan."""

    @jax.custom_jvp
    def second(a, b):
        return b

    second.defjvp(lambda primals, tangents: (second(*primals), (tangents[0] + tangents[1]) * primals[0]))

    def fun(xs, b):
        return jax.lax.scan(lambda c, x: (c, second(jax.numpy.sin(x), b)), None, xs)[1]

    args = jax.numpy.ones((4, 3)), jax.numpy.ones(3)
    plans = assert_forms_agree(fun, *args, under=("plain", "grad"))
    assert {choice.form for plan in plans for choice in plan.choices} >= {"inline", "unroll"}
    for plan in ("0=vmap(4)", "0=associative"):
        with pytest.raises(PlanError, match="that ignores an input"):
            autoloop(fun).using(plan)(*args)
