"""What does choosing a form gain, and how close is it to what a person writes by hand?

Every program of the zoo as written (plain `jax.jit`), with the best of the plain forms (unroll, inline,
python), with the best of all forms, and as written by hand. Each program has a process of its own,
tunes from empty stores, checks that all outputs agree, and then races the four in interleaved rounds;
every call is blocked on. Ratios are medians of paired rounds with 95 % intervals.

    python benchmarks/bench_forms.py [--programs langevin,hmc] [--size large] [--budget 10] [--rounds 21] [--limit 600]

Rows of other runs on the same machine and version are kept, so the programs may be measured in parts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import jax
from zoo import PROGRAMS, SIZES, load

from autoloop import Record, autoloop
from autoloop._agree import Tolerance, disagreement, to_host
from autoloop._report import align

PLAIN_FORMS = ("unroll", "inline", "python")
#: Calls shorter than this are timed several at once.
_SPAN_S = 2e-3
#: Where the form by hand is faster than the tuned one by more, the results say why.
_CLOSE = 0.9

#: Why the form by hand beats the tuned one, by program; printed where it does.
#: Where the form by hand is itself a plan that the search may try, its text is given: then it was missed for
#: want of budget, or the trials could not tell it from what was chosen.
WHY: dict[str, str] = {
    "echo_state": "by hand the steps of all blocks are one loop, its products taken over all of them at once: "
    "no form merges an outer loop with the loop inside it",
    "garch": "by hand the likelihood's own terms are left out of the loop before it is differentiated, so that "
    "less is stacked; forms see the loops that the derivative left",
    "gradient_accumulation": "by hand the microbatches are one batch of 128 rows; distributed they keep an axis of "
    "their own (0/0=distribute(heavy)), which XLA lays out otherwise in the products",
    "hmm": "by hand forward and Viterbi run in one loop, the emissions looked up before it: no form merges two loops",
    "kalman_many": "by hand is the plan 0=distribute(heavy)",
    "lstm_training": "by hand the input's product is taken once, forward, and the weights' gradients come from the "
    "stacked gates; the form moves the same products, but out of the loops that the derivative left, with more stacked",
    "map_recurrence": "by hand is the plan 0=vmap(1000) 0/0=unroll(2); a call takes 0.1 ms",
    "particle_filter": "by hand is the plan 0=vmap(8) 0/0=distribute(heavy)",
    "sinkhorn": "by hand is the plan 0=vmap(8)",
    "transformer_layers": "by hand is the plan 0=inline 1=inline, forward and backward pass together, which is tried "
    "where its building is foretold to fit: eight layers as written take over a second to build, so not in 10 s",
    "s5_layer": "by hand the complex products are products of real matrices: other arithmetic, not another loop",
}


def tune(program: Callable[..., Any], args: tuple[Any, ...], store: str, **options: Any) -> tuple[Any, Record]:
    """The tuned function, past its first calls, and its record; `store` is an empty folder's path."""
    os.environ["AUTOLOOP_CACHE_DIR"] = store  # not `settings(...)`: within it a call is off the hot path
    tuned = autoloop(progress=False, **options)(program)
    for _ in range(2):  # the second installs a plan that was tried on a shortened program
        jax.block_until_ready(tuned(*args))
    record = tuned.report(*args)
    assert record is not None
    return tuned, record


def check(outputs: dict[str, Any]) -> dict[str, float]:
    """The error of each output relative to the one as written.

    Raises:
        RuntimeError: one does not agree.
    """
    expected = to_host(jax.tree.leaves(outputs["written"]))
    errors = {}
    for name, value in outputs.items():
        errors[name], reason = disagreement(expected, jax.tree.leaves(value), Tolerance())
        if reason:
            raise RuntimeError(f"{name} does not agree with as written: {reason}")
    return errors


