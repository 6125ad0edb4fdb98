"""A program as text that is the same in every process: what its digest is made of.

No addresses, no names of functions, no source lines, no numbering of variables but by appearance.
Values of constants do not count, their shapes and dtypes do. JAX's own cache key does likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from autoloop import _jaxpr
from autoloop._jaxpr import jec

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+| id=\d+")
_UNSTABLE = frozenset({"name", "debug_info", "fwd_jaxpr_thunk", "bwd", "jvp_jaxpr_fun", "out_trees"})


def stable_text(value: Any) -> str:
    """A text of a value that is the same in another process: no addresses, arrays by their type."""
    if isinstance(value, (jec.ClosedJaxpr, jec.Jaxpr)):
        return "{" + "; ".join(canonical_lines(value)) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{k}: {stable_text(v)}" for k, v in value.items())) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(stable_text, value))) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(stable_text, value)) + ")"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if callable(value):
        return type(value).__name__
    return _ADDRESS.sub("", repr(value))


def _exact(value: Any) -> str:
    """A literal's value to the last bit, whatever numpy's print options are."""
    array = np.asarray(value)
    return repr(array.tolist()) if array.dtype.kind in "biufc" else array.tobytes().hex()


def canonical_lines(jaxpr: _jaxpr.Jaxpr) -> Iterator[str]:
    """The program as text, one line an equation, variables numbered in order of appearance."""
    inner: Any = getattr(jaxpr, "jaxpr", jaxpr)
    numbers: dict[Any, int] = {}

    def show(atom: Any) -> str:
        weak = "*" if getattr(atom.aval, "weak_type", False) else ""
        if isinstance(atom, jec.Literal):
            return f"{_exact(atom.val)}:{atom.aval.str_short()}{weak}"
        number = numbers.setdefault(atom, len(numbers))
        return f"v{number}:{atom.aval.str_short()}{weak}"

    yield "in " + " ".join(map(show, [*inner.constvars, *inner.invars]))
    for eqn in inner.eqns:
        params = {k: v for k, v in eqn.params.items() if k not in _UNSTABLE}
        inputs, outputs = (" ".join(map(show, atoms)) for atoms in (eqn.invars, eqn.outvars))
        yield f"{outputs} = {eqn.primitive.name}{stable_text(params)} {inputs}"
    yield "out " + " ".join(map(show, inner.outvars))


def skeleton_lines(jaxpr: _jaxpr.Jaxpr) -> Iterator[str]:
    """The program's equations in order, without sizes: primitive, dtypes and ranks, and what is inside."""
    for eqn in _jaxpr.equations(jaxpr):
        shapes = [f"{v.aval.str_short().split('[')[0]}/{len(getattr(v.aval, 'shape', ()))}" for v in eqn.outvars]
        yield f"{eqn.primitive.name} {' '.join(shapes)}"
