"""The processes of one program that `jax.distributed` started, and how texts travel between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from autoloop import _jaxpr
from autoloop._together import Stopped, Transport

#: Seconds of one look at a key: while it waits, the coordination service hears no interrupt.
_SLICE_S = 1.0


class KeyValues:
    """Texts in the key-value store of jax's coordination service."""

    def __init__(self, client: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock

    def put(self, key: str, text: str) -> bool:
        """Writes unless the key is taken; returns whether it wrote."""
        return self._asked("ALREADY_EXISTS", lambda: self._client.key_value_set(key, text)) is not _NO

    def get(self, key: str, wait_s: float) -> str | None:
        """What stands under a key, None if nothing came in time."""
        end = self._clock() + wait_s
        if wait_s <= 0:
            return self._text("NOT_FOUND", lambda: self._client.key_value_try_get(key))
        while (left_s := end - self._clock()) > 0:
            slice_ms = max(1, int(1e3 * min(_SLICE_S, left_s)))
            ask = functools.partial(self._client.blocking_key_value_get, key, slice_ms)
            text = self._text("DEADLINE_EXCEEDED", ask)
            if text is not None:
                return text
        return None

    def drop(self, prefix: str) -> None:
        """Forgets all keys that begin so."""
        self._asked("NOT_FOUND", lambda: self._client.key_value_delete(prefix))

    def _text(self, expected: str, ask: Callable[[], Any]) -> str | None:
        found = self._asked(expected, ask)
        return None if found is _NO else str(found)

    def _asked(self, expected: str, ask: Callable[[], Any]) -> Any:
        """The answer, `_NO` for the error that is one of the answers; other errors end the talk."""
        try:
            return ask()
        except Exception as error:
            if expected in str(error):
                return _NO
            raise Stopped(f"jax's coordination service failed: {error}") from error


_NO = object()


@dataclass(frozen=True)
class Group:
    """The processes that must run the same plan.

    Attributes:
        transport: between them; None where there is none.
        ranks: theirs.
        own: of this process.
        shared: whether some argument is spread over them, so that all of them surely make the call.
    """

    transport: Transport | None
    ranks: tuple[int, ...]
    own: int
    shared: bool


@functools.cache
def _transport(client: Any) -> Transport:
    return KeyValues(client)


def group(places: Sequence[Hashable]) -> Group | None:
    """The group for a call with arguments placed so; None for the only process there is."""
    if jax.process_count() == 1:
        return None
    own, client = jax.process_index(), _jaxpr.coordination()
    transport = None if client is None else _transport(client)
    holders = {d.process_index for p in places if p is not None for d in p.device_set}  # type: ignore[attr-defined]
    shared = len(holders) > 1
    ranks = sorted(holders) if shared and own in holders else range(jax.process_count())
    return Group(transport, tuple(ranks), own, shared)
