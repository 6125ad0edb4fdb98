"""What all commands share: how they are declared, how they answer, and how a mistake is answered."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from autoloop import _config
from autoloop._config import did_you_mean
from autoloop._store import Store
from autoloop._stores import store_of

#: The texts with which argparse names a word that it does not know.
_UNKNOWN = re.compile(r"invalid choice: '([^']*)'|unrecognized arguments: (\S+)")


class ProblemError(Exception):
    """A command that can't be done; its text goes to standard error.

    Args:
        text: what is wrong and what to do.
        status: the exit status, 1 where the command was right and 2 where it was not.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class Parser(argparse.ArgumentParser):
    """Says of an unknown word which known one is near; options are never guessed from their beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.words: list[str] = []

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        found = _UNKNOWN.search(message)
        super().error(message + (did_you_mean(found[1] or found[2], self.words) if found else ""))


class Commands:
    """The commands of the parser, to which each module adds its own."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(
        self,
        name: str,
        run: Callable[[argparse.Namespace], int],
        text: str,
        options: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Declares one command: its help in one line, its arguments by name, and `--json`."""
        command = self._commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        flags = {"--json": {"action": "store_true", "help": "answer in JSON"}}
        for names, how in {**(options or {}), **flags}.items():
            command.add_argument(*names.split(), **how)
        self._parser.words += [name, *(n for names in {**(options or {}), **flags} for n in names.split())]


def answer(given: argparse.Namespace, data: Any, text: str) -> None:
    """Prints the answer as a text, or its data where JSON is asked for."""
    print(json.dumps(data, indent=1, sort_keys=True) if given.json else text)


def counted(count: int, thing: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def own_store() -> Store:
    """The store that the environment names."""
    return store_of(_config.current())
