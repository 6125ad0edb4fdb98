"""Calls that mode `cached` met without a record: noted in the store, to be tuned offline.

A note holds what is needed to make the same call elsewhere: the function as `module:name`, and its
argument specs. It is text only; nothing in it is run but the import of the function, and that only by
`python -m autoloop warm --wanted`.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autoloop import _json, _signature, _specfile, _tune
from autoloop._call import Call
from autoloop._function import Function
from autoloop._store import Store

_log = logging.getLogger("autoloop")

_PREFIX = "wanted:"


@dataclass(frozen=True)
class Wanted:
    """One kind of call that is wanted.

    Attributes:
        function: its name, as records write it.
        target: `module:name` from which it can be imported, None if it can't.
        specs: its arguments, as spec files hold them, None if JSON can't hold them.
        problem: why there is no target or no specs, else "".
        parts: the named parts of its signature.
        count: how often it was met.
        last: when it was met last.
    """

    function: str
    target: str | None
    specs: dict[str, Any] | None
    problem: str
    parts: Mapping[str, str]
    count: int = 0
    last: str = ""

    @property
    def key(self) -> str:
        """The key that its record will have."""
        return _signature.digest(self.parts)


def of_call(function: Function, call: Call, parts: Mapping[str, str]) -> Wanted:
    """What there is to know about a call."""
    target, specs, problem = importable(function), None, ""
    if target is None:
        problem = f"{function.name} can't be imported under its name"
    try:
        specs = _specfile.to_data(call.args, call.kwargs)
    except _specfile.SpecError as error:
        problem = problem or str(error)
    if call.placed:
        specs, problem = None, problem or "its arguments are placed by a sharding, which JSON can't hold"
    return Wanted(function.name, target, specs, problem, dict(parts))


def importable(function: Function) -> str | None:
    """`module:name` under which a decorated function can be imported in another process, None if under none."""
    module, name = (getattr(function.fun, key, None) for key in ("__module__", "__qualname__"))
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if getattr(found, "__wrapped__", None) is not function.fun:
        return None
    # `python -m package.module` calls the module by another name, a script has none at all.
    spec = getattr(sys.modules[module], "__spec__", None)
    if module == "__main__":
        return f"{spec.name}:{name}" if spec is not None and spec.name else None
    return f"{module}:{name}"


def command(wanted: Wanted) -> str | None:
    """The command that would tune it, None if there is none."""
    if wanted.target is None or wanted.specs is None:
        return None
    specs = shlex.quote(json.dumps(wanted.specs))
    return f"python -m autoloop warm {wanted.target} --specs {specs}"


# ---------------------------------------------------------------- notes in the store


def note(store: Store, function: Function, call: Call, parts: Mapping[str, str]) -> None:
    """Notes that a call was met without a record; never fails, for it is only a note."""
    wanted = of_call(function, call, parts)

    def counted(old: str | None) -> str:
        before = _parsed(old)
        count = 1 if before is None else before.count + 1
        return json.dumps({**asdict(wanted), "count": count, "last": _tune.now()}, sort_keys=True)

    store.note(_PREFIX + wanted.key, counted)


def noted(store: Store) -> list[Wanted]:
    """All readable notes, those met most often first."""
    found = [wanted for _, text in store.notes(_PREFIX) if (wanted := _parsed(text)) is not None]
    return sorted(found, key=lambda wanted: (-wanted.count, wanted.function, wanted.key))


def drop(store: Store, wanted: Wanted) -> None:
    """Forgets a note."""
    store.delete(_PREFIX + wanted.key)


def _parsed(text: str | None) -> Wanted | None:
    try:
        data = _json.loads(text or "null")
        found = Wanted(**data)
    except (ValueError, TypeError):
        return None
    return found if _sound(found) else None


def _sound(found: Wanted) -> bool:
    """Whether the fields of a note, which anybody may have written, have the types that they should have."""
    texts = (found.function, found.problem, found.last)
    optional = found.target is None or isinstance(found.target, str)
    specs = found.specs is None or isinstance(found.specs, dict)
    parts = isinstance(found.parts, dict) and all(isinstance(x, str) for pair in found.parts.items() for x in pair)
    return all(isinstance(x, str) for x in texts) and optional and specs and parts and type(found.count) is int
