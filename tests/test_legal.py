"""Which plans fit a program, why others do not, and what a plan would compile and dispatch."""

import jax
import jax.numpy as jnp
import pytest
from helpers import FORMS_BY_NAME, PROGRAMS, legal_plans, outline, ramp
from jax import lax

from autoloop import _apply, _legal
from autoloop._forms import FORMS
from autoloop._plan import Choice, Plan


def nest(c):
    """Loops 0 with 0/0 inside, 1 inside a cond, 2 with 2/0 inside a while."""

    def row(c, t):
        return lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) + t, c), c

    def counted(c):
        return lax.fori_loop(0, 3, lambda i, c: c * 0.5, c)

    c, _ = lax.scan(row, c, jnp.arange(5.0))
    c = lax.cond(c.sum() > 0, counted, lambda c: c, c)
    return lax.while_loop(lambda c: c.sum() > 1, lambda c: lax.scan(lambda c, t: (counted(c), None), c, None, 2)[0], c)


@pytest.fixture(scope="module")
def loops():
    return outline(nest, ramp(3))[1]


@pytest.mark.parametrize(
    "text",
    [
        "as-written",
        "0=unroll(2)",
        "0=inline 0/0=unroll(4) 1=inline 2=unroll(2) 2/0=inline",
        "0=python(5)",
        "0=python(1) 0/0=python(3)",
        "0=python(1) 0/0=eager",
        "0=eager 0/0=eager 1=unroll(3)",
        "0=eager 0/0=python(2)",
        "0=python(2) 0/0=inline",
        "xla_backend_optimization_level=1 0=python(1)",
    ],
)
def test_plans_that_fit(loops, text):
    assert _legal.why_not(Plan.parse(text), loops, FORMS_BY_NAME) is None


FORM_NAMES = ", ".join(form.name for form in FORMS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("3=inline", "3=inline: there is no loop 3; the loops are: 0, 0/0, 1, 2, 2/0"),
        ("0/1=inline", "0/1=inline: there is no loop 0/1; the loops are: 0, 0/0, 1, 2, 2/0"),
        ("0=inlien", f"0=inlien: there is no form 'inlien'; the forms are: {FORM_NAMES}; did you mean 'inline'?"),
        ("0/0=unroll", "0/0=unroll: write 0/0=unroll(NUMBER)"),
        ("0=python", "0=python: write 0=python(NUMBER)"),
        ("0=inline(2)", "0=inline(2): write 0=inline"),
        ("0=eager(1)", "0=eager(1): write 0=eager"),
        (
            "0=unroll(0)",
            "0=unroll(0): the bodies per step must be a number from 1 to the length 5; got 0",
        ),
        (
            "0/0=unroll(5)",
            "0/0=unroll(5): the bodies per step must be a number from 1 to the length 4; got 5",
        ),
        (
            "0=unroll(all)",
            "0=unroll(all): the bodies per step must be a number from 1 to the length 5; got all",
        ),
        (
            "0=python(0)",
            "0=python(0): the iterations per step must be a number from 1 to the length 5; got 0",
        ),
        (
            "0=python(6)",
            "0=python(6): the iterations per step must be a number from 1 to the length 5; got 6",
        ),
        ("1=eager", "1=eager: a Python loop can't stand inside a cond or while"),
        ("2=python(1)", "2=python(1): a Python loop can't stand inside a cond or while"),
        (
            "2=inline 2/0=eager",
            "2/0=eager: a Python loop can't stand inside a cond or while",
        ),
        (
            "0/0=eager",
            "0/0=eager: a Python loop needs a Python loop around it; loop 0 runs as written",
        ),
        (
            "0=unroll(2) 0/0=python(1)",
            "0/0=python(1): a Python loop needs a Python loop around it; loop 0 runs as 0=unroll(2)",
        ),
        (
            "0=python(2) 0/0=eager",
            "0/0=eager: a Python loop needs a Python loop around it; loop 0 runs as 0=python(2)",
        ),
        (
            "0=python(1) 0/0=eager xla_backend_optimization_level=1",
            "0/0=eager: XLA options (xla_backend_optimization_level) do not reach operations "
            "that are dispatched one by one",
        ),
        ("0=nope 0/0=eager", f"0=nope: there is no form 'nope'; the forms are: {FORM_NAMES}"),
    ],
)
def test_plans_that_do_not_fit(loops, text, reason):
    assert _legal.why_not(Plan.parse(text), loops, FORMS_BY_NAME) == reason


