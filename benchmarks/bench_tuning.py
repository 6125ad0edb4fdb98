"""Is the choice right, repeatable, and worth its price?

For ten loop nests of different kinds, each step in a fresh process and each tuning from an empty store:

- regret: run time of the chosen plan over that of the best of a sweep of the same candidates (one
  choice, or two in nested loops), all raced together in interleaved rounds;
- loss: as `jax.jit` over tuned, interleaved, in a process that only reads the record;
- repeatability: how many of N tunings chose the same plan, or one within the margin of it in that race;
  beside it the same for tune_jax 0.8.3 choosing `unroll` for the busiest loop, where it is installed;
- price: seconds of tuning over those of a plain first call (compile and run), peak memory of the
  tuning process over that of a plain one, and after how many calls the tuning has paid for itself.

With `--long` instead a call of a minute or more (outer 20,000, inner 100), once of a body with nothing
better and once of one that has a better form: seconds of the first decorated call over a plain one.

    python benchmarks/bench_tuning.py [--tunes 10] [--budget 15] [--nests rnn,life] [--limit 600] [--long]

Rows of other runs on the same machine and version are kept, so the nests may be measured in parts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import long_call
import one_tuning
import peer
from nests import nests

from autoloop._report import align

#: Plans this close, relative, are a tie: the decorator's own margin.
_MARGIN = 0.03
#: The part of a nest's time that the comparison may take.
_COMPARE_SHARE = 0.35


def one(task: Mapping[str, Any]) -> dict[str, Any]:
    """One step, in this process."""
    steps = {
        "plain": one_tuning.plain,
        "tune": one_tuning.tune,
        "peer": one_tuning.peer_tune,
        "compare": one_tuning.compare,
        "long": long_call.first_call,
    }
    words = dict(task)
    return steps[words.pop("step")](**words)


def alone(store: str, limit_s: float, step: str, **words: Any) -> dict[str, Any]:
    """One step in a process of its own, on a store."""
    return common.alone(__file__, [json.dumps({"step": step, **words})], limit_s, store)


# ---------------------------------------------------------------- nests


def tunings(clock: common.Clock, wanted: int, end_s: float, store: str, **words: Any) -> list[dict[str, Any]]:
    """Up to `wanted` tunings, the first on `store`, as many as fit until `end_s` seconds are left; one at least."""
    found: list[dict[str, Any]] = []
    for number in range(wanted):
        if found and clock.left_s - _longest_s(found) < end_s:
            clock.say(f"{words['nest']}: no time for more than {number} of {wanted} tunings")
            break
        with tempfile.TemporaryDirectory() as fresh:
            found.append(alone(fresh if number else store, max(60.0, clock.left_s), **words))
    return found


def _longest_s(found: Sequence[Mapping[str, Any]]) -> float:
    return 3.0 + max(t["first_call_s"] for t in found)


def measure(nest: str, given: argparse.Namespace, clock: common.Clock, share_s: float) -> dict[str, Any]:
    """The row of one nest, in about `share_s` seconds."""
    after_s = clock.left_s - share_s
    compare_s = _COMPARE_SHARE * share_s
    clock.say(f"{nest}: plain, then {given.tunes} tunings")
    with tempfile.TemporaryDirectory() as store:
        first = alone(store, 120.0, "plain", nest=nest)
        rest_s = after_s + compare_s + (0.0 if peer.missing() else 0.25 * share_s)
        ours = tunings(clock, given.tunes, rest_s, store, step="tune", nest=nest, budget_s=given.budget)
        theirs = []
        if not peer.missing():
            clock.say(f"{nest}: tunings by tune_jax")
            theirs = tunings(clock, given.tunes, after_s + compare_s, store, step="peer", nest=nest)
        clock.say(f"{nest}: the sweep")
        plans = [t["plan"] for t in (*ours, *theirs)]
        allowed_s = max(5.0, min(compare_s, clock.left_s))
        compared = alone(store, allowed_s + 120.0, "compare", nest=nest, plans=plans, allowed_s=allowed_s)
    return {"nest": nest, **compared, **price(first, ours), **repeatability(compared["ratios"], ours, theirs)}


def price(first: Mapping[str, Any], ours: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the first tuning cost, and when it has paid."""
    tuning = ours[0]
    spent_s, gain_s = tuning["first_call_s"] - first["first_call_s"], tuning["gain_s"]
    return {
        "plan": tuning["plan"],
        "price": tuning["first_call_s"] / first["first_call_s"],
        "memory": tuning["peak_mb"] / first["peak_mb"],
        "breakeven_calls": spent_s / gain_s if gain_s > 0 else None,
        "tuning_s": spent_s,
        "complete": tuning["complete"],
        "notes": tuning["notes"],
    }


