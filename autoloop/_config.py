"""Six settings, from the environment or from a context manager, and who wins.

A setting given with `settings(...)` wins over the environment, the environment over a
decorator's option. The environment is read when a call is resolved (a miss), not on the hot path,
so a job sets it before it starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoloop._warning import warn

MODES = ("tune", "cached", "strict", "off")
LOG_LEVELS = ("debug", "info", "warning", "error")

#: The variables that are read; another one that begins alike is a mistake.
VARIABLES = (
    "AUTOLOOP_MODE",
    "AUTOLOOP_PLAN",
    "AUTOLOOP_CACHE_DIR",
    "AUTOLOOP_WISDOM",
    "AUTOLOOP_BUDGET_S",
    "AUTOLOOP_LOG",
)

_log = logging.getLogger("autoloop")


@dataclass(frozen=True)
class Settings:
    """The settings in force.

    Attributes:
        mode: `tune` (a miss is tuned), `cached` (a miss runs as written), `strict` (a miss is an
            error) or `off` (plain `jax.jit`).
        plan: the text of one plan to force, or None.
        cache_dir: where records live; None for the platform's cache folder.
        wisdom: read-only record files, consulted after the store, in order.
        budget_s: seconds a search may spend, None to leave it to the decorator.
        log: `debug`, `info`, `warning` or `error`: the level of the logger `autoloop`, None to leave it.
    """

    mode: str = "tune"
    plan: str | None = None
    cache_dir: str | None = None
    wisdom: tuple[str, ...] = ()
    budget_s: float | None = None
    log: str | None = None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'list'?` where some known word is near, else ""."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_mode(name: str, value: Any) -> str:
    """`value` if it is a mode; `name` says in the error where it came from."""
    if value not in MODES:
        raise ValueError(f"{name} must be one of {', '.join(MODES)}; got {value!r}")
    return str(value)


def check_seconds(name: str, value: Any) -> float:
    """`value` in seconds if it is a finite number of at least 0; raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, at least 0; got {value!r}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite number of seconds, at least 0; got {value!r}")
    return float(value)


def _seconds_of(text: str) -> float:
    try:
        return check_seconds("AUTOLOOP_BUDGET_S", float(text))
    except ValueError:
        raise ValueError(f"AUTOLOOP_BUDGET_S must be a number of seconds, at least 0; got {text!r}") from None


def _level_of(name: str, text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(f"{name} must be one of {', '.join(LOG_LEVELS)}; got {text!r}")
    return text.lower()


@functools.cache  # once in a process; not if the warning was raised as an error
def _warn_of_unknown_variables() -> None:
    for name in sorted(os.environ):
        if name.startswith("AUTOLOOP_") and name not in VARIABLES:
            known = f"autoloop reads {', '.join(VARIABLES)}{did_you_mean(name, VARIABLES)}"
            warn(f"the environment variable {name} has no effect; {known}")


def from_environment() -> Settings:
    """The settings that the six environment names give; an empty value counts as unset.

    Warns once in a process of variables that begin alike and are none of the six.

    Raises:
        ValueError: naming the variable, its value and what is allowed.
    """
    _warn_of_unknown_variables()
    get = os.environ.get
    wisdom, budget, level = get("AUTOLOOP_WISDOM"), get("AUTOLOOP_BUDGET_S"), get("AUTOLOOP_LOG")
    return Settings(
        mode=check_mode("AUTOLOOP_MODE", get("AUTOLOOP_MODE") or "tune"),
        plan=get("AUTOLOOP_PLAN") or None,
        cache_dir=get("AUTOLOOP_CACHE_DIR") or None,
        wisdom=tuple(p for p in (wisdom or "").split(os.pathsep) if p),
        budget_s=_seconds_of(budget) if budget else None,
        log=_level_of("AUTOLOOP_LOG", level) if level else None,
    )


_override: ContextVar[dict[str, Any] | None] = ContextVar("autoloop_settings", default=None)


def overridden() -> bool:
    """Whether `settings(...)` is active here: the one question asked on the hot path."""
    return _override.get() is not None


def current(mode: str | None = None) -> Settings:
    """The settings in force: the environment's, with those of `settings(...)` over them.

    Args:
        mode: a decorator's own, which counts where neither of the two says one.
    """
    base = from_environment()
    if mode is not None and not os.environ.get("AUTOLOOP_MODE"):
        base = dataclasses.replace(base, mode=mode)
    found = dataclasses.replace(base, **(_override.get() or {}))
    if found.log is not None:
        _show_log(found.log)
    return found


def _show_log(level: str) -> None:
    """Sets the level; a program that set up no logging at all sees the lines on standard error."""
    _log.setLevel(level.upper())
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("autoloop: %(message)s"))
        _log.addHandler(handler)


@contextlib.contextmanager
def override(**changes: Any) -> Iterator[None]:
    """`settings` without its checks and without reading the environment."""
    token = _override.set({**(_override.get() or {}), **changes})
    try:
        yield
    finally:
        _override.reset(token)


@contextlib.contextmanager
def settings(**changes: Any) -> Iterator[Settings]:
    """Sets some of the six settings inside a `with` block, in this thread (or task) only.

    Args:
        **changes: fields of `Settings`: `mode`, `plan`, `cache_dir`, `wisdom`, `budget_s`, `log`.
            A `Plan` is taken for `plan`, a single path for `wisdom`.

    Yields:
        The settings in force inside the block.

    Raises:
        TypeError: an unknown name, or a value of the wrong type.
        ValueError: a value that is not allowed; the message says what is.

    Example:
        >>> import autoloop
        >>> with autoloop.settings(mode="off") as s:
        ...     s.mode
        'off'
    """
    known = [f.name for f in dataclasses.fields(Settings)]
    if odd := sorted(set(changes) - set(known)):
        raise TypeError(f"settings() knows {', '.join(known)}; got {', '.join(odd)}{did_you_mean(odd[0], known)}")
    with override(**_checked(changes)):
        yield current()


def _checked(changes: dict[str, Any]) -> dict[str, Any]:
    found = dict(changes)
    if "mode" in found:
        check_mode("settings(mode=...)", found["mode"])
    if found.get("budget_s") is not None:
        found["budget_s"] = check_seconds("settings(budget_s=...)", found["budget_s"])
    if found.get("log") is not None:
        found["log"] = _level_of("settings(log=...)", str(found["log"]))
    for name in ("plan", "cache_dir"):
        if name in found:  # as in the environment, an empty text counts as unset
            found[name] = str(found[name]) if found[name] not in (None, "") else None
    if "wisdom" in found:
        paths = found["wisdom"]
        single = isinstance(paths, (str, os.PathLike))
        found["wisdom"] = (str(paths),) if single else tuple(map(str, paths))
    return found


def cache_dir(found: Settings) -> Path:
    """The folder of the store: the one set, else the platform's cache folder for users' programs.

    A process without a home folder (a container with a random user) gets a path that no store can be
    made at, so that it goes on in memory, with the store's one warning.
    """
    try:
        return _cache_dir(found)
    except RuntimeError as error:  # there is no home folder, or no such user
        return Path(os.devnull) / f"autoloop ({error})"


def _cache_dir(found: Settings) -> Path:
    if found.cache_dir is not None:
        return Path(found.cache_dir).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "autoloop"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "autoloop"
    # The XDG specification: a relative path in the variable is to be ignored.
    given = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (given if given.is_absolute() else Path.home() / ".cache") / "autoloop"
