"""How good is autoloop? One command for all that says so, beside what people use instead.

    python benchmarks/run.py --suite zoo                        # 24 programs, a minute each
    python benchmarks/run.py --suite zoo --part 1/4             # a quarter of them; the rows of the others are kept
    python benchmarks/run.py --suite zoo --only ppo,maml --seconds 120
    python benchmarks/run.py --suite zoo --device gpu --out DIR # within 8 minutes
    python benchmarks/run.py --suite growth                     # tuning, tracing, dispatch as programs grow
    python benchmarks/run.py --suite limit                      # against numba, and against matrix products alone
    python benchmarks/run.py --suite quick                      # within 3 minutes: do all scripts run?

Each program, size or loop has a process of its own, ended if it takes far longer than its share; then its row
says so. Results are JSON lines, a table, and a picture where matplotlib is installed, in the folder `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import beside
import common
import goals
import growth
import limit
import picture
import quick
from zoo import PROGRAMS, SIZES

#: Seconds for each program of the zoo, and which size, by device.
SECONDS = {"cpu": 60.0, "gpu": 17.0}
#: A process is ended after so many times the seconds that it was to take.
_END = 2.0
SIZE = {"cpu": "large", "gpu": "small"}


def chosen(given: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of `--only`, or those of `--part`, or all.

    Raises:
        ValueError: a name that does not exist, or a part that is not `i/n`.
    """
    if given.only:
        wanted = given.only.split(",")
        if unknown := [n for n in wanted if n not in names]:
            raise ValueError(f"--only names {', '.join(unknown)}; there are {', '.join(names)}")
        return wanted
    number, slash, count = given.part.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--part must be i/n with 1 <= i <= n, for example 2/4; got {given.part!r}")
    return list(names[int(number) - 1 :: int(count)])


def in_process(clock: common.Clock, suite: str, key: str, name: str, allowed_s: float, **words: Any) -> dict[str, Any]:
    """One row from a fresh process on an empty store; an error is a row too."""
    clock.say(f"{suite}: {name}, in about {allowed_s:.0f} s")
    task = json.dumps({"suite": suite, "name": name, "allowed_s": allowed_s, **words})
    with tempfile.TemporaryDirectory() as store:
        try:
            return common.alone(__file__, [task], _END * allowed_s, store, partial=True)
        except RuntimeError as error:
            size = {"size": words["size"]} if "size" in words else {}
            return {key: name, "failed": common.short(error), **size}


def one(task: dict[str, Any]) -> dict[str, Any]:
    """One row, in this process."""
    suites = {"zoo": beside.measure, "growth": growth.measure, "limit": limit.measure, "peer": beside.peer_tunes}
    device = task.pop("device")
    common.require(device)
    return {**suites[task.pop("suite")](**task), **common.environment()}


def suite_zoo(given: argparse.Namespace, clock: common.Clock, names: Sequence[str], out: Path) -> int:
    """The zoo beside what people use instead; how many programs failed."""
    seconds, size = given.seconds or SECONDS[given.device], given.size or SIZE[given.device]
    rows = []
    for done, name in enumerate(names):
        # On a device that costs by the minute the whole ends in time; elsewhere a program keeps its share.
        left_s = clock.left_s / (len(names) - done)
        share_s = min(seconds, left_s) if given.device == "gpu" else seconds
        words = {"size": size, "device": given.device}
        rows.append(in_process(clock, "zoo", "program", name, share_s, **words))
    rows = common.with_earlier("zoo", "program", rows, PROGRAMS, out, size=size)
    head = common.head(rows)
    text = "\n\n".join([goals.table(rows), "\n".join(goals.against(rows)), goals.costs(rows)])
    legend = f"size {size}; tuned to sweep: times as fast as jit; regret: tuned over the best other plan of the sweep"
    common.write("zoo", rows, f"{legend}\n\n{text}", out)
    picture.zoo(rows, goals.WAYS, head, out / "zoo.png")
    return sum("failed" in row for row in rows)


def suite_growth(given: argparse.Namespace, clock: common.Clock, names: Sequence[str], out: Path) -> int:
    """What grows with what; how many sizes failed."""
    rows: list[Mapping[str, Any]] = []
    for axis in names:
        for size in growth.sizes(axis, quick=given.suite == "quick"):
            name = f"{axis}={size}"
            rows.append(in_process(clock, "growth", "name", name, given.seconds or 25.0, device=given.device))
    order = [f"{axis}={size}" for axis in growth.AXES for size in growth.sizes(axis)]
    rows = common.with_earlier("growth", "name", rows, order, out)
    curves = growth.curves(rows)
    common.write("growth", rows, growth.report(rows, curves), out)
    picture.growth(curves, common.head(rows), out / "growth.png")
    return sum("failed" in row for row in rows)


def suite_limit(given: argparse.Namespace, clock: common.Clock, names: Sequence[str], out: Path) -> int:
    """How far from the limit; how many loops failed."""
    size = given.size or "large"
    rows: list[Mapping[str, Any]] = [
        in_process(clock, "limit", "loop", name, given.seconds or 40.0, size=size, device=given.device)
        for name in names
    ]
    rows = common.with_earlier("limit", "loop", rows, list(limit.LOOPS), out, size=size)
    common.write("limit", rows, limit.report(rows), out)
    picture.limit(rows, common.head(rows), out / "limit.png")
    return sum("failed" in row for row in rows)


SUITES = {
    "zoo": (suite_zoo, PROGRAMS),
    "growth": (suite_growth, growth.AXES),
    "limit": (suite_limit, tuple(limit.LOOPS)),
}


def suite_quick(given: argparse.Namespace, clock: common.Clock) -> int:
    """Every script, at small sizes, in a folder that is thrown away; how many failed."""
    given.size = "small"
    with tempfile.TemporaryDirectory() as name:
        out, failed = given.out or Path(name), 0
        for suite, (names, seconds) in quick.SUITES.items():
            given.seconds = seconds
            failed += SUITES[suite][0](given, clock, names, out)
        return failed + quick.scripts(clock, Path(name))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--suite", choices=(*SUITES, "quick", "all"), default="zoo")
    parser.add_argument("--device", choices=tuple(SECONDS), default="cpu")
    parser.add_argument("--out", type=Path, help="folder for the results (default: benchmarks/results)")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="part I of N of the suite")
    parser.add_argument("--only", metavar="NAME,...", help="only these programs, axes or loops")
    parser.add_argument("--seconds", type=float, help="for each program, size or loop")
    parser.add_argument("--size", choices=SIZES)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures, prints and keeps the results; exits with 1 if something failed."""
    given = arguments()
    if given.one:
        print(json.dumps(one(json.loads(given.one))))
        return
    if given.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    failed = 0
    if given.suite == "quick":
        failed = suite_quick(given, common.Clock(180.0))
    for suite in SUITES if given.suite == "all" else [s for s in SUITES if s == given.suite]:
        work, every = SUITES[suite]
        names = chosen(given, every)
        count = len(names) if suite != "growth" else sum(len(growth.sizes(axis)) for axis in names)
        usual = {"zoo": SECONDS[given.device], "growth": 25.0, "limit": 40.0}[suite]
        failed += work(given, common.Clock(count * (given.seconds or usual)), names, given.out or common.RESULTS)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
