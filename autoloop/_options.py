"""What a user may say to the decorator, checked when they say it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autoloop._agree import Tolerance
from autoloop._choose import Rules
from autoloop._config import check_mode, check_seconds, did_you_mean
from autoloop._plan import Plan
from autoloop._plans import ALL_FORMS

#: The decorator's options that go to `jax.jit`.
JIT_OPTIONS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")


@dataclass(frozen=True)
class Options:
    """The decorator's options that concern tuning, with their defaults."""

    expected_calls: int | None = None
    budget_s: float = 30.0
    margin: float = 0.03
    rtol: float | None = None
    atol: float | None = None
    bitwise: bool = False
    forms: tuple[str, ...] | None = None
    max_memory_bytes: int | None = None
    progress: bool | None = None
    allow_side_effects: bool = False
    mode: str | None = None
    make_inputs: Callable[..., Mapping[str, Any]] | None = None

    @property
    def rules(self) -> Rules:
        """How plans are compared."""
        return Rules(self.margin, self.expected_calls)

    @property
    def tolerance(self) -> Tolerance:
        """How far results may differ."""
        return Tolerance(self.rtol, self.atol, self.bitwise)

    def context(self, under: str = "call") -> str:
        """What says which plan may win, besides the program: a record of another context is not for us.

        Args:
            under: `call` for plans of a call, `grad` for those of forward and backward pass together.
        """
        names = ("expected_calls", "margin", "rtol", "atol", "bitwise", "forms", "max_memory_bytes")
        changed = {n: getattr(self, n) for n in names if getattr(self, n) != getattr(_DEFAULTS, n)}
        return ", ".join([under, *(f"{name}={value}" for name, value in changed.items())])

    def allows(self, plan: Plan) -> bool:
        """Whether a plan's forms may be tried; where forms are named, XLA options are not tried either."""
        options = self.forms is None or not plan.options
        return options and all(choice.form in self.allowed_forms for choice in plan.choices)

    @property
    def allowed_forms(self) -> tuple[str, ...]:
        """Names of the forms that may be tried."""
        return tuple(ALL_FORMS) if self.forms is None else self.forms


_DEFAULTS = Options()


def check(options: Mapping[str, Any]) -> Options:
    """The options if all of them can be used.

    Raises:
        TypeError: an option of the wrong type.
        ValueError: a value that is not allowed. Both name the option, the value, and what is allowed.
    """
    known = {f.name: f.default for f in dataclasses.fields(Options)}
    if odd := sorted(set(options) - set(known)):
        names = (*JIT_OPTIONS, *known)
        near = did_you_mean(odd[0], names)
        raise TypeError(f"autoloop() has no option {', '.join(odd)}; the options are: {', '.join(names)}{near}")
    found: dict[str, Any] = {**known, **options}
    found["budget_s"] = check_seconds("budget_s", found["budget_s"])
    _whole("expected_calls", found["expected_calls"])
    _whole("max_memory_bytes", found["max_memory_bytes"])
    for name in ("rtol", "atol"):
        if found[name] is not None:
            _number(name, found[name], 0, math.inf, "at least 0, or None for the default")
    _number("margin", found["margin"], 0, 1, "at least 0 and below 1")
    for name in ("bitwise", "allow_side_effects"):
        if not isinstance(found[name], bool):
            raise TypeError(f"{name} must be True or False; got {found[name]!r}")
    if not (found["progress"] is None or isinstance(found["progress"], bool)):
        allowed = "True, False, or None to show it on long tunings"
        raise TypeError(f"progress must be {allowed}; got {found['progress']!r}")
    if found["mode"] is not None:
        check_mode("mode", found["mode"])
    if not (found["make_inputs"] is None or callable(found["make_inputs"])):
        raise TypeError(f"make_inputs must be a function from specs to a dict of values; got {found['make_inputs']!r}")
    found["forms"] = _forms(found["forms"])
    return Options(**found)


def _whole(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number of at least 1, or None; got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, or None; got {value!r}")


def _number(name: str, value: Any, low: float, high: float, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, {allowed}; got {value!r}")
    if not low <= value < high:
        raise ValueError(f"{name} must be a number, {allowed}; got {value!r}")


def _forms(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    allowed = f"names of forms ({', '.join(ALL_FORMS)})"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"forms must be a list of {allowed}, or None for all; got {value!r}")
    names = tuple(value)
    if not names:
        raise ValueError(f"forms must hold some {allowed}; got {value!r}")
    for name in names:
        if not isinstance(name, str) or name not in ALL_FORMS:
            raise ValueError(f"forms must hold {allowed}; got {name!r}{did_you_mean(str(name), ALL_FORMS)}")
    return names
