"""How many iterations of a watched loop run between two looks at it, found by measuring.

Few enough that the bar moves several times a second, enough that looking costs under 1 %: at a look
the host waits for the device, moves the bar and dispatches the next step.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax

from autoloop import _signals

_log = logging.getLogger("autoloop")

#: Seconds between two looks. The bar's own cost, some 0.2 ms on a terminal, is well under 1 % of the least.
_LEAST_S, _MOST_S = 0.1, 0.16
#: Looks are at least this many times as far apart as one costs; half of it is let pass, which is 1 %.
_TIMES_COST = 200
#: With looks further apart than this, iterations have become slower: they come nearer again.
_TOO_LONG_S = 1.0
#: From one look to the next the count grows by this factor at most: later iterations may be slower.
_GROWTH = 256


class Bar(Protocol):
    """What shows how far a loop is; a `tqdm` bar is one."""

    def update(self, n: int) -> Any:
        """So many iterations more are done."""

    def close(self) -> Any:
        """The loop ended, or was stopped."""


def _safe(show: Callable[[], Any]) -> Any:
    """What a bar's method gives; None where the bar can't be shown: whoever reads it may have gone."""
    try:
        return show()
    except Exception as error:
        if _signals.from_handler(error):
            raise
        _log.info("a bar could not be shown: %r", error)
        return None


class Pace:
    """The pace of one watched loop; what it learned in one call holds for the next.

    Args:
        length: the loop's trip count.
        steers: whether the loop's steps are to be as long as `count`; else the plan says how long they are.
        clock: seconds, ever rising.

    Attributes:
        count: iterations from one look to the next.
        open_bar: makes the bar of a call; set before each.
    """

    open_bar: Callable[[], Bar]

    def __init__(self, length: int, steers: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steers, self.count = steers, 1
        self._length, self._clock = length, clock
        #: Lengths that have run: the first time they compile, so only the second is measured.
        self._seen: set[int] = set()
        self._bar: Bar | None = None
        self._ran, self._last = 0, 0.0

    def begin(self) -> None:
        """The loop begins."""
        self._bar = _safe(self.open_bar)
        self._ran, self._last = 0, self._clock()

    def step(self, given: int, left: int) -> int:
        """How many iterations the next step runs, of those left; `given` is what the plan says."""
        return min(self.count if self.steers else given, left)

    def ran(self, count: int, state: Any) -> None:
        """A step of `count` iterations was dispatched; `state` is what it returns."""
        self._ran += count
        if self._ran >= self.count:
            self._look(state)

    def end(self) -> None:
        """The call returned, or was stopped: the bar is closed."""
        if self._bar is not None:
            _safe(self._bar.close)
        self._bar = None

    def finish(self) -> None:
        """All iterations are done: the bar is to say so."""
        if self._ran:
            self._show()
            self._ran = 0

    def _show(self) -> None:
        if self._bar is not None:
            _safe(functools.partial(self._bar.update, self._ran))

    def _look(self, state: Any) -> None:
        dispatched = self._clock()
        jax.block_until_ready(state)
        ready = self._clock()
        self._show()
        shown = self._clock()
        if self._ran in self._seen:
            # Where a device runs a step before its dispatch returns, this counts the step too: hence _MOST_S.
            cost_s = (dispatched - self._last) + (shown - ready)
            self._adapt(ready - self._last, cost_s)
        self._seen.add(self._ran)
        self._ran, self._last = 0, shown

    def _adapt(self, took_s: float, cost_s: float) -> None:
        wanted_s = min(max(_LEAST_S, _TIMES_COST * cost_s), _MOST_S)
        if wanted_s / 2 <= took_s <= _TOO_LONG_S:
            return
        # A power of two, so that the next process finds the same steps in JAX's compilation cache.
        fitting = wanted_s * self._ran / max(took_s, 1e-9)
        power = 2 ** math.ceil(math.log2(max(fitting, 1.0)))
        self.count = min(power, _GROWTH * self._ran, max(self._length, 1))