def repeatability(
    ratios: Mapping[str, float], ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """How often each tuner chose the same plan, or one as fast."""
    found: dict[str, Any] = {}
    for name, tuned in (("", ours), ("peer_", theirs)):
        plans = Counter(t["plan"] for t in tuned)
        found |= {f"{name}plans": dict(plans), f"{name}same": same(plans, ratios), f"{name}tunes": len(tuned)}
    return found


def same(plans: Mapping[str, int], ratios: Mapping[str, float], margin: float = _MARGIN) -> int:
    """How many tunings chose one plan or a tie with it, for the plan of which most did."""

    def tied(a: str, b: str) -> bool:
        known = a in ratios and b in ratios
        return a == b or (known and abs(ratios[a] - ratios[b]) <= margin * min(ratios[a], ratios[b]))

    return max((sum(n for b, n in plans.items() if tied(a, b)) for a in plans), default=0)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A nest's figures as text."""
    if "failed" in row:
        return (row["nest"], *["-"] * 9, f"failed: {row['failed'][:100]}")
    jit, low, high = row["tuned_over_jit"]
    calls = row["breakeven_calls"]
    return (
        row["nest"],
        f"{jit:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{row['regret'][0]:.3f}",
        f"{row['same']} of {row['tunes']}",
        f"{row['peer_same']} of {row['peer_tunes']}" if row["peer_tunes"] else "-",
        f"{row['tuning_s']:.1f}",
        f"{row['price']:.0f}x",
        f"{row['memory']:.2f}x",
        "-" if calls is None else f"{calls:,.0f}",
        row["plan"],
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the table shows as a whole."""
    good = [row for row in rows if "failed" not in row]
    if not good:
        return []
    regrets = sorted(row["regret"][0] for row in good)
    within = sum(r <= 1.05 for r in regrets)
    lowest = min(good, key=lambda row: row["tuned_over_jit"][2])
    lines = [
        f"regret at most 1.05 on {within} of {len(good)}, at most {regrets[-1]:.3f}; "
        f"lowest jit / tuned {lowest['tuned_over_jit'][0]:.2f} ({lowest['nest']})",
        f"the same plan or a tie within {_MARGIN:.0%}: {_total(good, 'same')} of {_total(good, 'tunes')}",
    ]
    if _total(good, "peer_tunes"):
        lines[1] += f"; tune_jax choosing unroll: {_total(good, 'peer_same')} of {_total(good, 'peer_tunes')}"
    return lines


def _total(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] for row in rows)


# ---------------------------------------------------------------- the long call


def measure_long(body: str, given: argparse.Namespace, clock: common.Clock) -> dict[str, Any]:
    """The row of the long call with one body."""
    words = {"body": body, "outer": given.outer, "budget_s": given.long_budget}
    with tempfile.TemporaryDirectory() as store:
        clock.say(f"long call, {body}: plain")
        first = alone(store, clock.left_s, "long", which="plain", **words)
        clock.say(f"long call, {body}: decorated; plain took {first['seconds']:.1f} s")
        tuned = alone(store, clock.left_s, "long", which="decorated", **words)
    return {"nest": f"long, {body}", "plain_s": first["seconds"], "ratio": tuned["seconds"] / first["seconds"], **tuned}


def long_line(row: Mapping[str, Any]) -> str:
    """The figures of a long call as text."""
    if "failed" in row:
        return f"{row['nest']}: failed: {row['failed']}"
    return (
        f"{row['nest']}: plain {row['plain_s']:.1f} s, first decorated call {row['seconds']:.1f} s "
        f"({row['ratio']:.2f}x), of which tuning {row['tuning_s']:.1f} s, plan {row['plan']}"
    )


# ---------------------------------------------------------------- all


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tables of all rows, and what they show."""
    short = [row for row in rows if not row["nest"].startswith("long, ")]
    header = ("nest", "jit / tuned", "interval", "regret", "same plan", "tune_jax", "tuning s", "price", "memory")
    lines = [align([(*header, "pays after", "plan"), *map(cells, short)]), "", *summary(short)] if short else []
    if any(row.get("peer_tunes") == 0 for row in short):
        lines.append(peer.missing() or "tune_jax was not measured for all")
    return "\n".join([*lines, "", *(long_line(row) for row in rows if row["nest"].startswith("long, "))]).strip()


def attempt(name: str, work: Any, *words: Any) -> dict[str, Any]:
    """The row; a failure is a row too."""
    try:
        found: dict[str, Any] = work(*words)
    except RuntimeError as error:
        found = {"nest": name, "failed": str(error)[-300:]}
    return found


def main() -> None:
    """Measures, prints and keeps the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tunes", type=int, default=4)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of each tuning")
    parser.add_argument("--nests", default=",".join(nests()))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that all of it may take")
    parser.add_argument("--long", action="store_true", help="the long calls instead")
    parser.add_argument("--outer", type=int, default=long_call.OUTER, help="outer length of the long call")
    parser.add_argument("--long-budget", type=float, default=30.0, help="seconds of tuning of the long call")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="folder for the results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(json.loads(given.one))))
        return
    clock = common.Clock(given.limit)
    names = [name for name in given.nests.split(",") if name]
    if given.long:
        rows = [attempt(f"long, {body}", measure_long, body, given, clock) for body in long_call.BODIES]
    else:
        rows = []
        for done, name in enumerate(names):
            rows.append(attempt(name, measure, name, given, clock, clock.left_s / (len(names) - done)))
    order = [*nests(), *(f"long, {body}" for body in long_call.BODIES)]
    rows = list(common.with_earlier("tuning", "nest", rows, order, given.out))
    common.write("tuning", rows, report(rows), given.out)


if __name__ == "__main__":
    main()
