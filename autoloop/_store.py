"""Where records live: diskcache behind four verbs, and read-only wisdom files behind it.

Nothing here may fail a call: whatever goes wrong is one warning, and records stay in memory.
Values are JSON text under text keys, see `_disk.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import diskcache

from autoloop import _signals, _wisdom
from autoloop._disk import RefusedError, TextDisk, make_private
from autoloop._records import Record, RecordError
from autoloop._warning import warn

_log = logging.getLogger("autoloop")

#: Seconds to wait for another process's lock on the database before giving up.
_TIMEOUT_S = 5.0
#: Seconds between two tries for a lock.
_LOCK_POLL_S = 0.1
#: Keys with these beginnings hold no records: locks, and notes of what is wanted.
_OTHER_KEYS = ("lock:", "wanted:")


class Store:
    """Records by key. Every verb is safe: an unusable store gives misses and one warning.

    Args:
        folder: made with mode 0700 on the first write or read.
        wisdom: read-only record files, consulted in order after the folder.
    """

    def __init__(self, folder: Path, wisdom: Sequence[str] = ()) -> None:
        self.folder = folder
        self._wisdom_paths = tuple(wisdom)
        self._wisdom: dict[str, Record] | None = None
        self._unusable: set[str] = set()
        self._cache: Any = None
        self._pid = 0
        self._broken = False

    def get(self, key: str) -> Record | None:
        """The record under `key`, or None; a damaged entry is a miss."""
        record = self._attempt(lambda cache: _record(_text(cache, key), key))
        return record if record is not None else self._from_wisdom().get(key)

    def put(self, key: str, record: Record) -> None:
        """Keeps a record under `key`."""
        text = record.to_json()
        self._attempt(lambda cache: cache.set(key, text))

    def put_all(self, records: Mapping[str, Record]) -> bool:
        """Keeps all of these records or none; returns whether it did."""
        texts = {key: record.to_json() for key, record in records.items()}
        return bool(self._attempt(lambda cache: _set_all(cache, texts)))

    def delete(self, key: str) -> None:
        """Drops what is kept under `key`, if anything."""
        self._attempt(lambda cache: cache.delete(key))

    def items(self, holding: str = "") -> Iterator[tuple[str, Record]]:
        """All readable records of the folder whose text holds a text, oldest first; others are not parsed."""
        yield from self._attempt(lambda cache: _records(cache, holding)) or ()

    def texts(self) -> Iterator[tuple[str, str]]:
        """All rows that should be records, as they are stored, readable or not."""
        yield from self._attempt(lambda cache: _texts(cache, _record_keys(cache))) or ()

    def note(self, key: str, change: Callable[[str | None], str]) -> None:
        """Changes a text that is no record, in one transaction; one that can't be kept is lost without a word."""
        if self._broken:
            return
        try:
            cache = self._open()
            with cache.transact():
                cache.set(key, change(_text(cache, key)))
        except Exception as error:  # records may still be read: the store is not given up for a note
            if _signals.from_handler(error):
                raise
            _log.info("a note could not be kept: %r", error)

    def notes(self, prefix: str) -> Iterator[tuple[str, str]]:
        """The texts whose key begins with a prefix that is not of records."""
        yield from self._attempt(lambda cache: _texts(cache, _keys(cache, prefix))) or ()

    @property
    def places(self) -> str:
        """Where it looks, in a person's words; wisdom files that can't be used are said to be so."""
        self._from_wisdom()
        files = [f"{path} (which can't be used)" if path in self._unusable else path for path in self._wisdom_paths]
        return ", nor in ".join([f"the store {self.folder}", *files])

    def wisdom(self) -> Mapping[str, Record]:
        """The records of the wisdom files, of which the first that holds a key counts."""
        return dict(self._from_wisdom())

    def clear(self) -> int:
        """Drops all records of the folder; returns how many there were."""
        return self._attempt(lambda cache: sum(map(cache.delete, _record_keys(cache)))) or 0

    @contextlib.contextmanager
    def lock(self, name: str, expire_s: float, wait_s: float) -> Iterator[bool]:
        """Holds a lock shared by all processes on this store; yields whether it was had.

        Args:
            name: what is locked.
            expire_s: seconds after which a holder that died loses it.
            wait_s: seconds to wait for another holder before going on without.
        """
        key, owner = f"lock:{name}", f"{socket.gethostname()} {os.getpid()} {threading.get_ident()}"
        end = time.monotonic() + wait_s
        while (had := self._attempt(lambda cache: cache.add(key, owner, expire=expire_s))) is False:
            if time.monotonic() >= end:
                break
            if _is_dead(holder := self._attempt(lambda cache: cache.get(key))):
                self._attempt(lambda cache, was=holder: cache.delete(key) if cache.get(key) == was else None)
            else:
                time.sleep(_LOCK_POLL_S)
        try:
            yield had is not False  # None: there is no usable store, so nobody to share with
        finally:
            if had:
                self._attempt(lambda cache: cache.delete(key) if cache.get(key) == owner else None)

    def close(self) -> None:
        """Closes the database; the next verb opens it again."""
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def _attempt(self, verb: Any) -> Any:
        """The verb's result, or None with one warning where the store can't be used."""
        if self._broken:
            return None
        try:
            return self._or_anew(verb)
        except Exception as error:
            if _signals.from_handler(error):
                raise
            self._give_up(error)
            return None

    def _or_anew(self, verb: Any) -> Any:
        """The verb's result; a database that shows damage only now is moved aside, and a new one begun."""
        try:
            return verb(self._open())
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # locked, read-only or full: the file itself is sound
            self.close()
            _move_aside(self.folder, error)
            return verb(self._open())

    def _open(self) -> Any:
        # A connection must not cross a fork: a child opens its own.
        if self._cache is None or self._pid != os.getpid():
            make_private(self.folder)
            try:
                self._cache = _open_cache(self.folder)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise  # locked, read-only or full: the file itself is sound
                _move_aside(self.folder, error)
                self._cache = _open_cache(self.folder)
            self._pid = os.getpid()
        return self._cache

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        self._cache = None
        _warn(f"the store {self.folder} can't be used ({error!r}); records are kept in memory only")

    def _from_wisdom(self) -> dict[str, Record]:
        if self._wisdom is None:
            self._wisdom = {}
            for path in reversed(self._wisdom_paths):
                try:
                    self._wisdom.update(_wisdom.read(path))
                except (OSError, ValueError) as error:
                    self._unusable.add(path)
                    _warn(f"the wisdom file {path} can't be used: {error}")
        return self._wisdom


