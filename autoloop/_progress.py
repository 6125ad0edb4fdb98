"""One line that shows a long tuning at work: a tqdm bar where somebody can see it, else the log."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("autoloop")

#: A tuning that is over by then shows nothing.
_QUIET_S = 2.0
#: Log lines come no more often than this.
_LOG_EVERY_S = 10.0


class Progress:
    """Candidate, seconds used of the budget, best so far.

    Args:
        name: the function's.
        budget_s: seconds that the tuning may take.
        wanted: True to show it from the start, False never, None once it takes over two seconds.
        clock: seconds, ever rising.
    """

    def __init__(
        self,
        name: str,
        budget_s: float,
        wanted: bool | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._budget_s, self._wanted, self._clock = name, budget_s, wanted, clock
        self._started = clock()
        self._logged = self._started
        self._bar: Any = None
        self._bar_class: Any = _tqdm() if wanted is not False else None

    def step(self, plan: str, best: float) -> None:
        """A candidate begins; `best` is the best ratio to as-written so far."""
        used_s = self._clock() - self._started
        if self._wanted is False or (self._wanted is None and used_s < _QUIET_S):
            return
        if self._bar_class is not None:
            try:
                self._draw(plan, best, used_s)
            except (OSError, ValueError):  # whoever reads it has gone
                self._bar = self._bar_class = None
        elif self._clock() - self._logged >= _LOG_EVERY_S:
            self._logged = self._clock()
            _log.info(
                "tuning %s: %.0f of %g s, %s, trying %s",
                self._name,
                used_s,
                self._budget_s,
                _best(best),
                plan,
            )

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()

    def _draw(self, plan: str, best: float, used_s: float) -> None:
        if self._bar is None:
            layout = "{desc}: {n:.0f}/{total:.0f} s {bar} {postfix}"
            self._bar = self._bar_class(
                total=self._budget_s, desc=f"tuning {self._name}", bar_format=layout, leave=False
            )
        self._bar.n = min(used_s, self._budget_s)
        self._bar.set_postfix_str(f"{_best(best)}, trying {plan}", refresh=True)


def _best(ratio: float) -> str:
    return f"best {1 / ratio:.2f}x" if ratio < 1 else "nothing faster yet"


def bar_class() -> Any:
    """The class of bars for whoever else shows progress; None where none would be seen."""
    return _tqdm()


def no_loop_bar() -> str | None:
    """Why no bar can be shown over a loop; None if one can."""
    try:
        importlib.import_module("tqdm.auto")
    except ImportError:
        return "tqdm is not installed: pip install 'autoloop[progress]'"
    return "there is no standard error" if getattr(sys.stderr, "closed", sys.stderr is None) else None


def loop_bar(name: str, length: int) -> Any:
    """A bar over the iterations of a loop that somebody asked to watch, shown wherever standard error goes."""
    every_s = 0.1 if _is_watched() else _LOG_EVERY_S
    return importlib.import_module("tqdm.auto").tqdm(total=length, desc=name, mininterval=every_s)


def _is_watched() -> bool:
    try:
        return "ipykernel" in sys.modules or sys.stderr.isatty()
    except (AttributeError, ValueError, OSError):  # there is none, as in a daemon; it is closed; it is some object
        return False


def _tqdm() -> Any:
    """The bar's class, where tqdm is installed and somebody is watching; else None."""
    if not _is_watched():
        return None
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
