"""What may be said to the decorator: every bad option is an error that says what is allowed."""

import re

import jax
import numpy as np
import pytest

from autoloop import _options, autoloop
from autoloop._agree import Tolerance
from autoloop._choose import Rules
from autoloop._plans import ALL_FORMS

SECONDS = "a number of seconds, at least 0"
A_FINITE_SECONDS = "a finite number of seconds, at least 0"
WHOLE = "a whole number of at least 1, or None"
AT_LEAST_0 = "at least 0, or None for the default"
FRACTION = "at least 0 and below 1"
FORMS = f"names of forms ({', '.join(ALL_FORMS)})"

BAD = [
    ("budget_s", -1, ValueError, A_FINITE_SECONDS),
    ("budget_s", float("inf"), ValueError, A_FINITE_SECONDS),
    ("budget_s", float("nan"), ValueError, A_FINITE_SECONDS),
    ("budget_s", "30", TypeError, SECONDS),
    ("budget_s", None, TypeError, SECONDS),
    ("budget_s", True, TypeError, SECONDS),
    ("margin", -0.01, ValueError, FRACTION),
    ("margin", 1, ValueError, FRACTION),
    ("margin", float("nan"), ValueError, FRACTION),
    ("margin", "3%", TypeError, FRACTION),
    ("margin", None, TypeError, FRACTION),
    ("margin", False, TypeError, FRACTION),
    ("rtol", -1e-3, ValueError, AT_LEAST_0),
    ("rtol", float("nan"), ValueError, AT_LEAST_0),
    ("rtol", "1e-3", TypeError, AT_LEAST_0),
    ("rtol", True, TypeError, AT_LEAST_0),
    ("atol", -1.0, ValueError, AT_LEAST_0),
    ("atol", float("inf"), ValueError, AT_LEAST_0),
    ("atol", [1.0], TypeError, AT_LEAST_0),
    ("bitwise", 1, TypeError, "True or False"),
    ("bitwise", "yes", TypeError, "True or False"),
    ("bitwise", None, TypeError, "True or False"),
    ("expected_calls", 0, ValueError, WHOLE),
    ("expected_calls", -5, ValueError, WHOLE),
    ("expected_calls", 10.0, TypeError, WHOLE),
    ("expected_calls", True, TypeError, WHOLE),
    ("expected_calls", "many", TypeError, WHOLE),
    ("max_memory_bytes", 0, ValueError, WHOLE),
    ("max_memory_bytes", 1e9, TypeError, WHOLE),
    ("max_memory_bytes", "1GB", TypeError, WHOLE),
    ("forms", ["foo"], ValueError, FORMS),
    ("forms", ["unroll", "unroll(4)"], ValueError, FORMS),
    ("forms", ["as-written"], ValueError, FORMS),
    ("forms", [1], ValueError, FORMS),
    ("forms", "unroll", TypeError, FORMS),
    ("forms", 5, TypeError, FORMS),
    ("progress", "bar", TypeError, "True, False, or None"),
    ("progress", 2, TypeError, "True, False, or None"),
    ("mode", "fast", ValueError, "tune, cached, strict, off"),
    ("make_inputs", {"xs": 1}, TypeError, "a function from specs to a dict of values"),
]


@pytest.mark.parametrize(("name", "value", "error", "allowed"), BAD)
def test_a_bad_option_is_named_with_its_value_and_what_is_allowed(name, value, error, allowed):
    bad = next((v for v in value if v not in ALL_FORMS), value) if error is ValueError and name == "forms" else value
    with pytest.raises(error) as caught:
        autoloop(**{name: value})
    message = str(caught.value)
    assert message.startswith(name)
    assert allowed in message
    assert message.partition("; did you mean")[0].endswith(f"got {bad!r}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("forms", []),
        pytest.param(
            "forms",
            [["unroll"]],
        ),
        pytest.param("progress", 1),
    ],
)
def test_a_bad_option_in_a_corner(name, value):
    with pytest.raises((ValueError, TypeError), match=f"^{name} m"):
        autoloop(**{name: value})


