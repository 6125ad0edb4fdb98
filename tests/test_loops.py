"""Which loops a program has, what they are called, and what is known about each."""

import jax
import jax.numpy as jnp
import pytest
from helpers import PROGRAMS, outline, ramp
from jax import lax

from autoloop import _jaxpr, _loops
from autoloop._loops import Loop

BY_NAME = {program.name: program for program in PROGRAMS}

#: From jax 0.12 on `searchsorted` is one primitive.
_SEARCH = jax.make_jaxpr(jnp.searchsorted)(jax.ShapeDtypeStruct((4,), jnp.float32), 1.0)

#: Programs with other loops than a single one on the spine; a star: not on the spine.
PATHS = {
    "float64": "0 1",
    "nested_weak_carry": "0 0/0",
    "in_sequence": "0 1 2",
    "two_deep": "0 0/0",
    "four_deep": "0 0/0 0/0/0 0/0/0/0",
    "two_side_by_side_inside": "0 0/0 0/1",
    "jitted_inner_called_twice": "0 1",
    "scan_of_a_vmap_of_a_scan": "0 0/0",
    "gradient": "0 1",
    "gradient_of_a_reverse_scan": "0 1",
    "gradient_of_a_nest": "0 0/0 1 1/0",
    "hessian": "0 1",
    "loop_hidden_in_a_library": "0 0/0" if "scan[" in str(_SEARCH) else "0",
    "gradient_of_remat": "0 1",
    "masked_inside_a_loop": "0 0/0",
    "constants_inside_remat_and_cond": "0 1*",
    "remat_of_the_body": "0 0/0",
    "inside_cond": "0* 1* 2*",
    "inside_cond_inside_scan": "0 0/0*",
    "inside_switch": "0* 1* 2*",
    "inside_while": "0* 1*",
    "loop_of_unknown_length": "0*",
    "no_loop_to_plan": "",
    "inside_custom_jvp": "0 1",
    "inside_custom_vjp": "0 1 2",
    "custom_vjp_of_the_body": "0 0/0",
}


def loops_of(fun, *args) -> dict[str, Loop]:
    return {loop.name: loop for loop in outline(fun, *args)[1]}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_paths(program):
    with program.args() as args:
        loops = outline(program.fun, *args)[1]
    assert " ".join(loop.name + "*" * (not loop.on_spine) for loop in loops) == PATHS.get(program.name, "0")


def test_paths_of_programs_that_exist():
    assert set(PATHS) <= set(BY_NAME)


def count_to_three(c):
    return lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, c)


@jax.custom_jvp
def with_custom_jvp(c):
    return count_to_three(c)


with_custom_jvp.defjvp(lambda p, t: (count_to_three(*p), t[0]))


@jax.custom_vjp
def with_custom_vjp(c):
    return count_to_three(c)


with_custom_vjp.defvjp(lambda c: (count_to_three(c), None), lambda _, g: (g,))

AROUND = {
    "nothing": (count_to_three, True),
    "jit": (jax.jit(count_to_three), True),
    "jit in jit": (jax.jit(lambda c: jax.jit(count_to_three)(c) + 1), True),
    "named call": (jax.named_call(count_to_three, name="counting"), True),
    "remat": (jax.checkpoint(count_to_three), True),
    "custom_jvp": (with_custom_jvp, True),
    "custom_vjp": (with_custom_vjp, True),
    "cond": (lambda c: lax.cond(c > 0, count_to_three, lambda c: c, c), False),
    "while": (lambda c: lax.while_loop(lambda c: c < 9, lambda c: count_to_three(c) + 9, c), False),
    "condition of a while": (
        lambda c: lax.while_loop(lambda c: count_to_three(c) < 0, lambda c: c + 9, c),
        False,
    ),
    "jit in cond": (lambda c: lax.cond(c > 0, jax.jit(count_to_three), lambda c: c, c), False),
    "cond in jit": (jax.jit(lambda c: lax.cond(c > 0, count_to_three, lambda c: c, c)), False),
}


@pytest.mark.parametrize("around", AROUND)
def test_what_stands_around_a_loop_adds_nothing_to_its_path(around):
    call, on_spine = AROUND[around]
    loops = loops_of(lambda c: call(c) + count_to_three(c), 1.0)
    assert {name: loop.on_spine for name, loop in loops.items()} == {"0": on_spine, "1": True}
    assert [loop.length for loop in loops.values()] == [3, 3]


@pytest.mark.parametrize("around", AROUND)
def test_what_stands_around_a_loop_inside_a_loop(around):
    call, on_spine = AROUND[around]
    loops = loops_of(lambda c: lax.fori_loop(0, 2, lambda i, c: call(c), c), 1.0)
    assert {name: loop.on_spine for name, loop in loops.items()} == {"0": True, "0/0": on_spine}


def test_loops_of_both_branches_are_numbered_in_turn():
    def fun(c):
        c = lax.cond(c > 0, count_to_three, lambda c: count_to_three(count_to_three(c)), c)
        return lax.fori_loop(0, 5, lambda i, c: c * 2, c)

    assert [loop.length for loop in loops_of(fun, 1.0).values()] == [3, 3, 3, 5]


