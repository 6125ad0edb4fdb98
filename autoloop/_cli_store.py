"""Commands that look into the store: list, show, prune, clear, path."""

from __future__ import annotations

import argparse
import re
from typing import Any

from autoloop import _report, _wisdom
from autoloop._cli import Commands, ProblemError, answer, counted, own_store
from autoloop._config import did_you_mean
from autoloop._entries import WISDOM, Entry, age_s, entries

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_MATCH: dict[str, Any] = {"metavar": "TEXT", "help": "only records whose function, arguments, device or key hold TEXT"}


def add(commands: Commands) -> None:
    """Declares the commands of this module."""
    commands.add("list", _list, "list the remembered records, those of AUTOLOOP_WISDOM too", {"--match": _MATCH})
    key = {"metavar": "KEY", "help": "a key or the beginning of one, as 'list' prints it, or a function's name"}
    commands.add("show", _show, "print one record: all trials, and why the winner won", {"key": key})
    age: dict[str, Any] = {"metavar": "AGE", "type": seconds_of, "help": "drop records older than AGE: 30d, 12h, 2w"}
    unreadable = {"action": "store_true", "help": "drop what this version can't read"}
    dry = {"action": "store_true", "help": "only say what would be dropped"}
    options = {"--older-than": age, "--unreadable": unreadable, "--match": _MATCH, "--dry-run": dry}
    commands.add("prune", _prune, "drop old or unreadable records", options)
    commands.add("clear", _clear, "drop all remembered records")
    commands.add("path", _path, "print the folder of the store")


def seconds_of(text: str) -> float:
    """Seconds of an age such as `30d`; raises `argparse.ArgumentTypeError` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"an age is a number and one of s, m, h, d, w, as 30d; got {text!r}")
    return float(found[1]) * _UNIT_S[found[2]]


def _list(given: argparse.Namespace) -> int:
    found = [entry for entry in entries(own_store(), wisdom=True) if _chosen(entry, given.match)]
    rows = [row(entry) for entry in found]
    answer(given, rows, _table(rows) if rows else "no records")
    return 0


def _chosen(entry: Entry, text: str | None) -> bool:
    if entry.record is not None:
        return bool(_wisdom.matching({entry.key: entry.record}, text))
    return text is None or entry.key.startswith(text) or text in entry.function


def row(entry: Entry) -> dict[str, Any]:
    """What `list` says of an entry."""
    record = entry.record
    return {
        "key": entry.key,
        "function": entry.function,
        "shapes": entry.parts.get("arguments", ""),
        "device": entry.parts.get("device", "?"),
        "plan": None if record is None else record.winner,
        "gain": None if record is None else record.gain,
        "age_s": None if record is None else age_s(record.created),
        "state": _state(entry),
    }


def _state(entry: Entry) -> str:
    if entry.record is None:
        return f"unreadable: {entry.problem}"
    if entry.record.expires:
        return f"failed, tried again after {entry.record.expires}"
    where = ", of a wisdom file" if entry.where == WISDOM else ""
    return ("complete" if entry.record.complete else "partial") + where


def _table(rows: list[dict[str, Any]]) -> str:
    header = ("key", "function", "shapes", "device", "plan", "gain", "age", "state")
    cells = [
        (
            found["key"][:12],
            found["function"],
            _short(found["shapes"]),
            found["device"],
            found["plan"] or "-",
            f"{found['gain']:.2f}x" if found["gain"] else "-",
            _age(found["age_s"]),
            _short(found["state"]),
        )
        for found in rows
    ]
    return _report.align([header, *cells])


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} d"


def _show(given: argparse.Namespace) -> int:
    every = entries(own_store(), wisdom=True)
    found = {e.key: e for e in every if e.key.startswith(given.key) or e.function == given.key}
    if len(found) != 1:
        raise ProblemError(_not_one(given.key, list(found.values()), every))
    (entry,) = found.values()
    if entry.record is None:
        raise ProblemError(f"the record {entry.key[:12]} can't be read: {entry.problem}")
    data = {"key": entry.key, "record": entry.record.to_dict()}
    answer(given, data, f"key {entry.key}\n{_report.text(entry.record)}")
    return 0


def _not_one(key: str, found: list[Entry], every: list[Entry]) -> str:
    if not found:
        near = did_you_mean(key, [*(e.key[:12] for e in every), *(e.function for e in every)])
        return f"no record has a key that begins with {key!r}, or is of a function of that name; see 'list'{near}"
    shown = "\n".join(f"  {e.key[:12]}  {e.function}  {_short(e.parts.get('arguments', ''))}" for e in found)
    return f"{len(found)} records have a key that begins with {key!r}, or are of that function:\n{shown}"


def _prune(given: argparse.Namespace) -> int:
    if given.older_than is None and not given.unreadable:
        raise ProblemError("prune needs --older-than AGE or --unreadable: say what to drop", 2)
    store = own_store()
    found = [entry for entry in entries(store) if _chosen(entry, given.match) and _drops(entry, given)]
    for entry in found if not given.dry_run else ():
        store.delete(entry.key)
    said = "would drop" if given.dry_run else "dropped"
    lines = [f"{said} {e.key[:12]}  {e.function}  {_short(e.parts.get('arguments', ''))}" for e in found]
    answer(given, [row(entry) for entry in found], "\n".join([*lines, f"{said} {counted(len(found), 'record')}"]))
    return 0


def _drops(entry: Entry, given: argparse.Namespace) -> bool:
    if entry.record is None:
        return bool(given.unreadable)
    old = age_s(entry.record.created)
    return given.older_than is not None and old is not None and old > given.older_than


def _clear(given: argparse.Namespace) -> int:
    count = own_store().clear()
    answer(given, {"dropped": count}, f"dropped {counted(count, 'record')}")
    return 0


def _path(given: argparse.Namespace) -> int:
    folder = str(own_store().folder)
    answer(given, {"path": folder}, folder)
    return 0
