"""The loop tree: what it says of each loop, and why forms are not legal there."""

import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoloop import _jaxpr, autoloop


@autoloop
def train(weights, sequences):
    def sequence(w, xs):
        def step(state, x):
            return {"h": jnp.tanh(w @ state["h"] + x), "n": state["n"] + 1}, None

        end, _ = lax.scan(step, {"h": jnp.zeros(4), "n": 0}, xs)
        return 0.9 * w + 0.1 * jnp.outer(end["h"], end["h"]), end["h"].sum()

    return lax.scan(sequence, weights, sequences)


SPECS = jax.ShapeDtypeStruct((4, 4), "float32"), jax.ShapeDtypeStruct((5, 30, 4), "float32")


@pytest.fixture(scope="module")
def tree():
    return train.loops(*SPECS)


def test_the_tree_as_it_prints(tree):
    text = re.sub(
        r"\d+ equations, (.*)% of the work, \d+% its own", r"# equations, \1% of the work, #% its own", str(tree)
    )
    assert text.replace(f"{__name__}.", "").splitlines() == [
        "train  [f32[4,4] f32[5,30,4]]",
        "0: 5 iterations, 64 B carried, 2.42 kB stacked, # equations, 100% of the work, #% its own",
        "│  legal: unroll(2, 4, 5), inline, python(1), eager",
        "│  legal, not tried (nothing to gain): distribute",
        "│  `vmap`: iteration t reads `w` written by t-1",
        "│  `until`: no carry is kept under a condition, so none tells that the loop is over",
        "│  `associative`: scan makes `w` neither affine in its last value nor a max or min of sums with it",
        "└─ 0/0: 30 iterations, 20 B carried, 480 B stacked, 4 equations, 93% of the work",
        "      legal: unroll(2, 4, 8, 16, 30), inline",
        "      legal inside 0=python(1): python(1, 16), eager",
        "      `vmap`: iteration t reads `state['h']` written by t-1",
        "      `distribute`: outside the recurrence through `state['h']` the body holds nothing worth moving",
        "        (add)",
        "      `until`: no carry is kept under a condition, so none tells that the loop is over",
        "      `associative`: dot_general makes `state['h']` neither affine in its last value nor a max or",
        "        min of sums with it",
    ]


def test_it_neither_tunes_nor_stores(tree, tunings, own_store):
    assert train.loops(jnp.eye(4), jnp.ones((5, 30, 4))) == tree
    assert tunings == []
    assert not own_store.exists()


def test_it_is_frozen_and_plain_data(tree):
    with pytest.raises(AttributeError):
        tree.loops[0].length = 3
    data = json.loads(json.dumps(tree.to_dict()))
    assert data["loops"][0]["loops"][0]["path"] == "0/0"
    assert data["loops"][0]["forms"][0] == {
        "form": "unroll",
        "why_not": "",
        "tried": [2, 4, 5],
        "inside": "",
        "why_untried": "",
    }


def test_every_form_is_answered_at_every_loop(tree):
    from autoloop._forms import FORMS

    for loop in (tree.loops[0], tree.loops[0].loops[0]):
        assert [form.form for form in loop.forms] == [form.name for form in FORMS]


def test_the_shares_of_loops_side_by_side_and_backwards():
    def side_by_side(x):
        x = lax.fori_loop(0, 30, lambda i, v: jnp.sin(v) * 2, x)
        return lax.scan(lambda c, _: (c + 1, None), x, None, 1, reverse=True)[0]

    tree = autoloop(side_by_side).loops(jnp.ones(3))
    assert [loop.reverse for loop in tree.loops] == [False, True]
    assert sum(loop.share for loop in tree.loops) < 1
    assert "1 iteration, backwards, 12 B carried, 0 B stacked, 1 equation, " in str(tree)


def test_a_loop_inside_a_cond_says_why_no_python_loop_runs_it():
    def inside(x):
        return lax.cond(x > 0, lambda v: lax.fori_loop(0, 3, lambda i, u: u * 2, v), lambda v: v, x)

    assert "`python`: a Python loop can't stand inside a cond or while" in str(autoloop(inside).loops(1.0))


def test_side_effects_and_what_is_not_tuned():
    def shown(x):
        def body(c, _):
            jax.experimental.io_callback(lambda v: None, None, c)
            return c * 2, None

        return lax.scan(body, x, None, 3)[0]

    text = str(autoloop(shown).loops(1.0))
    assert "`vmap`: the body has side effects (IO), which must stay as they are" in text
    assert "not tuned: the program has side effects (IO)" in text


def test_without_loops():
    assert str(autoloop(jnp.sin).loops(1.0)).endswith("not tuned: there is no loop in the program")


def test_forms_that_the_decorator_does_not_allow_are_not_tried():
    tree = autoloop(forms=["inline"])(train.__wrapped__).loops(*SPECS)
    left_out = "legal, not tried (not among forms=): unroll, distribute, python, eager"
    assert f"│  legal: inline\n│  {left_out}\n" in str(tree)


def test_loops_with_hardly_any_work_are_not_tried():
    def lopsided(x):
        x = lax.scan(lambda c, _: (c + 1, None), x, None, 2)[0]
        return lax.scan(lambda c, _: (jnp.sin(c), None), x, None, 5000)[0]

    text = str(autoloop(lopsided).loops(1.0))
    assert text.count("legal, not tried (the loop does under 1% of the work): unroll, inline, ") == 1


def test_a_function_that_closes_over_tracers():
    notes = []

    def whole(w):
        inner = autoloop(lambda x: lax.scan(lambda c, _: (c * w, None), x, None, 3)[0])
        notes.append(inner.loops(1.0).note)
        return inner(1.0)

    jax.jit(whole)(2.0)
    assert notes[0] == "the function closes over values of an outer trace"


def test_it_shows_in_notebooks_as_text():
    assert autoloop(lambda x: x < 1).loops(1.0)._repr_html_().startswith("<pre>")


# ---------------------------------------------------------------- names of carries


def scan_of(fun, *args):
    (eqn,) = [e for e in jax.jit(fun).trace(*args).jaxpr.eqns if e.primitive.name == "scan"]
    return _jaxpr.read_scan(eqn)


def test_carries_have_the_names_of_the_users_body():
    def body(state, x):
        return (state[0] + x, {"b": state[1]["b"] * 2}), None

    start = (0.0, {"b": 1.0})
    assert _jaxpr.carry_names(scan_of(lambda xs: lax.scan(body, start, xs)[0], jnp.ones(3))) == [
        "state[0]",
        "state[1]['b']",
    ]


def test_a_carry_without_a_name_is_told_by_position_and_type():
    def fun(xs):
        return lax.scan(lambda c, x: (jnp.tanh(c + x), None), jnp.zeros(()), xs)[0]

    tree = autoloop(jax.grad(fun)).loops(jnp.ones(3))
    assert "`vmap`: iteration t reads carry 0 (f32[]) written by t-1" in str(tree)
