"""Wisdom files: records as JSON that goes from one machine to another, and which of two records counts.

A file is `{"format": "autoloop wisdom", "version": 1, "records": {KEY: RECORD}}` with sorted keys and one
field a line, so that git shows what changed. FFTW's wisdom is the model: more rigorous records replace
lesser ones, never the reverse. A file is read as a whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from autoloop import _json
from autoloop._records import Record, RecordError

#: What every file begins with, and what this autoloop reads.
_HEAD = {"format": "autoloop wisdom", "version": 1}

#: A wisdom file over this many bytes is refused: a whole fleet's records are far smaller.
MAX_BYTES = 50_000_000


class Rigour(NamedTuple):
    """How thoroughly a record was made; the greater one counts."""

    complete: bool
    samples: int
    spent_s: float


def rigour(record: Record) -> Rigour:
    """A record's rigour: whether its search ended by itself, its paired rounds, the seconds it took."""
    if record.expires:  # of a tuning that failed: it says nothing of the plans
        return Rigour(False, 0, 0.0)
    return Rigour(record.complete, sum(trial.rounds for trial in record.trials), record.spent_s)


def _rank(record: Record) -> tuple[Rigour, str, str]:
    # Of equally rigorous ones the newer; the text last, so that the order of files never matters.
    return rigour(record), record.created, record.to_json()


def to_text(records: Mapping[str, Record]) -> str:
    """Records as the text of a wisdom file."""
    data = {**_HEAD, "records": {key: record.to_dict() for key, record in records.items()}}
    return json.dumps(data, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def from_text(text: str) -> dict[str, Record]:
    """The records of a wisdom file's text.

    Raises:
        RecordError: the text is no wisdom of this version, or one of its records is unreadable.
    """
    try:
        data = _json.loads(text)
    except ValueError as error:
        raise RecordError(f"it is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("records"), dict):
        raise RecordError(f'it must hold {json.dumps(_HEAD)[:-1]}, "records": {{KEY: RECORD}}}}')
    if odd := [
        f"{name} {data.get(name)!r:.40}"
        for name, value in _HEAD.items()
        if json.dumps(data.get(name)) != json.dumps(value)
    ]:
        raise RecordError(f"it has {', '.join(odd)}; this autoloop reads {json.dumps(_HEAD)}")
    return {key: _record(key, value) for key, value in data["records"].items()}


def _record(key: str, data: Any) -> Record:
    try:
        return Record.from_dict(data)
    except RecordError as error:
        raise RecordError(f"its record {key[:12]}: {error}") from None


def read(path: str | os.PathLike[str]) -> dict[str, Record]:
    """The records of a wisdom file.

    Raises:
        OSError: the file can't be read.
        RecordError: it is no wisdom file of this version; nothing of it is taken.
    """
    try:
        text = _json.read_file(path, MAX_BYTES)
    except ValueError as error:
        raise RecordError(str(error)) from None
    return from_text(text)


def write(path: str | os.PathLike[str], records: Mapping[str, Record]) -> None:
    """Writes a wisdom file; a reader sees the old one or the new one, never a part."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(to_text(records), encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


# ---------------------------------------------------------------- several sets of records


class Taken(NamedTuple):
    """What merging took: keys that are new, keys whose record was replaced, keys left as they were."""

    new: tuple[str, ...]
    replaced: tuple[str, ...]
    kept: tuple[str, ...]


def taken(ours: Mapping[str, Record], theirs: Mapping[str, Record]) -> Taken:
    """What of `theirs` is to be taken: what we lack, and what is more rigorous than ours."""
    new = theirs.keys() - ours.keys()
    replaced = {key for key in theirs.keys() & ours.keys() if _rank(theirs[key]) > _rank(ours[key])}
    kept = theirs.keys() - new - replaced
    return Taken(tuple(sorted(new)), tuple(sorted(replaced)), tuple(sorted(kept)))


def merge(*sets: Mapping[str, Record]) -> dict[str, Record]:
    """All records, of each key the most rigorous; the order of the sets does not matter."""
    found: dict[str, Record] = {}
    for records in sets:
        chosen = taken(found, records)
        found.update({key: records[key] for key in (*chosen.new, *chosen.replaced)})
    return found


def matching(records: Mapping[str, Record], text: str | None) -> dict[str, Record]:
    """The records whose key begins with a text, or whose function, arguments or device hold it; None: all."""
    if text is None:
        return dict(records)
    return {key: record for key, record in records.items() if _matches(key, record, text)}


def _matches(key: str, record: Record, text: str) -> bool:
    shown = (record.function, record.key.get("arguments", ""), record.key.get("device", ""))
    return key.startswith(text) or any(text in part for part in shown)


class Change(NamedTuple):
    """One difference between two sets of records: `added`, `removed` or `changed`, and what changed."""

    kind: str
    key: str
    function: str
    arguments: str
    details: tuple[str, ...]


def diff(old: Mapping[str, Record], new: Mapping[str, Record]) -> list[Change]:
    """What differs between two sets of records, by function and arguments."""
    changes = [_change(key, old.get(key), new.get(key)) for key in {*old, *new} if old.get(key) != new.get(key)]
    return sorted(changes, key=lambda c: (c.function, c.arguments, c.key))


def _change(key: str, old: Record | None, new: Record | None) -> Change:
    record = new or old
    assert record is not None
    if old is None or new is None:
        kind, shown_plan = "removed" if new is None else "added", f"plan {record.winner}, {_gain(record)}"
        return Change(kind, key, record.function, record.key.get("arguments", ""), (shown_plan,))
    shown: dict[str, Callable[[Record], Any]] = {
        "plan": lambda r: r.winner,
        "gain": _gain,
        "state": lambda r: "complete" if r.complete else "partial",
        "samples": lambda r: rigour(r).samples,
        "spent": lambda r: f"{r.spent_s:.1f} s",
        "created": lambda r: r.created,
        "notes": lambda r: "; ".join(r.notes) or "none",
    }
    details = tuple(f"{name} {show(old)} -> {show(new)}" for name, show in shown.items() if show(old) != show(new))
    return Change("changed", key, new.function, new.key.get("arguments", ""), details or ("trials",))


def _gain(record: Record) -> str:
    return "gain unknown" if record.gain is None else f"{record.gain:.2f}x"
