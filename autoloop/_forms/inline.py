"""`inline`: a Python loop under `jit`, so that the program holds one copy of the body an iteration.

Slices of xs have constant positions and ys are stacked once at the end, so XLA may fuse across
iterations. Pays for short loops; compile time grows with the length, often faster than linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import jax.numpy as jnp
from jax import lax

from autoloop import _jaxpr, _parts
from autoloop._form import Form, Site
from autoloop._loops import Loop
from autoloop._plan import Parameter


@final
class Inline(Form):
    """The jitted outer loop."""

    name = "inline"
    goes_together: ClassVar[bool] = True
    keeps_effects = True

    def why_not(self, loop: Loop, parameter: Parameter) -> str | None:
        return None

    def ladders(self, loop: Loop) -> tuple[tuple[Parameter, ...], ...]:
        return ((None,),) if loop.length else ()

    def copies(self, loop: Loop, parameter: Parameter) -> int:
        return loop.length

    def emit(self, site: Site, parameter: Parameter, values: Sequence[Any]) -> list[Any]:
        scan = site.scan
        consts, carry, xs = scan.split_inputs(values)
        stacks: list[list[Any]] = []
        order = range(scan.length)
        for index in reversed(order) if scan.reverse else order:
            x = [lax.index_in_dim(v, index, 0, keepdims=False) for v in xs]
            carry, y = scan.split_outputs(site.body(*consts, *carry, *x))
            stacks.append(y)
        if scan.reverse:
            stacks.reverse()
        _, y_avals = scan.split_outputs(_jaxpr.out_avals(scan.body))
        ys = [jnp.stack([y[i] for y in stacks]) if stacks else _parts.empty(aval, 0) for i, aval in enumerate(y_avals)]
        return [*carry, *ys]