def measure(name: str, size: str, budget_s: float, rounds: int) -> dict[str, Any]:
    """The row of one program, in this process."""
    zoo = load(name)
    args = zoo.arguments(size)
    with tempfile.TemporaryDirectory() as store:
        best_plain, plain = tune(zoo.program, args, f"{store}/plain", budget_s=budget_s, forms=PLAIN_FORMS)
        best, every = tune(zoo.program, args, f"{store}/all", budget_s=budget_s)
    functions = {
        "written": jax.jit(zoo.program),
        "plain": best_plain,
        "tuned": best,
        "hand": jax.jit(zoo.by_hand),
    }
    errors = check({key: jax.block_until_ready(f(*args)) for key, f in functions.items()})
    calls = {key: common.blocked(f, args) for key, f in functions.items()}
    once_s = min(common.interleaved({"written": calls["written"]}, 3)["written"])
    found = common.interleaved(calls, rounds, repeat=max(1, min(200, math.ceil(_SPAN_S / once_s))))
    return {
        "program": name,
        "size": size,
        "ms": {key: 1e3 * common.median_s(seconds) for key, seconds in found.items()},
        "speedup": {key: common.paired(found, key, "written") for key in ("plain", "tuned", "hand")},
        "hand_over_tuned": common.paired(found, "tuned", "hand"),
        "plan": {"plain": plain.winner, "tuned": every.winner},
        "tuning_s": {"plain": plain.spent_s, "tuned": every.spent_s},
        "complete": every.complete,
        "verdict": every.verdict,
        "notes": list(every.notes),
        "error": errors,
        "budget_s": budget_s,
        "rounds": rounds,
    }


def in_process(name: str, given: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """The row of one program, from a fresh process; an error is a row too."""
    options = ["--size", given.size, "--budget", str(given.budget), "--rounds", str(given.rounds)]
    try:
        return common.alone(__file__, [name, *options], limit_s)
    except RuntimeError as error:
        return {"program": name, "size": given.size, "budget_s": given.budget, "failed": str(error)[-300:]}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A program's figures as text."""
    if "failed" in row:
        return (row["program"], *["-"] * 8, f"failed: {row['failed'][:100]}")
    speedup, plan = row["speedup"], row["plan"]
    mid, low, high = speedup["tuned"]
    return (
        row["program"],
        f"{row['ms']['written']:.2f}",
        f"{speedup['plain'][0]:.2f}",
        plan["plain"],
        f"{mid:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{speedup['hand'][0]:.2f}",
        f"{row['hand_over_tuned'][0]:.2f}",
        f"{row['tuning_s']['tuned']:.0f}",
        plan["tuned"],
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """What the table shows as a whole, and why a form by hand is ahead where it is."""
    good = [row for row in rows if "failed" not in row]
    lines = [
        f"{row['program']}: by hand {1 / row['hand_over_tuned'][0]:.2f} times as fast as tuned: "
        + WHY.get(row["program"], "not explained yet")
        for row in good
        if row["hand_over_tuned"][0] < _CLOSE
    ]
    if good:
        tuned = {row["program"]: row["speedup"]["tuned"][0] for row in good}
        mean = math.exp(sum(map(math.log, tuned.values())) / len(tuned))
        lowest = min(tuned, key=lambda name: tuned[name])
        lines.append(
            f"tuned over as written, {len(good)} programs: geometric mean {mean:.2f}, "
            f"lowest {tuned[lowest]:.2f} ({lowest})"
        )
    return lines


def report(rows: list[dict[str, Any]], given: argparse.Namespace) -> str:
    """The table and what it shows."""
    timed = ("program", "written ms", "plain", "its plan", "tuned", "interval", "by hand", "tuned over hand")
    legend = (
        f"size {given.size}, budget {given.budget:g} s; plain, tuned, by hand: times as fast as written; "
        f"tuned over hand: above 1 the tuned one is faster"
    )
    table = align([(*timed, "tuning s", "tuned plan"), *map(cells, rows)])
    return "\n".join([table, "", legend, *summary(rows)])


def main() -> None:
    """Measures, prints and keeps the results; exits with 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of each of the two tunings")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that all of it may take")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder for the results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.size, given.budget, given.rounds)))
        return
    names = [name for name in given.programs.split(",") if name]
    for name in names:
        load(name)  # a misspelt name ends here, not after an hour
    clock, rows = common.Clock(given.limit), []
    for done, name in enumerate(names):
        # A program may take what the others before it left, and twice its share; then it is ended.
        share_s = clock.left_s / (len(names) - done)
        clock.say(f"{name}, in at most {2 * share_s:.0f} s")
        rows.append(in_process(name, given, min(2 * share_s, clock.left_s)))
        clock.say("  ".join(cells(rows[-1])))
    alike = {"size": given.size, "budget_s": given.budget}
    rows = [dict(row) for row in common.with_earlier("forms", "program", rows, PROGRAMS, given.out, **alike)]
    common.write("forms", rows, report(rows, given), given.out)
    sys.exit(any("failed" in row for row in rows))


if __name__ == "__main__":
    main()
