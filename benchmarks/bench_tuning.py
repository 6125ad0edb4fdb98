"""Is the choice right, repeatable, and worth its price?

For ten loop nests of different kinds, each in a fresh process and from an empty store:

- regret: run time of the chosen plan over that of the best of an exhaustive sweep of the same
  one-loop candidates, all raced together in interleaved rounds;
- loss: as `jax.jit` over tuned, interleaved, in a process that only reads the record;
- repeatability: how many of N tunings chose the same plan, or one within the margin of it;
- price: seconds of tuning over those of a plain first call (compile and run), peak memory of the
  tuning process over that of a plain one, and after how many calls the tuning has paid for itself.

A long call (outer 20,000, inner 100) comes last: seconds of the first decorated call over a plain one.

    python benchmarks/bench_tuning.py [--tunes 10] [--budget 15] [--nests rnn,life] [--long]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import common
import jax
import jax.numpy as jnp
from jax import lax
from nests import nests

from autoloop import Plan, autoloop
from autoloop._call import Call
from autoloop._program import Program
from autoloop._report import align

_ROUNDS = 15
#: The sweep leaves out plans that compile more than this many times the program as written: minutes each.
_SWEEP_SIZE = 40


def peak_mb() -> float:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tune(name: str, budget_s: float) -> dict[str, Any]:
    """One tuning, in this process; run with an empty store."""
    function, args = nests()[name]
    tuned = autoloop(budget_s=budget_s)(function)
    start = time.perf_counter()
    jax.block_until_ready(tuned(*args))
    seconds = time.perf_counter() - start
    record = tuned.report(*args)
    assert record is not None
    winner = record.trial(record.winner)
    assert winner is not None
    return {
        "plan": record.winner,
        "first_call_s": seconds,
        "peak_mb": peak_mb(),
        "gain_s": (1 - (winner.ratio or 1.0)) * (record.trials[0].run_s or 0.0),
        "complete": record.complete,
        "notes": list(record.notes),
    }


def plain(name: str) -> dict[str, Any]:
    """A plain first call, in this process."""
    function, args = nests()[name]
    start = time.perf_counter()
    jax.block_until_ready(jax.jit(function)(*args))
    return {"first_call_s": time.perf_counter() - start, "peak_mb": peak_mb()}


def compare(name: str, budget_s: float) -> dict[str, Any]:
    """The remembered plan against plain jit, and against the best of a sweep, interleaved."""
    function, args = nests()[name]
    tuned = autoloop(budget_s=budget_s)(function)
    chosen = str(tuned.plan(*args))
    calls = {"jax.jit": jax.jit(function), "tuned": tuned}
    calls |= {text: tuned.using(text) for text in _sweep(tuned, args, chosen)}
    blocked = {key: _blocked(call, args) for key, call in calls.items()}
    first = {key: _warm(call) for key, call in blocked.items()}
    kept = {key: call for key, call in blocked.items() if first[key] < 20 * first["jax.jit"] + 0.02}
    repeat = max(1, min(200, round(2e-3 / max(first["jax.jit"], 1e-6))))
    found = common.interleaved(kept, _ROUNDS, repeat)
    best = min((k for k in found if k != "jax.jit"), key=lambda k: common.paired(found, "jax.jit", k)[0])
    return {
        "tuned_over_jit": common.paired(found, "tuned", "jax.jit"),
        "regret": common.paired(found, best, "tuned"),
        "best": chosen if best == "tuned" else best,
        "swept": len(found) - 2,
    }


def _sweep(tuned: Any, args: tuple[Any, ...], chosen: str) -> list[str]:
    """Every plan of one choice that compiles no more than so many times the program as written."""
    call = Call.of(tuned._function, args, {})
    program = Program.trace(tuned._function, call.key, args, {})
    assert program is not None
    single = [p for p in tuned.plans(*args) if len(p.choices) + len(p.options) == 1]
    limit = _SWEEP_SIZE * program.size(Plan())
    return [str(p) for p in single if program.size(p) <= limit and str(p) != chosen]


def _blocked(call: Any, args: tuple[Any, ...]) -> Any:
    return lambda: jax.block_until_ready(call(*args))


def _warm(call: Any) -> float:
    """Seconds of a second call; infinity for a candidate that fails."""
    try:
        call()
    except Exception as error:
        print(f"left out of the sweep: {error!r}"[:200], file=sys.stderr)
        return float("inf")
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def long_program(weights: Any, state: Any, body: str) -> Any:
    """Outer 20,000, inner 100: about a minute on 2 cores."""

    def step(h: Any, _: Any) -> Any:
        return (jnp.tanh(h @ weights) * 0.9, None) if body == "products" else (h * 0.999 + 0.001, None)

    def outer(h: Any, _: Any) -> Any:
        h, _ = lax.scan(step, h, None, length=100)
        return h, h.sum()

    return lax.scan(outer, state, None, length=20_000)


def long_call(which: str, body: str) -> dict[str, Any]:
    """Seconds of a first call of the long program, plain or decorated."""
    args = (jnp.eye(96) * 0.5, jnp.ones((48, 96)) if body == "products" else jnp.ones(2048))
    options = {"static_argnames": "body"}
    call: Any = jax.jit(long_program, **options) if which == "plain" else autoloop(**options)(long_program)
    start = time.perf_counter()
    jax.block_until_ready(call(*args, body=body))
    found: dict[str, Any] = {"seconds": time.perf_counter() - start}
    if which != "plain":
        record = call.report(*args, body=body)
        found |= {"plan": record.winner, "tuning_s": record.spent_s, "notes": list(record.notes)}
    return found


def in_process(store: str, *words: str) -> dict[str, Any]:
    """Runs one of the functions above in a process of its own on a store."""
    environment = {**os.environ, "AUTOLOOP_CACHE_DIR": store}
    command = [sys.executable, __file__, "--one", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure(name: str, tunes: int, budget_s: float) -> dict[str, Any]:
    """The row of one nest."""
    first = in_process("unused", "plain", name)
    with tempfile.TemporaryDirectory() as store:
        tunings = [in_process(store, "tune", name, str(budget_s))]
        compared = in_process(store, "compare", name, str(budget_s))
    for _ in range(tunes - 1):
        with tempfile.TemporaryDirectory() as fresh:
            tunings.append(in_process(fresh, "tune", name, str(budget_s)))
    plans = Counter(t["plan"] for t in tunings)
    spent_s = tunings[0]["first_call_s"] - first["first_call_s"]
    gain_s = tunings[0]["gain_s"]
    return {
        "nest": name,
        "plan": tunings[0]["plan"],
        **compared,
        "plans": dict(plans),
        "price": tunings[0]["first_call_s"] / first["first_call_s"],
        "memory": tunings[0]["peak_mb"] / first["peak_mb"],
        "breakeven_calls": spent_s / gain_s if gain_s > 0 else None,
        "tuning_s": spent_s,
        "notes": tunings[0]["notes"],
    }


def row(found: dict[str, Any]) -> tuple[str, ...]:
    """A nest's figures as text."""
    jit, low, high = found["tuned_over_jit"]
    regret = found["regret"]
    top = max(found["plans"].values())
    calls = found["breakeven_calls"]
    return (
        found["nest"],
        f"{jit:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{regret[0]:.3f}",
        f"{top} of {sum(found['plans'].values())}",
        f"{found['tuning_s']:.1f}",
        f"{found['price']:.0f}x",
        f"{found['memory']:.2f}x",
        "-" if calls is None else f"{calls:,.0f}",
        found["plan"],
    )


