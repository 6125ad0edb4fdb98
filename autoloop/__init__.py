"""autoloop: finds the fastest form of a nested JAX loop by measuring it, and remembers it."""

from autoloop._config import Settings, settings
from autoloop._decorate import autoloop
from autoloop._dispatch import Autoloop
from autoloop._plan import Choice, Plan
from autoloop._records import (
    AutoloopWarning,
    MissError,
    PlanError,
    Record,
    RecordError,
    Status,
    Trial,
)

__version__ = "0.1.0"

__all__ = [
    "Autoloop",
    "AutoloopWarning",
    "Choice",
    "MissError",
    "Plan",
    "PlanError",
    "Record",
    "RecordError",
    "Settings",
    "Status",
    "Trial",
    "autoloop",
    "settings",
]
