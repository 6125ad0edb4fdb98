"""Commands on wisdom files: export, import, merge, diff."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from autoloop import _plans, _signature, _wisdom
from autoloop._cli import Commands, ProblemError, answer, counted, own_store
from autoloop._records import Record

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def add(commands: Commands) -> None:
    """Declares the commands of this module."""
    match = {"metavar": "TEXT", "help": "only records whose function, arguments, device or key hold TEXT"}
    file = {"metavar": "FILE", "help": "the wisdom file to write; - for standard output"}
    commands.add("export", _export, "write the store's records to a wisdom file", {"file": file, "--match": match})
    files = {"metavar": "FILE", "nargs": "+", "help": "wisdom files"}
    commands.add("import", _import, "take records of wisdom files into the store, all or nothing", {"files": files})
    out = {"metavar": "FILE", "required": True, "help": "the wisdom file to write; - for standard output"}
    commands.add(
        "merge", _merge, "merge wisdom files, of each record the most rigorous", {"files": files, "-o --output": out}
    )
    old, new = {"metavar": "OLD", "help": "a wisdom file"}, {"metavar": "NEW", "help": "a wisdom file"}
    commands.add("diff", _diff, "say what differs between two wisdom files (status 1 if so)", {"old": old, "new": new})


def read(path: str) -> dict[str, Record]:
    """The records of a wisdom file; raises `ProblemError` that names it."""
    try:
        return _wisdom.read(path)
    except (OSError, ValueError) as error:
        raise ProblemError(f"the wisdom file {path} can't be used: {error}", 2) from None


def _write(path: str, records: Mapping[str, Record]) -> None:
    if path == "-":
        print(_wisdom.to_text(records), end="")
        return
    try:
        _wisdom.write(path, records)
    except OSError as error:
        raise ProblemError(f"the wisdom file {path} can't be written: {error}") from None


def _export(given: argparse.Namespace) -> int:
    # A record that expires is of a tuning that failed here: nobody else needs it.
    every = {key: record for key, record in own_store().items() if not record.expires}
    found = _wisdom.matching(every, given.match)
    if not found:
        chosen = "" if given.match is None else f", of which none matches {given.match!r}"
        raise ProblemError(f"nothing to export: the store holds {len(every) or 'no'} records{chosen}; see 'list'")
    _write(given.file, found)
    if given.file != "-":
        answer(
            given,
            {"file": given.file, "records": sorted(found)},
            f"wrote {counted(len(found), 'record')} to {given.file}",
        )
    return 0


def _import(given: argparse.Namespace) -> int:
    found = {path: read(path) for path in given.files}
    for path, records in found.items():
        _check(path, records)
    theirs, store = _wisdom.merge(*found.values()), own_store()
    chosen = _wisdom.taken(dict(store.items()), theirs)
    wanted = {key: theirs[key] for key in (*chosen.new, *chosen.replaced)}
    if wanted and not store.put_all(wanted):
        raise ProblemError(f"nothing was imported: the store {store.folder} can't be written")
    answer(given, chosen._asdict(), _what_was_taken(chosen, theirs))
    return 0


def _check(path: str, records: Mapping[str, Record]) -> None:
    """Refuses what could serve calls that it was not made for, or none."""
    for key, record in records.items():
        if problem := _problem(key, record):
            raise ProblemError(f"the wisdom file {path} can't be used: its record {key[:12]} {problem}", 2)


def _problem(key: str, record: Record) -> str:
    if key != _signature.digest(record.key):
        return "stands under a key that is not its own; was it edited by hand?"
    try:
        _plans.check_plan(record.winner)
    except ValueError as error:
        return f"has a plan that this autoloop does not know: {error}"
    return ""


def _what_was_taken(chosen: _wisdom.Taken, records: Mapping[str, Record]) -> str:
    lines = [
        *(f"+ {_line(records[key])}" for key in chosen.new),
        *(f"~ {_line(records[key])}" for key in chosen.replaced),
    ]
    counts = f"took {counted(len(chosen.new), 'new record')} and {len(chosen.replaced)} more rigorous ones"
    return "\n".join([*lines, f"{counts}, kept {len(chosen.kept)} as they were"])


def _line(record: Record) -> str:
    return f"{record.function}  [{record.key.get('arguments', '')}]  {record.winner}"


def _merge(given: argparse.Namespace) -> int:
    merged = _wisdom.merge(*map(read, given.files))
    _write(given.output, merged)
    if given.output != "-":
        said = f"wrote {counted(len(merged), 'record')} of {len(given.files)} files to {given.output}"
        answer(given, {"file": given.output, "records": sorted(merged)}, said)
    return 0


def _diff(given: argparse.Namespace) -> int:
    changes = _wisdom.diff(read(given.old), read(given.new))
    lines = [f"{_SIGNS[c.kind]} {c.key[:12]}  {c.function}  [{c.arguments}]: {'; '.join(c.details)}" for c in changes]
    answer(given, [change._asdict() for change in changes], "\n".join(lines) or "no difference")
    return 1 if changes else 0
