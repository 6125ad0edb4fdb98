"""Programs cut into parts, and the values that live between the parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import PROGRAMS, as_it_is, assert_same, outline, put_together, ramp
from jax import lax
from jax.extend import core as jec

from autoloop import _jaxpr, _outline, _parts, autoloop


def twice_with_something_between(c, xs):
    a = jnp.sin(c)
    b, ys = lax.scan(lambda c, x: (c + x, c), a, xs)
    d = jnp.cos(b) + ys.sum()
    return lax.scan(lambda c, x: (c * x, None), d, xs)[0] + c


def test_a_cut_holds_every_equation_in_order():
    block, _ = outline(twice_with_something_between, 1.0, ramp(3))
    parts = _parts.cut(block, block.nodes)
    kinds = [type(part.what).__name__ for part in parts]
    assert kinds == ["Block", "Node", "Block", "Node", "Block"]
    names = []
    for part in parts:
        eqns = [part.what.eqn] if isinstance(part.what, _outline.Node) else part.what.jaxpr.eqns
        names += [eqn.primitive.name for eqn in eqns]
    assert names == [eqn.primitive.name for eqn in block.jaxpr.eqns]


def test_a_cut_at_some_nodes_leaves_the_others_in_blocks():
    block, _ = outline(twice_with_something_between, 1.0, ramp(3))
    whole = _parts.cut(block, [])
    assert [part.what.paths for part in whole] == [{(0,), (1,)}]
    second = _parts.cut(block, block.nodes[1:])
    assert [part.what.paths for part in second] == [{(0,)}, {(1,)}, set()]
    (node,) = second[0].what.nodes
    assert second[0].what.jaxpr.eqns[node.index].primitive.name == "scan"


def test_a_cut_of_nothing():
    block, _ = outline(lambda x: x, 1.0)
    assert _parts.cut(block, []) == []
    assert _parts.Wires(block.jaxpr, []).run([5]) == [5]


def test_what_no_part_reads_again_is_dead():
    block, _ = outline(twice_with_something_between, 1.0, ramp(3))
    args = (jnp.float32(1), ramp(3))
    parts = _parts.cut(block, block.nodes)
    for number, part in enumerate(parts):
        read = [v for later in parts[number + 1 :] for v in later.inputs if not isinstance(v, jec.Literal)]
        assert not {*part.dead} & {*read}
    dead = [name for part in parts for name in part.dead]
    known = {v for part in parts for v in (*part.inputs, *part.outputs) if not isinstance(v, jec.Literal)}
    assert set(dead) == known - set(block.jaxpr.jaxpr.outvars)
    assert len(dead) == len(set(dead))
    wires = _parts.Wires(block.jaxpr, [(part, as_it_is(part)) for part in parts])
    for _ in range(2):  # a run leaves nothing behind
        assert_same(twice_with_something_between(*args), wires.run(args)[0])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_cut_at_every_node_and_put_together_computes_the_same(program):
    def again(*args):
        block, _ = outline(program.fun, *args)
        outs = put_together(block, *jax.tree.leaves(args))
        return _jaxpr.conform_all(outs, _jaxpr.out_avals(block.jaxpr))

    with program.args() as args:
        expected = jax.jit(program.fun)(*args)
        got = jax.jit(again)(*args)
    assert_same(jax.tree.leaves(expected), got, program.name)


def test_literals_keep_their_types():
    jaxpr = jax.make_jaxpr(lambda: (1.0, 2, True, np.float32(3)))()
    found = [_parts.literal(atom) for atom in jaxpr.jaxpr.outvars]
    assert [(x.item(), x.dtype.name, x.weak_type) for x in found] == [
        (1.0, "float32", True),
        (2, "int32", True),
        (True, "bool", False),
        (3.0, "float32", False),
    ]


def scalars():
    half = lax.convert_element_type(1.0, jnp.float16)
    return 1.0, 2, True, 3j, np.float32(3), np.int8(4), np.uint32(2**32 - 1), half, jnp.bfloat16(0.5)


def test_what_stands_for_a_literal_has_its_value_and_its_type():
    atoms = jax.make_jaxpr(scalars)().jaxpr.outvars
    assert any(isinstance(atom, jec.Literal) for atom in atoms)
    for atom in (a for a in atoms if isinstance(a, jec.Literal)):
        (got,) = jax.jit(lambda x: [x])(_parts.bare(atom))
        assert (got.dtype, got.weak_type) == (atom.aval.dtype, atom.aval.weak_type)
        assert got == atom.val


def test_a_python_loop_puts_no_literal_on_the_device_at_each_call(monkeypatch):
    def fun(x):
        def step(c, _):
            return c * 0.5 + lax.scan(lambda d, _: (d + x, None), 1.0, None, 2)[0], c

        return *lax.scan(step, 1.0, None, 3), 2.0

    run = autoloop(fun, mode="cached").using("0=python(1) 0/0=python(1)")
    expected, first = jax.jit(fun)(2.0), run(2.0)
    made = []
    real = _parts.literal
    monkeypatch.setattr(_parts, "literal", lambda atom: made.append(atom) or real(atom))
    second = run(2.0)
    assert len(made) == 1  # the output, which is the caller's own
    second[2].delete()
    for got in (first, run(2.0)):
        assert_same(expected, got)


@pytest.mark.parametrize(
    "plan", ["0=python(1)", "0=python(2)", "0=eager", "0=eager 0/0=eager", "0=python(1) 0/0=eager"]
)
def test_a_literal_that_a_call_passes_through_comes_out_as_an_array(plan):
    @jax.jit
    def inner(x, weak, strong):
        def step(c, _):
            return lax.scan(lambda d, _: (d * weak, d), c, None, 2)[0] + strong, weak

        return lax.scan(step, x, None, 3), weak, weak, strong

    def fun(x):
        return inner(x, 0.5, np.float32(2))

    got = autoloop(fun, mode="cached").using(plan)(1.0)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(got))
    assert_same(jax.jit(fun)(1.0), got)
    weak = [leaf.weak_type for leaf in jax.tree.leaves(jax.jit(fun)(1.0))]
    assert [leaf.weak_type for leaf in jax.tree.leaves(got)] == weak