def _warn(text: str) -> None:
    _log.warning(text)
    warn(text)


def _record(text: Any, key: str) -> Record | None:
    if text is None:
        return None
    try:
        return Record.from_json(text)
    except RecordError as error:
        _log.info("entry %s is not readable, so it is a miss: %s", key[:12], error)
        return None


def _text(cache: Any, key: str) -> Any:
    """What is stored under a key; None for a row that is damaged or no text."""
    try:
        return cache.get(key)
    except (RefusedError, UnicodeDecodeError) as error:
        _log.warning("entry %s of the store was refused: %s", key[:12], error)
        return None


def _keys(cache: Any, prefix: str = "") -> list[str]:
    """Keys with this beginning; rows whose key is no text are passed over."""
    rows = cache._sql("SELECT key FROM Cache WHERE raw = 1 ORDER BY rowid").fetchall()
    return [key for (key,) in rows if isinstance(key, str) and key.startswith(prefix)]


def _record_keys(cache: Any) -> list[str]:
    return [key for key in _keys(cache) if not key.startswith(_OTHER_KEYS)]


def _texts(cache: Any, keys: Sequence[str]) -> list[tuple[str, str]]:
    found = ((key, _text(cache, key)) for key in keys)
    return [(key, text) for key, text in found if isinstance(text, str)]


def _set_all(cache: Any, texts: Mapping[str, str]) -> bool:
    with cache.transact():
        for key, text in texts.items():
            cache.set(key, text)
    return True


def _records(cache: Any, holding: str) -> list[tuple[str, Record]]:
    rows = ((key, text) for key, text in _texts(cache, _record_keys(cache)) if holding in text)
    found = ((key, record) for key, text in rows if (record := _record(text, key)) is not None)
    return sorted(found, key=lambda pair: pair[1].created)


def _open_cache(folder: Path) -> Any:
    _wait_for_lock(folder / "cache.db")
    # No eviction: a tuned record must never vanish because a cache grew.
    return diskcache.Cache(str(folder), timeout=_TIMEOUT_S, disk=TextDisk, eviction_policy="none")


def _wait_for_lock(database: Path) -> None:
    """Raises if somebody else keeps the database locked: diskcache's constructor would wait a minute."""
    if not database.exists():
        return
    connection = sqlite3.connect(database, timeout=_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _move_aside(folder: Path, error: Exception) -> None:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for name in ("cache.db", "cache.db-wal", "cache.db-shm"):
        damaged = folder / name
        if damaged.exists():
            damaged.rename(folder / f"{name}.damaged-{stamp}-{os.getpid()}")
    _warn(f"the store {folder} was damaged ({error}); it was moved aside and a new one begun")


def _is_dead(holder: Any) -> bool:
    """Whether the process that holds a lock was on this machine and is gone: it was killed."""
    host, _, rest = str(holder).partition(" ")
    pid = rest.partition(" ")[0]
    if host != socket.gethostname() or not pid.isdecimal() or os.name != "posix":
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
