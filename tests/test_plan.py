"""The text of plans, which plans fit a program and why others do not, and what a plan compiles."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoloop import _plan
from autoloop._plan import Choice, Plan

# ---------------------------------------------------------------- text

paths = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(tuple)
names = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)
words = st.text("abcxyz_019", min_size=1, max_size=6).filter(lambda w: not w.isdecimal())
choices = st.builds(Choice, paths, names, st.none() | st.integers(0, 10**6) | words)
options = st.sampled_from([option for listed in _plan.COMPILER_OPTIONS.values() for option in listed])
plans = st.builds(
    Plan,
    st.lists(choices, max_size=4, unique_by=lambda c: c.path).map(tuple),
    st.lists(options, max_size=2, unique_by=lambda o: o[0]).map(tuple),
)


@settings(deadline=None)
@given(plans)
def test_a_printed_plan_reads_back_as_itself(plan):
    assert Plan.parse(str(plan)) == plan
    assert Plan.parse(plan) is plan


@settings(deadline=None)
@given(st.text("01/=()a_-٣² \t", max_size=12) | st.text(max_size=12))
def test_any_text_is_a_plan_or_a_value_error(text):
    try:
        plan = Plan.parse(text)
    except ValueError:
        return
    assert Plan.parse(str(plan)) == plan


@settings(deadline=None)
@given(plans)
def test_order_does_not_count(plan):
    backwards = Plan(plan.choices[::-1], plan.options[::-1])
    assert (backwards, hash(backwards), str(backwards)) == (plan, hash(plan), str(plan))


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("0=inline", [Choice((0,), "inline")]),
        ("0/0=unroll(8)", [Choice((0, 0), "unroll", 8)]),
        ("1/10=distribute(rng)", [Choice((1, 10), "distribute", "rng")]),
        ("  0/0=unroll(8)\n0=python(1) ", [Choice((0,), "python", 1), Choice((0, 0), "unroll", 8)]),
        ("0=unroll(-3)", [Choice((0,), "unroll", -3)]),
        ("10=eager 2=eager", [Choice((2,), "eager"), Choice((10,), "eager")]),
        ("as-written", []),
        ("", []),
        (" as-written ", []),
    ],
)
def test_texts_and_what_they_mean(text, choices):
    plan = Plan.parse(text)
    assert list(plan.choices) == choices
    assert plan.as_written == (not choices)
    assert str(plan) == (" ".join(map(str, choices)) or "as-written")


def test_xla_options_stand_after_the_choices():
    plan = Plan.parse("xla_backend_optimization_level=1 0=inline")
    assert plan.options == (("xla_backend_optimization_level", "1"),)
    assert str(plan) == "0=inline xla_backend_optimization_level=1"
    assert not Plan((), plan.options).as_written


@pytest.mark.parametrize(
    "word",
    [
        "inline",
        "0",
        "0=",
        "=inline",
        "0/=inline",
        "/0=inline",
        "a=inline",
        "-1=inline",
        "0=Inline",
        "0=unroll()",
        "0=unroll(-a)",
        "0=unroll(2.5)",
        "0=unroll(2",
        "0=unroll(2))",
        "0=unroll(2)0=inline",
        "0=inline;",
        "as-written",
    ],
)
def test_a_word_that_is_no_choice(word):
    text = f"1=inline {word}"
    with pytest.raises(ValueError, match="is not of the form") as caught:
        Plan.parse(text)
    assert str(caught.value) == (
        f"plan {text!r}: {word!r} is not of the form PATH=FORM or PATH=FORM(PARAMETER), "
        "like '0=inline' or '0/0=unroll(8)'; the empty plan is 'as-written'"
    )


@pytest.mark.parametrize("value", [None, 3, b"0=inline", ["0=inline"]])
def test_neither_a_plan_nor_a_text(value):
    with pytest.raises(TypeError, match="a plan is a Plan or its text") as caught:
        Plan.parse(value)
    assert str(caught.value) == f"a plan is a Plan or its text, like '0/0=unroll(8)'; got {value!r}"


@pytest.mark.parametrize(
    "text", ["0=inline 0=unroll(2)", "0=eager 0=eager", "xla_graph=1 xla_graph=2", "00=inline 0=eager"]
)
def test_a_loop_or_an_option_named_twice(text):
    with pytest.raises(ValueError, match="a plan may name each loop and each option once; got"):
        Plan.parse(text)


def test_plans_change_one_choice_at_a_time():
    plan = Plan.parse("0=python(1) 0/0=unroll(8) xla_backend_optimization_level=1")
    assert plan.choice((0, 0)) == Choice((0, 0), "unroll", 8)
    assert plan.choice((1,)) is None
    assert str(plan.with_choice(Choice((0, 0), "inline"))).startswith("0=python(1) 0/0=inline xla_")
    assert str(plan.with_choice(Choice((1,), "inline"))).startswith("0=python(1) 0/0=unroll(8) 1=inline xla_")
    assert str(plan.without((0,))) == "0/0=unroll(8) xla_backend_optimization_level=1"
    assert plan.without((5,)) == plan
    assert str(plan.with_options([])) == "0=python(1) 0/0=unroll(8)"