def test_loops_in_equations_that_we_may_not_rewrite_are_not_found():
    def solve(matvec, b):
        return lax.fori_loop(0, 3, lambda i, y: y - 0.1 * matvec(y), b)

    def fun(b):
        return lax.custom_linear_solve(lambda v: 2 * v, b, solve, symmetric=True)

    assert loops_of(fun, ramp(2)) == {}


def test_facts():
    def fun(w, c, xs):
        def step(c, x):
            return (c[0] @ w + x[0], c[1] + 1), (c[0][0], -x[1])

        return lax.scan(step, (c, jnp.int32(0)), xs, reverse=True, unroll=2)

    loop = loops_of(fun, ramp(3, 3), ramp(3), (ramp(6, 3), jnp.arange(6, dtype=jnp.int8)))["0"]
    facts = (loop.path, loop.length, loop.reverse, loop.unroll, loop.effects)
    assert facts == ((0,), 6, True, 2, ())
    assert (loop.num_consts, loop.num_carry, loop.num_xs, loop.num_ys) == (1, 2, 2, 2)
    assert loop.carry_bytes == 3 * 4 + 4
    assert loop.stacked_bytes == 6 * (3 * 4 + 1) + 6 * (4 + 1)
    assert loop.scan.length == 6
    assert "scan" not in repr(loop), "a body is long"


def test_ys_that_are_xs_are_no_outputs_of_the_loop():
    loop = loops_of(lambda c, xs: lax.scan(lambda c, x: (c + x, x), c, xs), ramp(3), ramp(4, 3))["0"]
    assert (loop.num_xs, loop.num_ys, loop.stacked_bytes) == (1, 0, 4 * 3 * 4)


def test_a_loop_without_values():
    loop = loops_of(lambda: lax.scan(lambda c, x: (c, None), None, None, length=4))["0"]
    assert (loop.length, loop.num_consts, loop.num_carry, loop.num_xs, loop.num_ys) == (4, 0, 0, 0, 0)
    assert (loop.carry_bytes, loop.stacked_bytes, loop.equations) == (0, 0, 0)


def test_bytes_of_keys():
    keys = jax.random.split(jax.random.key(0), 5)
    loop = loops_of(lambda key, xs: lax.scan(lambda c, x: (x, c), key, xs), keys[0], keys)["0"]
    assert loop.carry_bytes == jax.random.key_data(keys[0]).nbytes
    assert loop.stacked_bytes == 2 * jax.random.key_data(keys).nbytes


def test_effects_of_a_body():
    def fun(c):
        def step(c, _):
            jax.debug.print("{}", c)
            return lax.fori_loop(0, 2, lambda i, c: c + 1, c), None

        return lax.scan(step, c, None, length=3)[0]

    assert {name: loop.effects for name, loop in loops_of(fun, 1).items()} == {"0": ("Debug",), "0/0": ()}


# ---------------------------------------------------------------- work


def two_deep(c, xs):
    def row(c, x):
        c, ys = lax.scan(lambda c, t: (jnp.tanh(c + t), c), c, x)  # 2 equations
        return c * 0.5, (ys, c)  # 1 equation, and the loop

    return lax.scan(row, c, xs)


def test_equations_of_a_body_count_inner_loops_once():
    loops = loops_of(two_deep, ramp(2), ramp(3, 4, 2))
    assert {name: loop.equations for name, loop in loops.items()} == {"0": 4, "0/0": 2}


def test_work_counts_every_iteration():
    block, loops = outline(two_deep, ramp(2), ramp(3, 4, 2))
    assert [loop.work for loop in loops] == [3 * (4 * 2 + 2), 3 * 4 * 2]
    assert _loops.work(block.jaxpr) == 1 + 3 * (4 * 2 + 2)


def test_work_of_a_loop_that_never_runs():
    loops = loops_of(two_deep, ramp(2), ramp(0, 4, 2))
    assert loops["0"].work == 0
    assert loops["0/0"].work == 4 * 2, "as if the outer loop ran once"


def test_work_of_a_body_without_equations():
    loops = loops_of(lambda a, b: lax.scan(lambda c, _: (c[::-1], None), (a, b), None, 3), 1, 2)
    assert (loops["0"].equations, loops["0"].work) == (0, 3)


def test_work_looks_into_calls_and_into_all_branches():
    def fun(c):
        return lax.cond(c > 0, jax.jit(lambda c: c * 2 + 1), jnp.sin, c)

    block, _ = outline(fun, 1.0)
    eqns = [eqn.primitive.name for eqn in _jaxpr.equations(block.jaxpr)]
    assert _loops.work(block.jaxpr) == len(eqns)
    assert {"cond", "mul", "add", "sin"} <= set(eqns)


@pytest.mark.parametrize(("path", "text"), [((0,), "0"), ((0, 1), "0/1"), ((10, 0, 2), "10/0/2")])
def test_paths_as_text(path, text):
    assert _loops.path_text(path) == text