def test_an_unknown_option_is_named_with_those_there_are():
    with pytest.raises(TypeError) as caught:
        autoloop(budget=3, tolerance=1e-3)
    message = str(caught.value)
    assert message.startswith("autoloop() has no option budget, tolerance; the options are: ")
    for name in (*_options.JIT_OPTIONS, "expected_calls", "budget_s", "margin", "rtol", "atol"):
        assert re.search(rf"\b{name}\b", message)


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({"form": ["vmap"]}, "forms"),
        ({"budget": 3}, "budget_s"),
        ({"static_argname": "n"}, "static_argnames"),
        ({"forms": ["inlien"]}, "inline"),
        ({"forms": ["unroll(4)"]}, "unroll"),
    ],
)
def test_a_near_miss_is_answered_with_the_right_word(options, near):
    with pytest.raises((TypeError, ValueError), match=rf"; did you mean '{near}'\?$"):
        autoloop(**options)


@pytest.mark.parametrize("value", [5, "text", None])
def test_only_a_callable_can_be_wrapped(value):
    with pytest.raises(TypeError, match=f"autoloop wraps a function; got {value!r}"):
        autoloop(budget_s=1)(value)


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 7},
        {"static_argnames": "nobody"},
        {"donate_argnums": 7},
        {"donate_argnames": "nobody"},
    ],
)
def test_options_of_jit_fail_as_jit_does_when_the_function_is_wrapped(options):
    def fun(x):
        return x

    with pytest.raises(ValueError) as of_jit:  # noqa: PT011  # the message is compared below
        jax.jit(fun, **options)
    with pytest.raises(ValueError) as ours:  # noqa: PT011
        autoloop(**options)(fun)
    assert str(ours.value) == str(of_jit.value)


GOOD = [
    {"budget_s": 0},
    {"budget_s": 2.5},
    {"margin": 0},
    {"margin": 0.999},
    {"rtol": 0, "atol": 0.0},
    {"rtol": np.float64(1e-3)},
    {"expected_calls": 1},
    {"max_memory_bytes": 10**12},
    {"forms": tuple(ALL_FORMS)},
    pytest.param({"forms": iter(["unroll", "inline"])}, id="an iterator"),
    {"forms": {"unroll"}},
    {"progress": True},
    {"progress": False},
    {"bitwise": True},
    {"mode": "strict"},
    {"mode": None},
    {"make_inputs": dict},
]


@pytest.mark.parametrize("options", GOOD, ids=str)
def test_good_options_are_kept(options):
    wanted = {k: tuple(v) if k == "forms" else v for k, v in options.items() if not hasattr(v, "__next__")}
    found = _options.check(options)
    for name, value in wanted.items():
        assert getattr(found, name) == value


def test_options_by_default():
    found = _options.check({})
    assert found == _options.Options()
    assert found.rules == Rules(margin=0.03, expected_calls=None)
    assert found.tolerance == Tolerance(rtol=None, atol=None, bitwise=False)
    assert found.allowed_forms == tuple(ALL_FORMS)
    assert found.budget_s == 30.0


def test_options_reach_the_search_and_the_gate():
    found = _options.check(
        {"margin": 0.1, "expected_calls": 7, "rtol": 0.5, "atol": 0.25, "bitwise": True, "forms": ["inline"]}
    )
    assert found.rules == Rules(margin=0.1, expected_calls=7)
    assert found.tolerance == Tolerance(rtol=0.5, atol=0.25, bitwise=True)
    assert found.allowed_forms == ("inline",)


@pytest.mark.parametrize(
    ("options", "part"),
    [({}, "call"), ({"max_memory_bytes": 5}, "call, max_memory_bytes=5"), ({"margin": 0.1}, "call, margin=0.1")],
)
def test_records_of_other_rules_are_not_taken(options, part):
    assert _options.check(options).context() == part
