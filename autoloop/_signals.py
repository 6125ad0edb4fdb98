"""Whether an error is one that a signal handler raised: it is meant for the user, wherever it struck."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import CodeType
from typing import Any


def from_handler(error: BaseException) -> bool:
    """Whether a Python signal handler raised it (or what it was raised from), as timeouts by `SIGALRM` do.

    What else goes wrong while a plan is tried is the plan's failure. A handler's error says nothing of
    the plan, whatever its class: its frame among those of the error tells.
    """
    codes = set(_handlers())
    seen: BaseException | None = error
    while seen is not None and codes:
        trace = seen.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                return True
            trace = trace.tb_next
        seen = seen.__cause__  # not the context: it may be an older error that the caller handles
    return False


def _handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        if not hasattr(handler, "__code__"):  # an object that is called; a bound method shows its function's code
            handler = getattr(handler, "__call__", None)  # noqa: B004
        if isinstance(code := getattr(handler, "__code__", None), CodeType):
            yield code
