"""autoloop: finds the fastest form of a nested JAX loop by measuring it, and remembers it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoloop._config import Settings, settings
    from autoloop._decorate import autoloop
    from autoloop._dispatch import Autoloop
    from autoloop._listeners import on_record
    from autoloop._plan import Choice, Plan
    from autoloop._records import AutoloopWarning, MissError, PlanError, Record, RecordError, Status, Trial
    from autoloop._tree import LoopTree
    from autoloop._watch import progress

__version__ = "0.1.0"

__all__ = [
    "Autoloop",
    "AutoloopWarning",
    "Choice",
    "LoopTree",
    "MissError",
    "Plan",
    "PlanError",
    "Record",
    "RecordError",
    "Settings",
    "Status",
    "Trial",
    "autoloop",
    "on_record",
    "progress",
    "settings",
]

_HOMES = {
    "Settings": "_config",
    "settings": "_config",
    "autoloop": "_decorate",
    "Autoloop": "_dispatch",
    "Choice": "_plan",
    "LoopTree": "_tree",
    "Plan": "_plan",
    "on_record": "_listeners",
    "progress": "_watch",
}


def __getattr__(name: str) -> Any:
    """A public name, its module imported when it is first asked for: pytest's start-up needs no jax."""
    if name == "testing":  # a module of its own, which people write without importing it
        return importlib.import_module("autoloop.testing")
    if name not in __all__:
        raise AttributeError(f"module 'autoloop' has no attribute {name!r}; it has: {', '.join(__all__)}")
    importlib.import_module("autoloop._dispatch")  # whole, whichever name comes first: it makes records print
    value = getattr(importlib.import_module(f"autoloop.{_HOMES.get(name, '_records')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
