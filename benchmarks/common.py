"""What every benchmark script needs: interleaved rounds, paired ratios, and result files."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from autoloop._signature import host_part
from autoloop._timing import median_interval

RESULTS = Path(__file__).parent / "results"


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


def write(name: str, rows: Sequence[Mapping[str, Any]], text: str, folder: Path = RESULTS) -> None:
    """Keeps rows as JSON lines and the table as text, each with its environment; prints the table."""
    folder.mkdir(parents=True, exist_ok=True)
    where = environment()
    lines = [json.dumps({**where, **row}, sort_keys=True) for row in rows]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    head = ", ".join(where.values())
    (folder / f"{name}.txt").write_text(f"{head}\n\n{text}\n")
    print(head, text, sep="\n\n")
