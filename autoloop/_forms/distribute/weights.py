"""What an equation weighs: worth a batch of its own, cheap, or bound to run iteration by iteration."""

from __future__ import annotations

import enum
import math
from typing import Any

from autoloop._atoms import has_odd_key, ignores_inputs
from autoloop._forms.distribute._ir import Body

# Random numbers (threefry only: see `why_pinned`), linear algebra, sorting, inner loops.
_HEAVY_ONES = """
    approx_top_k cholesky cholesky_update conv_general_dilated custom_linear_solve eig eigh fft geqrf
    hessenberg householder_product lu lu_pivots_to_permutation ormqr pallas_call qr ragged_dot
    ragged_dot_general random_bits random_clone random_fold_in random_seed random_split scan schur sort svd
    threefry2x32 top_k triangular_solve tridiagonal tridiagonal_solve while
"""
# Views, changes of shape and type: stacked, they cost memory and save nothing.
_LAYOUT_ONLY = """
    broadcast_in_dim convert_element_type copy copy_p expand_dims iota name random_unwrap random_wrap
    reshape rev slice split squeeze stop_gradient transpose
"""
_HEAVY, _LAYOUT = frozenset(_HEAVY_ONES.split()), frozenset(_LAYOUT_ONLY.split())
_LOOK_UPS = frozenset({"gather", "dynamic_slice"})
_BIG_LOOK_UP = 1024  # elements; smaller ones cost less than a pass over a stack
# These mean something else for many iterations at once, or have no rule for it.
_NEVER_BATCHED = ("ffi_call", "unvmap", "nonbatchable", "rng_uniform", "custom_partitioning", "shard_map")


class Weight(enum.Enum):
    """How an equation is treated."""

    HEAVY = "worth a batch"
    CHEAP = "stays where its consumer is, unless everything is distributed"
    LAYOUT = "stays where its consumer is"


def is_matrix_product(eqn: Any) -> bool:
    """Whether it multiplies matrices or vectors to more than one number."""
    if eqn.primitive.name != "dot_general":
        return False
    _, (batch, _) = eqn.params["dimension_numbers"]
    return len(eqn.outvars[0].aval.shape) > len(batch)


def why_pinned(body: Body, eqn: Any) -> str | None:
    """What in an equation must run iteration by iteration, with the reason; None if nothing must."""
    for inner in body.within(eqn):
        name = inner.primitive.name
        if "callback" in name or name.startswith(_NEVER_BATCHED):
            return f"{name}, which means something else for many iterations at once"
        if ignores_inputs(inner):
            return "a custom_jvp_call that ignores an input: jax can't differentiate it batched"
        if name == "rng_bit_generator" or (name.startswith("random_") and has_odd_key(inner)):
            return f"{name} with keys that are not threefry, whose bits would change"
        if name == "cond" and any(e.primitive.name == "while" for e in body.within(inner)):
            return "a while inside a cond, which may never end where its branch is not taken"
    return None


def weigh(body: Body, eqn: Any, from_outside: bool) -> Weight:
    """The weight of an equation; `from_outside`: its first input is an x, or the same in all iterations."""
    name = eqn.primitive.name
    if name in _LOOK_UPS:
        if not from_outside:  # all versions of a table that iterations write would have to be kept
            return Weight.LAYOUT
        big = math.prod(eqn.outvars[0].aval.shape) >= _BIG_LOOK_UP
        return Weight.HEAVY if big else Weight.CHEAP
    if any(e.primitive.name in _HEAVY or is_matrix_product(e) for e in body.within(eqn)):
        return Weight.HEAVY
    return Weight.LAYOUT if name in _LAYOUT else Weight.CHEAP
