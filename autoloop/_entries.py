"""What the store holds, readable or not: what lists, prunes and explanations of misses go through."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autoloop import _json
from autoloop._records import Record, RecordError
from autoloop._store import Store

STORE, WISDOM = "the store", "a wisdom file"


@dataclass(frozen=True)
class Entry:
    """One row of the store, or one record of a wisdom file.

    Attributes:
        key: the digest it is kept under.
        function: as the record says, "?" where that is unreadable.
        parts: the named parts of its signature, as far as they are readable.
        record: the record, None where this version can't read it.
        problem: why there is no record, else "".
        where: `STORE` or `WISDOM`.
    """

    key: str
    function: str
    parts: Mapping[str, str]
    record: Record | None
    problem: str = ""
    where: str = STORE


def entries(store: Store, wisdom: bool = False) -> list[Entry]:
    """All entries of a store, the oldest first; with those of its wisdom files before them on request."""
    found = sorted((_entry(key, text) for key, text in store.texts()), key=_created)
    return [*_of_wisdom(store), *found] if wisdom else found


def _of_wisdom(store: Store) -> Iterator[Entry]:
    for key, record in store.wisdom().items():
        yield Entry(key, record.function, record.key, record, where=WISDOM)


def _created(entry: Entry) -> str:
    return entry.record.created if entry.record is not None else ""


def _entry(key: str, text: str) -> Entry:
    try:
        record = Record.from_json(text)
    except RecordError as error:
        function, parts = _what_is_readable(text)
        return Entry(key, function, parts, None, str(error))
    return Entry(key, record.function, record.key, record)


def _what_is_readable(text: str) -> tuple[str, dict[str, str]]:
    """The function and the named parts of what another version of autoloop wrote; used as text only."""
    try:
        data: Any = _json.loads(text)
    except ValueError:
        return "?", {}
    if not isinstance(data, dict):
        return "?", {}
    function, parts = data.get("function"), data.get("key")
    pairs = parts.items() if isinstance(parts, dict) else ()
    readable = {name: part for name, part in pairs if isinstance(part, str)}
    return function if isinstance(function, str) else "?", readable


def age_s(created: str, clock: Callable[..., datetime.datetime] = datetime.datetime.now) -> float | None:
    """Seconds since a moment as records write it, None where it can't be read."""
    try:
        return (clock(datetime.UTC) - datetime.datetime.fromisoformat(created)).total_seconds()
    except (ValueError, TypeError):  # no date, or one without a time zone
        return None
