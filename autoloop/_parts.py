"""Cuts a program into stretches of equations and the loops between them, and keeps values while they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoloop import _jaxpr, _mesh, _outline
from autoloop._jaxpr import jec


@dataclass(frozen=True)
class Part:
    """A stretch of a program: a `Block` to run as it is, or the `Node` that something else runs."""

    what: _outline.Block | _outline.Node
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    dead: tuple[Any, ...] = ()  # variables that nothing reads once this part ran


def cut(block: _outline.Block, at: Iterable[_outline.Node]) -> list[Part]:
    """Cuts a block into the nodes given and the stretches of equations between them."""
    jaxpr = _jaxpr.inner(block.jaxpr)
    nodes = sorted(at, key=lambda n: n.index)
    parts: list[Part] = []
    start = 0
    for node in [*nodes, None]:
        end = len(jaxpr.eqns) if node is None else node.index
        if start < end:
            parts.append(_stretch(block, start, end))
        if node is not None:
            parts.append(Part(node, tuple(node.eqn.invars), tuple(node.eqn.outvars)))
            start = node.index + 1
    return _with_dead(parts, jaxpr)


def _with_dead(parts: list[Part], jaxpr: Any) -> list[Part]:
    live = {v for v in jaxpr.outvars if not isinstance(v, jec.Literal)}
    found = []
    for part in reversed(parts):
        touched = [v for v in (*part.inputs, *part.outputs) if not isinstance(v, jec.Literal)]
        found.append(dataclasses.replace(part, dead=tuple(dict.fromkeys(v for v in touched if v not in live))))
        live.update(touched)
    return found[::-1]


def _stretch(block: _outline.Block, start: int, end: int) -> Part:
    jaxpr = _jaxpr.inner(block.jaxpr)
    eqns = jaxpr.eqns[start:end]
    made = {v for e in eqns for v in e.outvars}
    used = {v: None for e in eqns for v in e.invars if not isinstance(v, jec.Literal) and v not in made}
    later = {v for e in jaxpr.eqns[end:] for v in e.invars if not isinstance(v, jec.Literal)}
    later |= {v for v in jaxpr.outvars if not isinstance(v, jec.Literal)}
    outs = [v for e in eqns for v in e.outvars if v in later]
    nodes = tuple(
        _outline.Node(n.index - start, n.eqn, n.path, n.blocks) for n in block.nodes if start <= n.index < end
    )
    return Part(_outline.Block(_jaxpr.assemble(eqns, list(used), outs, block.jaxpr), nodes), tuple(used), tuple(outs))


class Wires:
    """What stands between the parts of a block, on the host or in a trace: where each value goes is found out once.

    Args:
        jaxpr: of the block.
        parts: of the block, each with what runs it: from its inputs to its outputs.
        given: what parts are given for a literal.
    """

    def __init__(
        self,
        jaxpr: _jaxpr.Jaxpr,
        parts: Sequence[tuple[Part, Callable[..., Sequence[Any]]]],
        given: Callable[[Any], Any] | None = None,
    ) -> None:
        program = _jaxpr.inner(jaxpr)
        made = [v for part, _ in parts for v in part.outputs]
        # Atoms by identity, as literals are not hashable in every jax.
        literals = [a for part, _ in parts for a in part.inputs if isinstance(a, jec.Literal)]
        atoms = [*program.constvars, *program.invars, *made, *literals]
        places = {id(atom): place for place, atom in enumerate(atoms)}

        def of(atoms: Iterable[Any]) -> tuple[int, ...]:
            return tuple(places[id(atom)] for atom in atoms)

        self._consts, self._outvars = tuple(jaxpr.consts), program.outvars
        self._outputs = tuple(None if isinstance(v, jec.Literal) else places[id(v)] for v in program.outvars)
        self._steps = [(run, of(p.inputs), of(p.outputs), of(v for v in p.dead if id(v) in places)) for p, run in parts]
        self._rest = (*(None for _ in made), *map(given or literal, literals))

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The block's outputs; what no part reads again is let go on the way."""
        held = [*self._consts, *values, *self._rest]
        for run, inputs, outputs, dead in self._steps:
            for place, value in zip(outputs, run(*[held[place] for place in inputs]), strict=True):
                held[place] = value
            for place in dead:
                held[place] = None
        pairs = zip(self._outputs, self._outvars, strict=True)
        return [literal(atom) if place is None else held[place] for place, atom in pairs]


def literal(atom: Any) -> Any:
    """The value of a literal as an array of its exact type, weak or not."""
    return _jaxpr.conform(jnp.asarray(atom.val, atom.aval.dtype), atom.aval)


def bare(atom: Any) -> Any:
    """The value of a literal for a compiled program: a number, for which nothing is put on a device beforehand."""
    if not atom.aval.weak_type:
        return np.asarray(atom.val, atom.aval.dtype)
    number = np.asarray(atom.val).item()
    same = jax.typeof(number).dtype == atom.aval.dtype
    return number if same else literal(atom)


def empty(aval: Any, length: int | None = None) -> Any:
    """An array of zeros (or of zero keys) like `aval`, with a leading axis of `length` if given."""
    shape = aval.shape if length is None else (length, *aval.shape)
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return jnp.empty(shape, aval.dtype)
    zeros = _jaxpr.conform(jnp.zeros(shape, aval.dtype), aval)
    if (place := _mesh.explicit(aval)) is None:
        return zeros
    spec = jax.sharding.PartitionSpec(*((None,) * (len(shape) - aval.ndim)), *place.spec)
    return jax.sharding.reshard(zeros, jax.sharding.NamedSharding(place.mesh, spec))
