"""What makes two calls the same.

Two keys. The call key is made in memory on a miss: argument tree, shapes, dtypes, weak types,
static values, placement and the jax settings that change a program. The disk key is made of named
parts, each a short text by one small function, so that a miss can be explained.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import os
import platform
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from autoloop import _canonical, _installed, _jaxpr, _mesh
from autoloop._records import SCHEMA

_log = logging.getLogger("autoloop")

#: jax settings that change the traced program or how it is compiled.
_CONFIGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_enable_checks",
    "jax_default_device",
    "jax_disable_jit",
    "jax_use_simplified_jaxpr_constants",
    "jax_optimization_level",
)


class Statics:
    """Which arguments are static, resolved from numbers and names as `jax.jit` does.

    A static given only by number is also static by its name, and the other way round, as far as
    the function's signature tells.
    """

    def __init__(self, fun: Callable[..., Any], argnums: Any, argnames: Any) -> None:
        nums, names = _as_tuple(argnums, int), _as_tuple(argnames, str)
        # As jax does: one kind is inferred from the other only if that was not given at all.
        named = _positional_or_keyword(fun)
        if argnames is None:
            names = tuple(name for index, name in named if index in nums)
        elif argnums is None:
            nums = tuple(index for index, name in named if name in names)
        self._nums, self._names = nums, frozenset(names)

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], dict[str, Any]]]:
        """(static values, (dynamic args, dynamic kwargs))."""
        if not self._nums and not self._names:
            return (), (args, dict(kwargs))
        nums = {n % len(args) for n in self._nums if -len(args) <= n < len(args)} if args else set()
        static = tuple((i, args[i]) for i in sorted(nums))
        named = tuple((k, kwargs[k]) for k in sorted(kwargs) if k in self._names)
        dynamic = tuple(a for i, a in enumerate(args) if i not in nums)
        return (*static, *named), (dynamic, {k: v for k, v in kwargs.items() if k not in self._names})

    def join(
        self, static: tuple[Any, ...], dynamic: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that `split` took apart."""
        args, kwargs = list(dynamic[0]), dict(dynamic[1])
        for where, value in static:
            if isinstance(where, int):
                args.insert(where, value)
            else:
                kwargs[where] = value
        return tuple(args), kwargs


