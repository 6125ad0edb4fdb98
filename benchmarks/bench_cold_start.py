"""What does the first call of a new process cost, with and without records?

Every figure is of a process of its own, started in interleaved rounds: the seconds of the first call
(blocked on; importing and making the arguments are not in it), and of the whole process. The kinds:

- jit: the function under `jax.jit`, without autoloop;
- nothing: an empty store, so the first call tunes;
- warm store: the record is in the store;
- wisdom file: the store is empty, the record is in a file that `AUTOLOOP_WISDOM` names;
- warm store, compile cache: the record is in the store, the executable in JAX's compilation cache;
- jit, compile cache: as `jit`, with the executable in JAX's compilation cache.

    python benchmarks/bench_cold_start.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common

from autoloop import _demo
from autoloop._report import align
from autoloop._store import Store
from autoloop._wisdom import write

KINDS = ("jit", "nothing", "warm store", "wisdom file", "warm store, compile cache", "jit, compile cache")

#: What each process runs; prints the seconds of its first call, the plan, and those since it started.
CHILD = """
import json, sys, time
import jax
from autoloop import _demo, autoloop

kind, budget_s, sizes, started = json.loads(sys.argv[1])
args = jax.block_until_ready(_demo.arguments(tuple(sizes)))
fun = jax.jit(_demo.program) if kind.startswith("jit") else autoloop(_demo.program, budget_s=budget_s)
start = time.perf_counter()
jax.block_until_ready(fun(*args))
first_s = time.perf_counter() - start
plan = "" if kind.startswith("jit") else str(fun.plan(*args))
print(json.dumps({"first_s": first_s, "process_s": time.time() - started, "plan": plan}))
"""


def child(kind: str, given: argparse.Namespace, variables: Mapping[str, str]) -> dict[str, Any]:
    """Runs one process of a kind and returns what it measured."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOLOOP_", "JAX_COMPILATION"))}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    started = time.time()
    said = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([kind, given.budget, given.sizes, started])],
        env={**clean, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return {"kind": kind, **json.loads(said.stdout)}


def prepared(folder: Path, given: argparse.Namespace) -> dict[str, dict[str, str]]:
    """The environment of each kind, with one tuning for all of them and the caches filled."""
    store, wisdom, cache = folder / "store", folder / "wisdom.json", folder / "cache"
    warm = {"AUTOLOOP_CACHE_DIR": str(store)}
    caching = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    child("nothing", given, warm)
    found = Store(store)
    write(wisdom, dict(found.items()))
    found.close()
    variables = {
        "jit": {},
        "nothing": {},
        "warm store": warm,
        "wisdom file": {"AUTOLOOP_WISDOM": str(wisdom)},
        "warm store, compile cache": {**warm, **caching},
        "jit, compile cache": caching,
    }
    for kind in KINDS[-2:]:
        child(kind, given, variables[kind])
    return variables


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables, rows = prepared(folder, given), []
        for number in range(given.rounds):
            for kind in KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]:
                empty = {"AUTOLOOP_CACHE_DIR": str(folder / f"empty-{len(rows)}")}
                row = child(kind, given, {**empty, **variables[kind]})
                rows.append({"round": number, **row})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Medians by kind, and the ratio of first calls to those of jit in the same round."""
    lines = [("first call with", "first call s", "ratio to jit", "whole process s", "plans")]
    first = {kind: [row["first_s"] for row in rows if row["kind"] == kind] for kind in KINDS}
    for kind in KINDS:
        ratio = statistics.median(b / a for a, b in zip(first["jit"], first[kind], strict=True))
        whole = statistics.median(row["process_s"] for row in rows if row["kind"] == kind)
        plans = sorted({row["plan"] for row in rows if row["kind"] == kind} - {""})
        cells = (f"{common.median_s(first[kind]):.3f}", f"{ratio:.2f}", f"{whole:.2f}")
        lines.append((kind, *cells, ", ".join(plans)))
    return align(lines)


def main() -> None:
    """Measures, prints and keeps the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="processes of each kind")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds that a tuning may take")
    parser.add_argument("--sizes", type=int, nargs=4, default=_demo.SIZES, help="batches, sequences, steps, width")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder of the results")
    given = parser.parse_args()
    rows = measure(given)
    common.write("cold_start", rows, table(rows), given.out)


if __name__ == "__main__":
    main()
