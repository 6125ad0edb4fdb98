"""Outlines hold every loop once, where its equation stands."""

import jax
import pytest
from helpers import PROGRAMS, outline
from jax import lax

from autoloop import _jaxpr


def all_nodes(block):
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from all_nodes(inner)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_outlines_hold_every_scan_that_we_may_rewrite(program):
    with program.args() as args:
        block, _ = outline(program.fun, *args)
    nodes = list(all_nodes(block))
    scans = [eqn for eqn in _jaxpr.equations(block.jaxpr) if eqn.primitive.name == "scan"]
    assert len([n for n in nodes if n.path is not None]) == len(scans)
    assert len(block.paths) == len(scans)
    for node in nodes:
        assert node.kind == node.eqn.primitive.name
        assert node.paths, "a node is a loop or holds one"
        assert (node.path is not None) == (node.kind == "scan")
        assert node.path is None or node.scan.length == node.eqn.params["length"]


def test_nodes_stand_where_their_equations_do():
    block, _ = outline(lambda c: jax.jit(lambda c: lax.fori_loop(0, 3, lambda i, c: c * 2, c))(c + 1) - 1, 1)
    (call,) = block.nodes
    (loop,) = call.blocks[0].nodes
    assert (call.kind, call.path, call.paths) == ("jit", None, {(0,)})
    assert (loop.kind, loop.path, loop.paths) == ("scan", (0,), {(0,)})
    assert _jaxpr.direct_equations(block.jaxpr)[call.index] is call.eqn
