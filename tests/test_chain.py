"""Chains of elementwise equations: how long a plan makes them, and that none is so long that XLA crashes."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoloop import _foretell, autoloop
from autoloop._call import Call
from autoloop._plan import Plan
from autoloop._program import Program


def program(fun, *args):
    tuned = autoloop(fun)
    call = Call.of(tuned._function, args, {})
    return Program.trace(tuned._function, call.key, call.args, call.kwargs)


def links(c, count=10):
    for i in range(count):
        c = c * 0.5 if i % 2 else c + 0.25
    return c


def loop(body, length=20):
    return lambda c: lax.scan(lambda c, x: (body(c), None), c, None, length=length)[0]


@jax.custom_jvp
def ruled(c):
    return links(c)


ruled.defjvp(lambda c, t: (ruled(*c), t[0]))

#: A body, and by how much it lengthens a chain.
BODIES = {
    "elementwise": (links, 10),
    "in a call": (lambda c: jax.jit(links)(links(c)), 20),
    "under remat": (jax.checkpoint(links), 10),
    "with a rule": (ruled, 10),
    "the longer of two ways": (lambda c: links(c) + c * 2, 11),
    "ended by a product": (lambda c: links(c) @ jnp.ones((4, 4)), 0),
    "ended by a condition": (lambda c: lax.cond(c.sum() > 0, links, links, c), 0),
    "a carry that only starts anew": (lambda c: links(jnp.ones(4)), 0),
    "a carry that stays": (lambda c: c, 0),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_one_iteration_adds(name):
    body, wanted = BODIES[name]
    assert [one.chain for one in program(loop(body), jnp.ones(4)).loops] == [wanted]


def test_swapped_carries_and_none():
    swapped = program(lambda a, b: lax.scan(lambda c, x: ((links(c[1]), c[0]), None), (a, b), None, 4), 1.0, 2.0)
    none = program(lambda xs: lax.map(links, xs), jnp.ones(4))
    assert [p.loops[0].chain for p in (swapped, none)] == [10, 0]


#: Plans of a loop of 8 around one of 20 whose body has 10 links, and the longest chain of each. The outer loop's
#: own links, behind a loop, are not counted where that is gone.
PLANS = {
    "as-written": 10,
    "0/0=unroll(4)": 40,
    "0=unroll(4)": 10,
    "0/0=inline": 200,
    "0/0=unroll(20)": 200,
    "0/0=inline 0=unroll(4)": 800,
    "0=inline": 10,
    "0=inline 0/0=unroll(3)": 50,
    "0=inline 0/0=inline": 0,
    "0/0=inline 0=python(1)": 200,
}


@pytest.mark.parametrize("plan", PLANS)
def test_what_a_plan_makes_of_it(plan):
    nest = program(loop(lambda c: links(loop(links)(c), 3), 8), jnp.ones(4))
    assert nest.why_not(Plan.parse(plan)) is None
    assert nest.chain(Plan.parse(plan)) == PLANS[plan]


def test_a_tuning_leaves_long_ones_out_and_says_so(quick, monkeypatch):
    monkeypatch.setattr(_foretell, "_LONGEST_CHAIN", 50)
    tuned = autoloop(loop(links), forms=["unroll", "inline"], budget_s=20)
    record = tuned.warmup(jnp.ones(4))
    left_out = {t.plan: t.reason for t in record.trials if "chain" in t.reason}
    assert list(left_out) == ["0=unroll(8)"]  # what ends a ladder is said once; outside of loops nothing is too long
    assert "a chain of 120 elementwise equations" in left_out["0=unroll(8)"]
    assert {"0=unroll(2)", "0=unroll(4)"} <= {t.plan for t in record.trials if t.ok}


def test_what_is_as_long_as_written_is_tried():
    space = type("Space", (), {"chain": lambda self, plan: 9000})()
    assert _foretell.too_long_chain(Plan.parse("0=python(1)"), space) == ""
