"""Programs cut into parts, and the values that live between the parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import PROGRAMS, as_it_is, assert_same, outline, put_together, ramp
from jax import lax
from jax.extend import core as jec

from autoloop import _jaxpr, _outline, _parts


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