@pytest.mark.parametrize("option", ["xla_dump_to=here", "xla_backend_optimization_level=0"])
def test_xla_options_that_no_plan_may_carry(loops, option):
    reason = _legal.why_not(Plan.parse(option), loops, FORMS_BY_NAME)
    assert reason.startswith(f"{option}: the XLA options that a plan may carry are: xla_")
    assert "xla_backend_optimization_level=1" in reason


def test_a_program_without_loops():
    _, none = outline(jnp.sin, ramp(3))
    assert _legal.why_not(Plan(), none, FORMS_BY_NAME) is None
    reason = _legal.why_not(Plan.parse("0=inline"), none, FORMS_BY_NAME)
    assert reason == "0=inline: there is no loop 0; the loops are: none"


def printing(c):
    def step(c, _):
        jax.debug.print("{}", c)
        return c * 2, None

    return lax.scan(step, c, None, length=3)[0]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_body_with_effects_is_for_forms_that_keep_them(form):
    _, loops = outline(printing, 1.0)
    plan = Plan((Choice((0,), form.name, 2 if form.takes else None),))
    reason = _legal.why_not(plan, loops, FORMS_BY_NAME)
    refused = f"{plan}: the body has side effects (Debug), which must stay as they are"
    assert (reason == refused) == (not form.keeps_effects)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_every_rung_of_a_ladder_is_legal(form):
    for program in PROGRAMS:
        with program.args() as args:
            _, loops = outline(program.fun, *args)
        for loop in loops:
            for rung in (rung for ladder in form.ladders(loop) for rung in ladder):
                choice = Choice(loop.path, form.name, rung)
                reason = _legal.form_why_not(choice, FORMS_BY_NAME) or form.why_not(loop, rung)
                assert reason is None, f"{program.name}, {choice}: {reason}"


# ---------------------------------------------------------------- what a plan compiles


def test_only_python_loops_are_on_the_host():
    with PROGRAMS[0].args() as args:
        plans = legal_plans(PROGRAMS[0].fun, args)
    for plan in plans:
        names = {choice.form for choice in plan.choices}
        assert _legal.on_host(plan, FORMS_BY_NAME) == bool(names & {"python", "eager"})


@pytest.mark.parametrize(
    ("text", "own", "inside"),
    [
        ("as-written", 1, 1),
        ("0=inline", 5, 5),
        ("0/0=inline", 1, 4),
        ("0=inline 0/0=inline", 5, 20),
        ("0=unroll(5) 0/0=unroll(2)", 5, 10),
        ("0=unroll(2)", 3, 3),  # two bodies a step, and one for the fifth iteration
        ("0/0=unroll(3)", 1, 4),  # three bodies a step, and one for the fourth iteration
        ("0=python(1) 0/0=inline", 1, 4),
        ("0=eager", 1, 1),
    ],
)
def test_size_counts_the_copies_of_each_body(text, own, inside):
    def two_deep(c):
        return lax.scan(lambda c, t: (lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) + t, c), c), c, jnp.arange(5.0))

    _, loops = outline(two_deep, ramp(3))
    outer, inner = loops
    size = _legal.size(Plan.parse(text), loops, FORMS_BY_NAME)
    assert size == own * (outer.equations - inner.equations) + inside * inner.equations


def test_size_counts_the_unrolling_as_written():
    _, loops = outline(lambda c: lax.scan(lambda c, _: (c * 2, c), c, None, 6, unroll=3), ramp(3))
    assert _legal.size(Plan(), loops, FORMS_BY_NAME) == 3 * loops[0].equations
    assert _legal.size(Plan.parse("0=unroll(1)"), loops, FORMS_BY_NAME) == loops[0].equations


def test_a_plan_without_python_loops_is_one_dispatch(loops):
    assert _legal.dispatches(Plan.parse("0=inline 1=inline"), loops, FORMS_BY_NAME) == 1


def test_python_loops_are_dispatched_once_a_step(loops):
    dispatches = [
        _legal.dispatches(Plan.parse(text), loops, FORMS_BY_NAME)
        for text in ("0=python(5)", "0=python(1)", "0=python(1) 0/0=python(1)")
    ]
    assert dispatches == sorted(set(dispatches)), "more steps, more dispatches"
    assert dispatches[2] >= 5 * 4


def test_forms_say_where_they_run():
    traced, host = Plan.parse("0=unroll(2)"), Plan.parse("0=eager")
    block, _ = outline(nest, ramp(3))
    with pytest.raises(NotImplementedError, match="eager runs on the host only"):
        _apply.Applied(host, FORMS_BY_NAME).run_block(block, ramp(3))
    with pytest.raises(NotImplementedError, match="unroll runs in a trace only"):
        FORMS_BY_NAME["unroll"].build(None, 2)
    assert not _legal.on_host(traced, FORMS_BY_NAME)
