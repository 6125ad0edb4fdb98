"""What of the machine and the store bears on records: is it usable, private, precise and quiet?"""

from __future__ import annotations

import itertools
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from autoloop import _machine, _report, _signature, _wanted, _wisdom
from autoloop._config import Settings
from autoloop._entries import entries
from autoloop._store import Store

FINE, LOOK, BROKEN = "fine", "look", "broken"

#: A timer coarser than this blurs calls of a few microseconds.
_COARSE_S = 1e-6
#: Samples of the timer, and of the device job.
_TICKS = 10_000
_CALLS = 25
#: Runs that spread by more than this make trials vague.
_NOISY = 0.15


class Finding(NamedTuple):
    """One thing examined: its name, whether it is `FINE`, worth a `LOOK` or `BROKEN`, and what was found."""

    name: str
    state: str
    text: str


def examine(store: Store, settings: Settings) -> list[Finding]:
    """Examines everything; takes about a second, most of it compiling."""
    found = [_versions(), _device(), Finding("settings", FINE, _settings_text(settings))]
    found += [*_folder(store), *_contents(store), *map(_wisdom_file, settings.wisdom)]
    return [*found, _compile_cache(), timer(), *noise(), others()]


def text(found: list[Finding]) -> str:
    """The findings as a table."""
    return _report.align([("what", "state", "found"), *found])


def _versions() -> Finding:
    try:
        own = version("autoloop")
    except PackageNotFoundError:
        own = "not installed"
    jaxlib = version("jaxlib")
    return Finding("versions", FINE, f"autoloop {own}, jax {jax.__version__}, jaxlib {jaxlib}")


def _device() -> Finding:
    device, count = _signature.default_device(), len(jax.devices())
    free = _machine.free_bytes(device)
    memory = "" if free is None else f", {_report.size_text(free)} of memory free"
    return Finding("device", FINE, f"{device.platform} {device.device_kind} x{count}{memory}; {_signature.host_part()}")


def _settings_text(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in vars(settings).items() if value not in (None, ()))


# ---------------------------------------------------------------- the store


def _folder(store: Store) -> Iterator[Finding]:
    """Whether the store can be used; asks it for a lock, which writes to it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with store.lock("doctor", expire_s=10.0, wait_s=0.0) as had:
            pass
    told = [str(warning.message).removeprefix("autoloop: ") for warning in caught]
    yield Finding("store", BROKEN if told else FINE, "; ".join(told) or str(store.folder))
    if not had and not told:
        yield Finding("lock", LOOK, "another doctor is at work")
    if not told and os.name == "posix":
        yield _permissions(store.folder)


def _permissions(folder: Path) -> Finding:
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    state = FINE if not mode & 0o077 else BROKEN
    return Finding("permissions", state, f"mode {mode:04o}, owner {found.st_uid}")


def _contents(store: Store) -> Iterator[Finding]:
    found = entries(store)
    unreadable = sum(entry.record is None for entry in found)
    said = f"{len(found)} stored, {unreadable} of them unreadable by this version" + (
        "; drop those with: python -m autoloop prune --unreadable" if unreadable else ""
    )
    yield Finding("records", LOOK if unreadable else FINE, said)
    wanted = len(_wanted.noted(store))
    said = f"{wanted} calls" + ("; tune them with: python -m autoloop warm --wanted" if wanted else "")
    yield Finding("wanted", LOOK if wanted else FINE, said)


def _wisdom_file(path: str) -> Finding:
    try:
        return Finding("wisdom", FINE, f"{path}: {len(_wisdom.read(path))} records")
    except (OSError, ValueError) as error:
        return Finding("wisdom", BROKEN, f"{path}: {error}")


def _compile_cache() -> Finding:
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    return Finding("jax's cache", FINE, f"executables are kept in {folder}" if folder else "executables are not kept")


# ---------------------------------------------------------------- time


def timer(clock: Callable[[], float] = time.perf_counter) -> Finding:
    """The smallest step of the clock that trials use."""
    ticks = [clock() for _ in range(_TICKS)]
    steps = [b - a for a, b in itertools.pairwise(ticks) if b > a]
    least = min(steps, default=float("inf"))
    return Finding("timer", FINE if least <= _COARSE_S else LOOK, f"steps of {1e9 * least:.0f} ns")


def noise(clock: Callable[[], float] = time.perf_counter) -> Iterator[Finding]:
    """How much runs of a fixed job spread, on the processor and on the device."""
    yield _noise("noise", _machine.calibrate(clock))
    matrix = jnp.ones((160, 160))
    job = jax.jit(lambda m: m @ m @ m @ m)
    jax.block_until_ready(job(matrix))
    samples = []
    for _ in range(_CALLS):
        start = clock()
        jax.block_until_ready(job(matrix))
        samples.append(clock() - start)
    yield _noise("noise of the device", _machine.spread(samples))


def _noise(name: str, spread: float) -> Finding:
    advice = "; trials will be vague: quiet the machine" if spread > _NOISY else f", {_NOISY:.0%} is fine"
    return Finding(name, LOOK if spread > _NOISY else FINE, f"runs of a fixed job spread by {spread:.0%}{advice}")


def others() -> Finding:
    """Whether something else wants the processor."""
    load, cores = _machine.load(), os.cpu_count() or 1
    state = LOOK if _machine.busy_note(0.0, (), load) else FINE
    return Finding("other processes", state, f"{load:.1f} wanted to run in the last minute, of {cores} cores")
