"""Nested-loop programs of the kinds people write, one module each, in the order of their report.

A module has `program(*args)`, the function as a user writes it; `arguments(size)`, its deterministic
arguments for the sizes in `SIZES`; and `by_hand(*args)`, the form of it that was fastest of those that a
person writes by hand, measured at the large size on two cores: loops split, merged, batched or unrolled,
arrays laid out anew, but the same method in the same precision. A call as written takes at most 20 ms
(`small`) or 0.3 s (`large`) there.
"""

from __future__ import annotations

import importlib
from types import ModuleType

PROGRAMS = (
    "langevin",
    "map_recurrence",
    "lstm_training",
    "echo_state",
    "gradient_accumulation",
    "garch",
    "kalman_many",
    "hmm",
    "s5_layer",
    "ising",
    "hmc",
    "gae",
    "particle_filter",
    "sinkhorn",
    "transformer_layers",
    "n_body",
    "ppo",
    "maml",
    "reaction_diffusion",
    "time_warping",
    "evolution",
    "layer_mixture",
    "automaton",
    "newton_cg",
)
SIZES = ("small", "large")


def load(name: str) -> ModuleType:
    """The module of one program.

    Raises:
        ValueError: there is no such program.
    """
    if name not in PROGRAMS:
        raise ValueError(f"no program {name!r} in the zoo; there are {', '.join(PROGRAMS)}")
    return importlib.import_module(f"{__name__}.{name}")
