"""Who wants to hear of finished records: for a program's own dashboards and logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from autoloop._records import Record

_log = logging.getLogger("autoloop")

Listener = Callable[[Record], Any]

_lock = threading.Lock()
_listeners: dict[object, Listener] = {}


def on_record(callback: Listener) -> Callable[[], None]:
    """Has `callback` called with each record that a tuning of this process finishes, from now on.

    It is called in the thread that tuned, before that call runs on; not for records that were
    remembered, nor for programs that are not tuned. A record that a first whole call confirms or
    demotes comes once more. What it raises is logged to the logger `autoloop` and goes no further.

    Args:
        callback: takes a `Record`; what it returns is ignored.

    Returns:
        A function that ends this; calling it again does nothing.

    Raises:
        TypeError: not a callable.

    Example:
        >>> import autoloop
        >>> gains = []
        >>> remove = autoloop.on_record(lambda record: gains.append(record.gain))
        >>> remove()
    """
    if not callable(callback):
        raise TypeError(f"on_record takes a function of a record; got {callback!r}")
    token = object()  # the same callback may be registered twice, and removed apart
    with _lock:
        _listeners[token] = callback

    def remove() -> None:
        with _lock:
            _listeners.pop(token, None)

    return remove


def tell(record: Record) -> None:
    """Gives a finished record to each listener, in the order in which they came."""
    with _lock:
        listeners = tuple(_listeners.values())
    for listener in listeners:
        try:
            listener(record)
        except Exception:  # theirs may raise anything; the call that tuned is not to suffer
            _log.exception("autoloop: the listener %r failed on the record of %s", listener, record.function)
