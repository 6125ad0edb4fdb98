"""Programs and their parameters as text that every process writes alike."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoloop._canonical import canonical_lines, stable_text


class Plain:
    """An object whose repr holds its address."""


def lines(fun, *args):
    return list(canonical_lines(jax.make_jaxpr(fun)(*args)))


def named(x):
    return x


TEXTS = [
    (1, "1"),
    ("text", "'text'"),
    (None, "None"),
    (0.1, "0.1"),
    ((1, [2, "a"]), "(1, (2, 'a'))"),
    ({"b": 1, "a": (2,)}, "{a: (2), b: 1}"),
    ({3, 1, 2}, "{1, 2, 3}"),
    (frozenset({"b", "a"}), "{'a', 'b'}"),
    (np.ones((2, 3), np.int8), "int8[2, 3]"),
    (jnp.ones(2, jnp.bfloat16), "bfloat16[2]"),
    (named, "function"),
    (functools.partial(named, 1), "partial"),
    (np.dtype("int8"), "dtype('int8')"),
]


@pytest.mark.parametrize(("value", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_values_as_text(value, text):
    assert stable_text(value) == text


def test_texts_hold_no_addresses():
    assert " at 0x" in repr(Plain())
    assert stable_text(Plain()) == stable_text(Plain()) == f"<{__name__}.Plain object>"
    assert stable_text({"a": [Plain()]}) == stable_text({"a": [Plain()]})


def test_arrays_differ_by_type_only():
    assert stable_text(np.zeros(2)) == stable_text(np.ones(2))
    assert stable_text(np.zeros(2)) != stable_text(np.zeros(2, np.float32))
    assert stable_text(np.zeros(2)) != stable_text(np.zeros(3))


def test_a_program_is_its_inputs_equations_and_outputs():
    first, *equations, last = lines(lambda x, y: jnp.sin(x) * y, jnp.ones(2), 1.0)
    assert first == "in v0:float32[2] v1:float32[]*"
    assert [line.split(" = ")[1].split("{")[0] for line in equations[-1:]] == ["mul"]
    assert last.startswith("out v")


def test_variables_are_numbered_as_they_appear():
    one = lines(lambda a, b: (a + b) * b, 1.0, 2.0)
    other = lines(lambda first, second: (first + second) * second, 3.0, 4.0)
    assert one == other
    assert lines(lambda a, b: (a + b) * a, 1.0, 2.0) != one


def test_a_weak_type_is_part_of_the_program():
    strong, weak = lines(jnp.sin, jnp.float32(1)), lines(jnp.sin, 1.0)
    assert strong != weak
    assert [line.replace("*", "") for line in weak] == strong


def test_inner_programs_are_written_out():
    def loop(body):
        return lambda x: lax.scan(lambda c, _: (body(c), None), x, None, length=3)

    one, other = lines(loop(jnp.sin), 1.0), lines(loop(jnp.cos), 1.0)
    assert any("sin" in line for line in one)
    assert [line.replace("sin", "cos") for line in one] == other


def test_the_name_of_a_jitted_function_is_not_part_of_the_program():
    def one(x):
        return x * 2

    def other(x):
        return x * 2

    assert lines(lambda x: jax.jit(one)(x), 1.0) == lines(lambda x: jax.jit(other)(x), 1.0)
