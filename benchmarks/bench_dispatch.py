"""What does a call of a tuned function cost above a call of `jax.jit`?

The function does next to nothing, so that the call itself is what is timed. Each round times a batch
of calls of each kind in turn, the order rotated; the last call of a batch is blocked on. Figures are
the medians, over rounds, of the difference to `jax.jit` in the same round.

    python benchmarks/bench_dispatch.py
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import jax
import jax.numpy as jnp
import peer

from autoloop import Plan, autoloop, settings
from autoloop._call import Call
from autoloop._report import align

LEAVES = (1, 30, 300)


def program(leaves: list[jax.Array]) -> jax.Array:
    """A loop of two over one scalar of the first leaf; the other leaves only have to be passed."""
    return jax.lax.scan(lambda c, _: (c * 0.5, None), leaves[0][0], None, length=2)[0]


def by_hand() -> Callable[[list[jax.Array]], jax.Array]:
    """The Python loop as a person writes it: what a step's dispatch costs where nothing else is done."""
    first = jax.jit(lambda leaves: leaves[0][0])
    step = jax.jit(lambda c: c * 0.5, donate_argnums=0)
    return lambda leaves: step(step(first(leaves)))


def contenders(leaves: list[jax.Array]) -> dict[str, Callable[[], Any]]:
    """Calls by name, with what a Python wrapper, a Python loop and tune_jax (where it is installed) cost."""
    plain, again = jax.jit(program), jax.jit(lambda leaves: program(leaves))
    tuned = autoloop(program)
    # Installed by hand, so that the figure does not depend on what a tuning would choose.
    tuned._planned.plans[Call.of(tuned._function, (leaves,), {}).key] = Plan.parse("0=unroll(2)")
    host, own = tuned.using("0=python(1)"), by_hand()
    later = autoloop(program, forms=["unroll"], budget_s=1)
    with tempfile.TemporaryDirectory() as folder, settings(cache_dir=folder):
        later(leaves[:-1] or [jnp.ones(4)])  # jax has traced another signature when it meets this one
    later(leaves)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    beside = {} if peer.missing() else {"tune_jax": functools.partial(peer.wrapped(program), leaves)}
    return {
        "jax.jit": lambda: plain(leaves),
        "jax.jit again": lambda: again(leaves),
        "a plain Python wrapper": lambda: wrapper(leaves),
        "autoloop, one program": lambda: tuned(leaves),
        "autoloop, its second signature": lambda: later(leaves),
        "a Python loop of 2 by hand": lambda: own(leaves),
        "autoloop, Python loop of 2": lambda: host(leaves),
        **beside,
    }


def measure(count: int, rounds: int) -> list[dict[str, Any]]:
    """One row a contender at this number of leaves."""
    calls = contenders([jnp.ones(3) + i for i in range(count)])
    for call in calls.values():
        jax.block_until_ready(call())
    found = common.interleaved(calls, rounds, repeat=max(20, 2000 // count))
    base = found["jax.jit"]
    rows = []
    for name, seconds in found.items():
        above = statistics.median([s - b for s, b in zip(seconds, base, strict=True)])
        row = {"leaves": count, "call": name, "us": 1e6 * common.median_s(seconds), "above_us": 1e6 * above}
        rows.append({**row, "ratio": common.paired(found, "jax.jit", name)})
    return rows


def main() -> None:
    """Measures, prints and keeps the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder of the results")
    given = parser.parse_args()
    rows = [row for count in LEAVES for row in measure(count, given.rounds)]
    table = [("leaves", "call", "us a call", "us above jit", "ratio to jit", "interval")]
    for row in rows:
        mid, low, high = row["ratio"]
        cells = (f"{row['us']:.2f}", f"{row['above_us']:+.2f}", f"{mid:.3f}", f"{low:.3f} to {high:.3f}")
        table.append((str(row["leaves"]), row["call"], *cells))
    common.write("dispatch", rows, align(table), given.out)


if __name__ == "__main__":
    main()
