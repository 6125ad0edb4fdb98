"""One call of a decorated function, taken apart: what dispatch and tuning ask of it."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from autoloop import _jaxpr, _kept, _signature
from autoloop._function import Args, Function, Kwargs


@dataclass(frozen=True)
class Call:
    """One call: its arguments, taken apart, and its key."""

    args: Args
    kwargs: Kwargs
    leaves: Sequence[Any]
    key: _signature.CallKey
    places: tuple[Hashable, ...]
    notes: tuple[str, ...] = ()  # what a record of it should say

    @classmethod
    def of(cls, function: Function, args: Args, kwargs: Kwargs) -> Call:
        """Takes a call apart."""
        leaves, tree, static = function.flatten(args, kwargs)
        key = _signature.call_key(tree, leaves, static)
        return cls(args, kwargs, leaves, key, _signature.placement(leaves))

    @classmethod
    def keeping(cls, function: Function, args: Args, kwargs: Kwargs) -> Call:
        """Takes a call apart; leaves that JAX can't trace become static in it."""
        try:
            return cls.of(function, args, kwargs)
        except TypeError:
            if (kept := _kept.keep(function.statics, args, kwargs)) is None:
                raise
            return cls.of(function, *kept)

    @property
    def name(self) -> tuple[Hashable, ...]:
        """What makes it the same as another call in this process."""
        return (self.key, self.places)

    @functools.cached_property
    def in_trace(self) -> bool:
        """Whether a transformation is in progress, of the arguments or around the call."""
        return any(map(_jaxpr.is_tracer, self.leaves)) or _jaxpr.under_trace()

    @property
    def device(self) -> Any:
        """A device of the kind that the call runs on."""
        return _signature.device_of(self.places)[0]

    @property
    def placed(self) -> bool:
        """Whether the user placed some argument elsewhere than jax would."""
        return any(place is not None for place in self.places)


def leaf_names(function: Function, call: Call) -> list[str]:
    """What a person calls each array among a call's arguments: `argument 1`, `argument 0['w']`, `argument scale`."""
    static, dynamic = function.statics.split(call.args, call.kwargs)
    taken = {where for where, _ in static}
    places = [i for i in range(len(call.args)) if i not in taken]
    found, _ = jax.tree_util.tree_flatten_with_path(dynamic)
    return [_path_text(path, places) for path, _ in found]


def _path_text(path: tuple[Any, ...], places: Sequence[int]) -> str:
    index = getattr(path[1], "idx", None)
    first = path[1].key if index is None else places[index]
    return f"argument {first}{jax.tree_util.keystr(path[2:])}"
