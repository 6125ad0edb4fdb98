"""What every benchmark script needs: interleaved rounds, paired ratios, processes of their own, result files."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import signal
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

#: Calls shorter than this are timed several at once.
SPAN_S = 1e-2
#: What every row says of where and when it was taken; which of it is shown with its name.
ENVIRONMENT = ("date", "device", "host", "jax", "autoloop", "python")
_NAMED = ("jax", "autoloop", "python")
RESULTS = Path(__file__).parent / "results"
Row = Mapping[str, Any]


def interleaved(calls: Mapping[str, Callable[[], Any]], rounds: int, repeat: int = 1) -> dict[str, list[float]]:
    """Seconds a call, one number per round and name; each round times every name once, in turn.

    Where calls are repeated, one more goes before them: the first after another program may be slower.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            call = calls[name]
            if repeat > 1:
                call()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            found[name].append((time.perf_counter() - start) / repeat)
    return found


def bounded_rounds(
    calls: Mapping[str, Callable[[], Any]], expected_s: Mapping[str, float], share_s: float, rounds: int
) -> dict[str, list[float]]:
    """As `interleaved`, in about `share_s` seconds a name: a slow one takes part in the first rounds only.

    Short calls are timed several at once, as many as make a span that the clock resolves.
    """
    repeats = {name: max(1, min(200, math.ceil(SPAN_S / max(expected_s[name], 1e-6)))) for name in calls}
    spent_s = {name: (repeats[name] + (repeats[name] > 1)) * expected_s[name] for name in calls}  # one is not timed
    most = {name: max(2, min(rounds, int(share_s / max(spent_s[name], 1e-6)))) for name in calls}
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if number < most[name]:
                found[name] += interleaved({name: calls[name]}, 1, repeats[name])[name]
    return found


def paired(found: Mapping[str, Sequence[float]], base: str, name: str) -> tuple[float, float, float]:
    """(median, low, high) of the ratio `name` / `base` over the rounds in which both took part."""
    interval = median_interval([b / a for a, b in zip(found[base], found[name], strict=False)])
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
        "autoloop": importlib.metadata.version("autoloop"),
        "python": platform.python_version(),
    }


# ---------------------------------------------------------------- processes of their own


def parser(text: str | None, limit_s: float) -> argparse.ArgumentParser:
    """The options that every script with processes of its own has."""
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    found.add_argument("--limit", type=float, default=limit_s, help="seconds that all of it may take")
    found.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    found.add_argument("--one", help=argparse.SUPPRESS)
    return found


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


def alone(
    script: str, words: Sequence[str], limit_s: float, store: str | None = None, partial: bool = False
) -> dict[str, Any]:
    """What `python SCRIPT --one WORDS` prints last, as JSON; without settings of the user's.

    Args:
        script: the script.
        words: what follows `--one`.
        limit_s: seconds that it may take.
        store: the folder of its records, None for the usual one.
        partial: whether, of one that is ended, what it printed until then counts, marked as `ended`.

    Raises:
        RuntimeError: it failed, or took longer than `limit_s`, and was ended.
    """
    variables = {k: v for k, v in os.environ.items() if not k.startswith("AUTOLOOP_")}
    if store is not None:
        variables["AUTOLOOP_CACHE_DIR"] = store
    command = [sys.executable, script, "--one", *words]
    what = " ".join(words)
    try:
        done = run(command, limit_s, variables)
    except subprocess.TimeoutExpired as error:
        if partial and (said := _last_line(error.output)):
            return {**json.loads(said), "ended": f"after {limit_s:.0f} s"}
        raise RuntimeError(f"{what}: ended after {limit_s:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        print(done.stderr, file=sys.stderr)
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RuntimeError(f"{what}: exit {done.returncode}, {last}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def short(error: RuntimeError) -> str:
    """What `alone` says of a failure, without the words of the task."""
    return str(error).rpartition("}: ")[2][-300:]


def run(
    command: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A process with its output, ended with the processes it started if it takes longer than `limit_s`.

    Raises:
        subprocess.TimeoutExpired: it was ended; its `output` is what it had printed.
    """
    first = "--one" not in sys.argv  # one that such a process starts belongs to its group, and ends with it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=variables, start_new_session=first, **pipes) as process:
        try:
            out, err = process.communicate(timeout=max(0.1, limit_s))
        except BaseException as error:
            if first:
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            out, _ = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                error.output = out
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _last_line(text: str) -> str:
    """The last whole line."""
    whole = text[: text.rfind("\n") + 1].splitlines()
    return whole[-1] if whole else ""


def require(platform_name: str) -> None:
    """Ends this process where jax runs on something else than was asked for.

    Raises:
        RuntimeError: it does.
    """
    found = jax.devices()[0].platform
    if found != platform_name:
        raise RuntimeError(f"--device {platform_name} was asked for, and jax runs on {found}: install jax for it")


# ---------------------------------------------------------------- results


def environment_of(rows: Sequence[Row]) -> dict[str, str]:
    """Where the processes that measured these rows ran; this process's where no row says.

    A parent that asks no device leaves an accelerator's memory to its children.
    """
    said = next((row for row in rows if "device" in row and "jax" in row), None)
    return {key: said[key] for key in ENVIRONMENT} if said else environment()


def head(rows: Sequence[Row]) -> str:
    """The same as one line of text."""
    return ", ".join(f"{key} {value}" if key in _NAMED else value for key, value in environment_of(rows).items())


def with_earlier(
    name: str, key: str, rows: Sequence[Row], order: Sequence[str], folder: Path = RESULTS, **alike: Any
) -> list[Row]:
    """`rows` and, of the results kept before on this machine and version, those of other `key`s, in `order`.

    `alike`: what else must be the same in a row that is kept.
    """
    where = {**environment_of(rows), **alike}
    fresh = {row[key]: {**environment_of(rows), **row} for row in rows}
    path = folder / f"{name}.jsonl"
    kept = map(json.loads, path.read_text().splitlines()) if path.exists() else iter(())
    same = [k for k in where if k != "date"]
    earlier = {row[key]: row for row in kept if all(row.get(k) == where[k] for k in same)}
    found = {**earlier, **fresh}
    return [found[k] for k in order if k in found]


def write(name: str, rows: Sequence[Row], text: str, folder: Path = RESULTS) -> None:
    """Keeps rows as JSON lines and the table as text, each with its environment; prints the table."""
    folder.mkdir(parents=True, exist_ok=True)
    where, line = environment_of(rows), head(rows)
    lines = [json.dumps({**where, **row}, sort_keys=True) for row in rows]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / f"{name}.txt").write_text(f"{line}\n\n{text}\n")
    print(line, text, sep="\n\n")
