"""What the machine gives: free memory, how steady its clock is, and whether something else uses it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: Samples of the calibration job, about a millisecond each.
_SAMPLES = 15
#: A machine is busy if calls spread by this much more than the calibration job, and by this at least.
_SPREAD_FACTOR = 4.0
_LEAST_SPREAD = 0.15
#: Or if this many processes besides this one wanted to run, per core, before the tuning began: a tuning
#: itself loads all cores while XLA compiles.
_LOAD_PER_CORE = 1.0


def spread(samples: Sequence[float]) -> float:
    """The interquartile range over the median: 0.02 on a quiet machine."""
    if len(samples) < 4:
        return 0.0
    low, mid, high = statistics.quantiles(samples, n=4)
    return (high - low) / mid if mid else 0.0


def calibrate(clock: Callable[[], float] = time.perf_counter) -> float:
    """The spread of a fixed numpy job of about a millisecond, on this machine, now."""
    matrix = np.ones((160, 160), np.float32)
    found = []
    for _ in range(_SAMPLES):
        start = clock()
        for _ in range(4):
            matrix @ matrix
        found.append(clock() - start)
    return spread(found)


def busy_note(calibration: float, spreads: Sequence[float], load: float) -> str:
    """What to say of a machine that something else was using, or "".

    Args:
        calibration: spread of the calibration job.
        spreads: spread of the function as written, one a race.
        load: processes that wanted to run in the minute before the tuning, this one included.
    """
    usual = statistics.median(spreads) if spreads else 0.0
    if usual > max(_LEAST_SPREAD, _SPREAD_FACTOR * calibration):
        return f"the device was busy: calls spread by {usual:.0%}, a fixed job by {calibration:.0%}"
    others = load - 1
    cores = os.cpu_count() or 1
    if others > _LOAD_PER_CORE * cores:
        return f"the machine was busy: {others:.1f} other processes wanted its {cores} cores"
    return ""


def load() -> float:
    """Processes that wanted to run in the last minute, on average; 0 where nobody tells."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):  # not told on this system
        return 0.0


def free_bytes(device: Any) -> int | None:
    """Bytes of memory free on a device, None where nobody tells."""
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable")]
    return int(found[0]) * 1024 if found and device.platform == "cpu" else None
