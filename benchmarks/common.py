"""What every benchmark script needs: interleaved rounds, paired ratios, processes of their own, result files."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from autoloop._signature import host_part
from autoloop._timing import median_interval

RESULTS = Path(__file__).parent / "results"
Row = Mapping[str, Any]


def interleaved(calls: Mapping[str, Callable[[], Any]], rounds: int, repeat: int = 1) -> dict[str, list[float]]:
    """Seconds a call, one number per round and name; each round times every name once, in turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            call = calls[name]
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            found[name].append((time.perf_counter() - start) / repeat)
    return found


def paired(found: Mapping[str, Sequence[float]], base: str, name: str) -> tuple[float, float, float]:
    """(median, low, high) of the ratio `name` / `base` over rounds."""
    interval = median_interval([b / a for a, b in zip(found[base], found[name], strict=True)])
    return interval.mid, interval.low, interval.high


def median_s(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def blocked(call: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    """The call of these arguments, blocked on."""
    return lambda: jax.block_until_ready(call(*args))


def environment() -> dict[str, str]:
    """Where and when figures were taken."""
    device = jax.devices()[0]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": f"{device.platform} {device.device_kind}",
        "host": host_part(),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


# ---------------------------------------------------------------- processes of their own


class Clock:
    """What is left of a script's time, and a line of progress for each step."""

    def __init__(self, limit_s: float) -> None:
        self._started, self._limit_s = time.monotonic(), limit_s

    @property
    def left_s(self) -> float:
        """Seconds until the script is to end."""
        return self._limit_s - (time.monotonic() - self._started)

    def say(self, text: str) -> None:
        """Prints what is begun, after the seconds used."""
        used_s = time.monotonic() - self._started
        print(f"[{used_s:4.0f} of {self._limit_s:.0f} s] {text}", file=sys.stderr, flush=True)


def alone(script: str, words: Sequence[str], limit_s: float, store: str | None = None) -> dict[str, Any]:
    """What `python SCRIPT --one WORDS` prints last, as JSON; without settings of the user's.

    Raises:
        RuntimeError: it failed, or took longer than `limit_s`, and was ended.
    """
    variables = {k: v for k, v in os.environ.items() if not k.startswith("AUTOLOOP_")}
    if store is not None:
        variables["AUTOLOOP_CACHE_DIR"] = store
    command = [sys.executable, script, "--one", *words]
    what = " ".join(words)
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False, timeout=max(1.0, limit_s)
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{what}: ended after {limit_s:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        print(done.stderr, file=sys.stderr)
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"{what}: exit {done.returncode}, {last}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


# ---------------------------------------------------------------- results


def with_earlier(
    name: str, key: str, rows: Sequence[Row], order: Sequence[str], folder: Path = RESULTS, **alike: Any
) -> list[Row]:
    """`rows` and, of the results kept before on this machine and version, those of other `key`s, in `order`.

    `alike`: what else must be the same in a row that is kept.
    """
    where = {**environment(), **alike}
    fresh = {row[key]: row for row in rows}
    path = folder / f"{name}.jsonl"
    kept = map(json.loads, path.read_text().splitlines()) if path.exists() else iter(())
    same = [k for k in where if k != "date"]
    earlier = {row[key]: row for row in kept if all(row.get(k) == where[k] for k in same)}
    found = {**earlier, **fresh}
    return [found[k] for k in order if k in found]


def write(name: str, rows: Sequence[Row], text: str, folder: Path = RESULTS) -> None:
    """Keeps rows as JSON lines and the table as text, each with its environment; prints the table."""
    folder.mkdir(parents=True, exist_ok=True)
    where = environment()
    lines = [json.dumps({**where, **row}, sort_keys=True) for row in rows]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    head = ", ".join(where.values())
    (folder / f"{name}.txt").write_text(f"{head}\n\n{text}\n")
    print(head, text, sep="\n\n")
