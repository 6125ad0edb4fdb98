"""The command line: `python -m autoloop COMMAND`, or `autoloop COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from autoloop import _cli_store, _cli_warm, _cli_wisdom, _config, _demo
from autoloop._cli import Commands, Parser, ProblemError, answer


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status: 0 done, 1 it could not be done, 2 usage."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        status = int(given.run(given))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads has seen enough, as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains when it flushes at its end
        return 0
    except ProblemError as problem:
        if problem.status == 2:
            parser.error(str(problem))
        print(f"autoloop: {problem}", file=sys.stderr)
        return problem.status
    except ValueError as error:  # a setting of the environment
        parser.error(str(error))


def _parser() -> Parser:
    parser = Parser(prog="autoloop", description="Finds the fastest form of a JAX loop, and remembers it.")
    commands = Commands(parser)
    budget = {"type": float, "default": 30.0, "metavar": "SECONDS", "help": "seconds of trials"}
    text = "measure the forms of a nested loop on this machine (about 40 s)"
    commands.add("demo", _run_demo, text, {"--budget": budget})
    for module in (_cli_store, _cli_wisdom, _cli_warm):
        module.add(commands)
    return parser


def _run_demo(given: argparse.Namespace) -> int:
    budget_s = _config.check_seconds("--budget", given.budget)
    print(f"Trying the forms of a nested loop for up to {budget_s:g} s ...", file=sys.stderr, flush=True)
    record = _demo.measure(budget_s)
    answer(given, record.to_dict(), "" if given.json else _demo.text(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