def main() -> None:
    """Measures, prints and keeps the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tunes", type=int, default=10)
    parser.add_argument("--budget", type=float, default=15.0)
    parser.add_argument("--nests", default=",".join(nests()))
    parser.add_argument("--long", action="store_true", help="the long calls too (about six minutes)")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        what, *words = given.one
        task = {"tune": tune, "plain": plain, "compare": compare, "long": long_call}[what]
        print(json.dumps(task(*(float(w) if w.replace(".", "").isdigit() else w for w in words))))
        return
    rows = [measure(name, given.tunes, given.budget) for name in given.nests.split(",") if name]
    header = ("nest", "jit / tuned", "interval", "regret", "same plan", "tuning s", "price", "memory", "pays after")
    text = align([(*header, "plan"), *map(row, rows)])
    if given.long:
        rows, text = _with_long(rows, text)
    common.write("tuning", rows, text)


def _with_long(rows: list[dict[str, Any]], text: str) -> tuple[list[dict[str, Any]], str]:
    for body in ("products", "elementwise"):
        with tempfile.TemporaryDirectory() as store:
            first = in_process(store, "long", "plain", body)
            tuned = in_process(store, "long", "decorated", body)
        ratio = tuned["seconds"] / first["seconds"]
        rows = [*rows, {"nest": f"long, {body}", "plain_s": first["seconds"], "ratio": ratio, **tuned}]
        text += (
            f"\nlong call, {body}: plain {first['seconds']:.1f} s, first decorated call {tuned['seconds']:.1f} s "
            f"({ratio:.2f}x), of which tuning {tuned['tuning_s']:.1f} s, plan {tuned['plan']}"
        )
    return rows, text


if __name__ == "__main__":
    main()