def _positional_or_keyword(fun: Callable[..., Any]) -> list[tuple[int, str]]:
    """(position, name) of the parameters that can be given either way."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return []
    return [(i, p.name) for i, p in enumerate(parameters) if p.kind is p.POSITIONAL_OR_KEYWORD]


def _as_tuple(value: Any, kind: type) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, kind) else tuple(value)


#: Shape, dtype, weak type, and the sharding where it is part of the type.
Aval = tuple[tuple[int, ...], Any, bool, Any]


@dataclass(frozen=True)
class CallKey:
    """What `jax.jit` traces anew for: tree, abstract values, static values, jax settings."""

    tree: Any
    avals: tuple[Aval, ...]
    static: tuple[Any, ...]
    kinds: tuple[type, ...]  # of the static values: to jit, 1 and True and 1.0 differ
    config: tuple[Hashable, ...]


def call_key(tree: Any, leaves: Sequence[Any], static: tuple[Any, ...]) -> CallKey:
    """The key of a call, the same for tracers inside a trace and concrete values outside.

    Raises:
        TypeError: a static value is not hashable (jit's own error comes first, when it traces).
    """
    hash((tree, static))
    return CallKey(tree, tuple(map(_aval, leaves)), static, tuple(type(v) for _, v in static), config_values())


def _aval(leaf: Any) -> Aval:
    return _of_type(_mesh.type_of(leaf))


@functools.lru_cache(maxsize=4096)
def _of_type(aval: Any) -> Aval:
    return (aval.shape, aval.dtype, aval.weak_type, _mesh.explicit(aval))


def config_values() -> tuple[Hashable, ...]:
    """The jax settings in force here, context managers included."""
    return tuple(getattr(jax.config, name, None) for name in _CONFIGS)


def placement(leaves: Sequence[Any]) -> tuple[Hashable, ...]:
    """Where the user placed the arguments: a sharding for each leaf, None where jax may choose.

    Data placed on the one device where jax would have put it anyway counts as not placed, so that a
    call under a trace, whose data has no place yet, finds the plan of a call outside.
    """
    default = default_device()
    return tuple(_place(leaf, default) for leaf in leaves)


def _place(leaf: Any, default: Any) -> Hashable:
    if _jaxpr.is_tracer(leaf):
        return None
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or not (isinstance(leaf, jax.ShapeDtypeStruct) or leaf.committed):
        return None
    on_default = sharding.device_set == {default} and sharding.memory_kind in (None, "device", "unpinned_host")
    return None if on_default else sharding


def default_device() -> Any:
    """The device on which jax puts data that nobody placed."""
    chosen = getattr(jax.config, "jax_default_device", None)
    if chosen is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen


def device_of(places: Sequence[Hashable]) -> tuple[Any, int]:
    """(a device of the kind the call runs on, how many devices it runs on)."""
    for sharding in places:
        if sharding is not None:
            # One of this process first: only of those can it ask anything.
            devices = sorted(sharding.device_set, key=_by_process)  # type: ignore[attr-defined]
            return devices[0], len(devices)
    return default_device(), 1


def _by_process(device: Any) -> tuple[bool, int]:
    return device.process_index != jax.process_index(), device.id


# ---------------------------------------------------------------- the disk key


def parts(traced: _jaxpr.Traced, key: CallKey, places: Sequence[Hashable], context: str) -> dict[str, str]:
    """The named parts of a signature; `context` says under what the program was tuned."""
    device, count = device_of(places)
    with _installed.reading():
        program, skeleton = program_part(traced.jaxpr), skeleton_part(traced.jaxpr)
    found = {
        "program": program,
        "skeleton": skeleton,
        "arguments": arguments_part(key),
        "statics": statics_part(key),
        "sharding": sharding_part(places),
        "device": f"{device.platform} {device.device_kind} x{count}",
        "host": host_part(),
        "versions": versions_part(device),
        "flags": flags_part(key),
        "schema": str(SCHEMA),
        "context": context,
    }
    for name, text in found.items():
        _log.debug("signature %s: %s", name, text)
    return found


def versions_part(device: Any) -> str:
    """Versions of jax, jaxlib and the driver of an accelerator: a winner under others is checked again."""
    driver = "" if device.platform == "cpu" else f", driver {' '.join(device.client.platform_version.split())}"
    return f"jax {jax.__version__}, jaxlib {version('jaxlib')}{driver}"


def digest(named: Mapping[str, str]) -> str:
    """The store's key for named parts."""
    return _sha(json.dumps(dict(named), sort_keys=True))


def program_part(jaxpr: _jaxpr.Jaxpr) -> str:
    """A digest of the program: equations, literals, dtypes and lengths, not names or places."""
    return _sha("\n".join(_canonical.canonical_lines(jaxpr)))


def skeleton_part(jaxpr: _jaxpr.Jaxpr) -> str:
    """A digest of the program without its sizes: the same for other batch sizes and trip counts."""
    return _sha("\n".join(_canonical.skeleton_lines(jaxpr)))


def arguments_part(key: CallKey) -> str:
    """Each argument leaf as `f32[64,128]`, with `*` for a weak type."""
    return " ".join(map(_aval_text, key.avals))


def aval_text(leaf: Any) -> str:
    """A value, tracer or spec of an array, as `arguments_part` writes it."""
    return _aval_text(_aval(leaf))


def _aval_text(aval: Aval) -> str:
    shape, dtype, weak, place = aval
    spread = "" if place is None else f"@{_canonical.stable_text(place)}"
    return f"{_short(dtype)}[{','.join(map(str, shape))}]{'*' * weak}{spread}"


def _short(dtype: Any) -> str:
    if jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        return str(dtype)
    name = str(np.dtype(dtype).name)
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            return short + name[len(long) :]
    return name


def statics_part(key: CallKey) -> str:
    """Static values, without addresses."""
    return ", ".join(f"{where}={_canonical.stable_text(value)}" for where, value in key.static)


def sharding_part(places: Sequence[Hashable]) -> str:
    """Where the user placed the arguments, empty for one device of jax's choice."""
    if all(p is None for p in places):
        return ""
    return "; ".join("-" if p is None else _canonical.stable_text(p) for p in places)


@functools.cache
def host_part() -> str:
    """The processor's model and how many of its cores this process may use."""
    return f"{_cpu_model()}, {_usable_cores()} cores"


def _usable_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def flags_part(key: CallKey) -> str:
    """XLA's flags and the jax settings that change compilation."""
    flags = " ".join(sorted(os.environ.get("XLA_FLAGS", "").split()))
    settings = dict(zip(_CONFIGS, map(str, key.config), strict=True))
    return f"{flags} {' '.join(f'{k}={v}' for k, v in settings.items())}".strip()


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
