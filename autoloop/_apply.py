"""Applies a plan to a traced program.

Two ways: inside a trace (`run_block`: every loop becomes part of one program) and on the host
(`build_block`: the outer loops run in Python, what lies between them is compiled).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from autoloop import _host, _jaxpr, _outline, _parts
from autoloop._form import Forms, HostSite, Site
from autoloop._pace import Pace
from autoloop._plan import Plan


@dataclass(frozen=True)
class Applied:
    """A plan with the forms it names: what runs blocks and nodes.

    `watched` is a loop that runs on the host, by its path, and the pace that hears of its steps.
    """

    plan: Plan
    forms: Forms
    watched: tuple[tuple[int, ...], Pace] | None = None

    def _chosen(self, node: _outline.Node, host_only: bool = False) -> bool:
        return any(c.path in node.paths and (self.forms[c.form].on_host or not host_only) for c in self.plan.choices)

    def run_block(self, block: _outline.Block, *values: Any) -> list[Any]:
        """Evaluates a block in a trace, chosen loops in their forms."""
        nodes = [n for n in block.nodes if self._chosen(n)]
        if not nodes:
            return list(_jaxpr.as_fun(block.jaxpr)(*values))
        parts = [(part, self._in_trace(part.what)) for part in _parts.cut(block, nodes)]
        return _parts.Wires(block.jaxpr, parts).run(values)

    def _in_trace(self, what: _outline.Block | _outline.Node) -> _jaxpr.Flat:
        if isinstance(what, _outline.Node):
            return functools.partial(self.run_node, what)
        return _jaxpr.as_fun(what.jaxpr)

    def run_node(self, node: _outline.Node, *values: Any) -> list[Any]:
        """Evaluates one equation in a trace: in its form, or as it is with chosen loops inside."""
        choice = None if node.path is None else self.plan.choice(node.path)
        if choice is None:
            bodies = [self._rewritten(block) for block in node.blocks]
            return list(_jaxpr.rebuild(node.eqn, bodies)(*values))
        outs = self.forms[choice.form].emit(self._site(node), choice.parameter, values)
        return _jaxpr.conform_all(outs, node.scan.out_avals)

    def _rewritten(self, block: _outline.Block) -> _jaxpr.Jaxpr:
        if not any(self._chosen(n) for n in block.nodes):
            return block.jaxpr
        return _jaxpr.close(functools.partial(self.run_block, block), _jaxpr.in_avals(block.jaxpr))

    def _site(self, node: _outline.Node) -> Site:
        block, scan = node.blocks[0], node.scan
        carry_and_x = _jaxpr.in_avals(scan.body)
        carry_and_y = _jaxpr.out_avals(scan.body)

        def body(*values: Any) -> list[Any]:
            outs = self.run_block(block, *_jaxpr.conform_all(values, carry_and_x))
            return _jaxpr.conform_all(outs, carry_and_y)

        return Site(scan, node, body, any(self._chosen(n) for n in block.nodes))

    # ------------------------------------------------------------ applying on the host

    def build_block(self, block: _outline.Block, eager: bool = False) -> _host.Runnable:
        """A block as a host program; `eager` leaves what no form chose without a jit around it."""
        nodes = [n for n in block.nodes if self._chosen(n, host_only=not eager)]
        parts = _parts.cut(block, nodes)
        return _host.Chain(block.jaxpr, [(part, self._build_part(part.what, eager)) for part in parts])

    def _build_part(self, what: _outline.Block | _outline.Node, eager: bool) -> _host.Runnable:
        if isinstance(what, _outline.Block):
            if eager:
                return _host.Eager(what.jaxpr)
            return _host.Piece(functools.partial(self.run_block, what), "piece", options=self.plan.options)
        if not self._chosen(what, host_only=True):
            return _host.Piece(functools.partial(self.run_node, what), "loop", options=self.plan.options)
        choice = None if what.path is None else self.plan.choice(what.path)
        if choice is None:  # a call on the way to a host loop: its body takes its place
            return self.build_block(what.blocks[0], eager)
        body = what.blocks[0]
        plain = not any(self._chosen(n, host_only=True) for n in body.nodes)
        site = HostSite(
            site=self._site(what) if plain else None,
            scan=what.scan,
            compiled=self.build_block(body),
            eager=self.build_block(body, eager=True),
            options=self.plan.options,
            pace=self.watched[1] if self.watched and self.watched[0] == what.path else None,
        )
        return self.forms[choice.form].build(site, choice.parameter)
