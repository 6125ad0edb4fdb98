"""The command line: `python -m autoloop demo`, and a look into the store."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence

from autoloop import _config, _demo, _report
from autoloop._decide import store_of
from autoloop._records import Record
from autoloop._store import Store


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status: 0 done, 1 not found, 2 usage."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        return int(given.run(given))
    except ValueError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="autoloop", description="Finds the fastest form of a JAX loop.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: object, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    demo = add("demo", _run_demo, "measure the forms of a nested loop on this machine (about 40 s)")
    demo.add_argument("--budget", type=float, default=30.0, metavar="SECONDS", help="seconds of trials")
    add("list", _run_list, "list the remembered records")
    show = add("show", _run_show, "print one record")
    show.add_argument("key", metavar="KEY", help="a key, or the beginning of one, as 'list' prints it")
    add("clear", _run_clear, "drop all remembered records")
    add("path", _run_path, "print the folder of the store")
    return parser


def _store() -> Store:
    return store_of(_config.current())


def _run_demo(given: argparse.Namespace) -> int:
    budget_s = _config.check_seconds("--budget", given.budget)
    print(f"Trying the forms of a nested loop for up to {budget_s:g} s ...", file=sys.stderr, flush=True)
    print(_demo.text(_demo.measure(budget_s)))
    return 0


def _run_list(given: argparse.Namespace) -> int:
    found = list(_store().items())
    if not found:
        print("no records")
        return 0
    header = ("key", "function", "arguments", "device", "plan", "gain", "age", "state")
    print(_report.align([header, *(_row(key, record) for key, record in found)]))
    return 0


def _row(key: str, record: Record) -> tuple[str, ...]:
    winner = record.trial(record.winner)
    gain = f"{1 / winner.ratio:.2f}x" if winner is not None and winner.ratio else "-"
    state = "complete" if record.complete else "partial"
    arguments = record.key.get("arguments", "")
    short = arguments if len(arguments) <= 40 else arguments[:37] + "..."
    return (
        key[:12],
        record.function,
        short,
        record.key.get("device", "?"),
        record.winner,
        gain,
        _age(record),
        state,
    )


def _age(record: Record) -> str:
    try:
        made = datetime.datetime.fromisoformat(record.created)
        hours = (datetime.datetime.now(datetime.UTC) - made).total_seconds() / 3600
    except (ValueError, TypeError):
        return "?"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} d"


def _run_show(given: argparse.Namespace) -> int:
    found = [(key, record) for key, record in _store().items() if key.startswith(given.key)]
    if len(found) != 1:
        problem = "no record has" if not found else f"{len(found)} records have"
        print(f"autoloop: {problem} a key that begins with {given.key!r}; see 'list'", file=sys.stderr)
        return 1
    key, record = found[0]
    print(f"key {key}\n{_report.text(record)}")
    return 0


def _run_clear(given: argparse.Namespace) -> int:
    print(f"dropped {_store().clear()} records")
    return 0


def _run_path(given: argparse.Namespace) -> int:
    print(_store().folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
