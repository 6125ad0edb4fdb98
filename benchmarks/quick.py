"""What `run.py --suite quick` runs: a little of every suite and script, within 3 minutes on 2 cores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import common

#: By suite: which of it, and seconds for each.
SUITES = {
    "zoo": (("automaton",), 6.0),
    "growth": (("outer",), 3.0),
    "limit": (("recurrence", "residual"), 5.0),
}
SCRIPTS = {
    "bench_dispatch.py": ("--rounds", "3"),
    "bench_until.py": ("--budget", "2", "--rounds", "3", "--limit", "40"),
    "bench_cold_start.py": ("--rounds", "1", "--budget", "1", "--sizes", "2", "2", "3", "4"),
    "bench_tuning.py": ("--tunes", "1", "--budget", "1", "--nests", "matmuls", "--limit", "20"),
}


def scripts(clock: common.Clock, out: Path) -> int:
    """Runs each script with `--out`; how many failed. One for which no time is left is named, and not run."""
    failed = 0
    for name, words in SCRIPTS.items():
        clock.say(name)
        command = [sys.executable, str(Path(__file__).parent / name), *words, "--out", str(out)]
        try:
            done = common.run(command, clock.left_s)
        except subprocess.TimeoutExpired:
            clock.say(f"LEFT OUT: no time for {name}; the machine is busy")
            continue
        if done.returncode:
            failed += 1
            print(f"{name} failed:\n{done.stdout}\n{done.stderr}", file=sys.stderr)
    clock.say("done")
    return failed
