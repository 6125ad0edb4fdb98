"""Picks the equations that hold loops out of a program, and numbers the loops."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from autoloop import _jaxpr


@dataclass(frozen=True)
class Node:
    """An equation that is a loop (`path` set) or has loops inside (`path` None)."""

    index: int
    eqn: Any
    path: tuple[int, ...] | None
    blocks: tuple[Block, ...]

    @property
    def kind(self) -> str:
        """The primitive's name."""
        return str(self.eqn.primitive.name)

    @functools.cached_property
    def paths(self) -> frozenset[tuple[int, ...]]:
        """Paths of this loop and of all loops inside."""
        inner = frozenset[tuple[int, ...]]().union(*(b.paths for b in self.blocks))
        return inner | {self.path} if self.path is not None else inner

    @functools.cached_property
    def scan(self) -> _jaxpr.Scan:
        """The equation as a `Scan`; only for a node that is a loop."""
        return _jaxpr.read_scan(self.eqn)


@dataclass(frozen=True)
class Block:
    """A jaxpr, with the equations that hold loops picked out in order."""

    jaxpr: _jaxpr.Jaxpr
    nodes: tuple[Node, ...]

    @functools.cached_property
    def paths(self) -> frozenset[tuple[int, ...]]:
        """Paths of all loops inside."""
        return frozenset[tuple[int, ...]]().union(*(n.paths for n in self.nodes))


def outline(jaxpr: _jaxpr.Jaxpr) -> Block:
    """Finds the loops of a closed jaxpr and numbers them: calls on the way add nothing to a path."""
    return _outline(jaxpr, (), 0)[0]


def _outline(jaxpr: _jaxpr.Jaxpr, prefix: tuple[int, ...], first: int) -> tuple[Block, int]:
    nodes, count = [], first
    for index, eqn in enumerate(_jaxpr.inner(jaxpr).eqns):
        path = None
        if eqn.primitive.name == "scan":
            path, count = (*prefix, count), count + 1
            blocks = [_outline(_jaxpr.bodies(eqn)[0], path, 0)[0]]
        else:
            blocks = []
            for body in _jaxpr.bodies(eqn):
                block, count = _outline(body, prefix, count)
                blocks.append(block)
        if path is not None or any(b.nodes for b in blocks):
            nodes.append(Node(index, eqn, path, tuple(blocks)))
    return Block(jaxpr, tuple(nodes)), count
