"""Leaves `jax.debug.print` and `jax.debug.callback` out of a program, so that trials are silent."""

from __future__ import annotations

from typing import Any

from autoloop import _jaxpr
from autoloop._jaxpr import jec

#: Equations that show values and give none: leaving them out changes no result.
_PRINTS = ("debug_print", "debug_callback")
#: Their effects, as `effects` names them.
PRINT_EFFECTS = frozenset({"Debug", "OrderedDebug"})


def without_prints(jaxpr: _jaxpr.Jaxpr) -> _jaxpr.Jaxpr:
    """The same program without `jax.debug.print` and `jax.debug.callback`, at any depth."""
    eqns = [_silent(eqn) for eqn in _jaxpr.inner(jaxpr).eqns if eqn.primitive.name not in _PRINTS]
    return jec.ClosedJaxpr(
        _jaxpr.inner(jaxpr).replace(eqns=eqns, effects=_silent_effects(_jaxpr.inner(jaxpr))), jaxpr.consts
    )


def _silent(eqn: Any) -> Any:
    if not eqn.effects or not _jaxpr.bodies(eqn):
        return eqn
    silent = _jaxpr.with_bodies(eqn, [without_prints(body) for body in _jaxpr.bodies(eqn)])
    return eqn.replace(params=silent, effects=_silent_effects(eqn))


def _silent_effects(of: Any) -> frozenset[Any]:
    return frozenset(e for e in of.effects if _jaxpr.effect_name(e) not in PRINT_EFFECTS)
