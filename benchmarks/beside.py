"""How good is a tuned function beside what people use instead? What `run.py` runs for each program of the zoo.

In a fresh process and from an empty store: plain `jax.jit` as written (`jit`), tuned by autoloop (`tuned`), the
best form by hand (`hand`), the outermost loop in Python around a jitted step (`python`) and with no jit around
it (`eager`), what tune_jax chooses (`peer`), and the best of a sweep of all plans (`sweep`). The two races,
before and after the sweep, are in interleaved rounds; a ratio is the median over rounds with its 95 % interval.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

import common
import contenders
import jax
import peer
from contenders import Contenders, Way
from zoo import load

from autoloop import autoloop
from autoloop._call import Call
from autoloop._function import Function
from autoloop._program import Program

#: Parts of the time allowed for a program.
TUNING, PEER, RACE, SWEEP, LAST_RACE = 0.25, 0.5, 0.12, 0.2, 0.1
ROUNDS = 21


#: Why a form by hand is faster than the tuned one, by program; printed where it is, by more than a tenth.
#: Where it is itself a plan that the search may try, its text is given: then it was missed for want of
#: budget, or the trials could not tell it from what was chosen.
WHY: dict[str, str] = {
    "langevin": "by hand the random numbers of all blocks are drawn at once: no form merges an outer loop with "
    "the loop inside it",
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
    "where its building is foretold to fit: eight layers as written take over a second to build, so not in 15 s",
    "s5_layer": "by hand the complex products are products of real matrices: other arithmetic, not another loop",
    "layer_mixture": "by hand each layer is of its own kind, without the switch that passes every kind's memory on: "
    "known only outside the traced program, whose kinds are values",
    "time_warping": "by hand the table is skewed, so that whole antidiagonals are one step: no form makes a wavefront",
    "evolution": "by hand is the plan 0/0=vmap(64)",
    "maml": "by hand the tasks are one batch, forward and backward: the plan 0/1=vmap(16) 0/2=distribute(heavy)",
    "ppo": "by hand all seeds are one batch, their random numbers drawn before, and short loops unrolled: "
    "four choices, more than a plan of the search has",
    "newton_cg": "by hand the curvature is computed once a Newton step; what a form moves out of the loop is "
    "what the derivative of the gradient left in it",
    "n_body": "by hand the coordinates lie along the first axis, where vector units work on whole rows: another "
    "layout of the values, not another loop",
    "automaton": "by hand sums of three in rows and columns, in bytes: other arithmetic, not another loop",
}


def measure(name: str, size: str, allowed_s: float) -> dict[str, Any]:
    """The row of one program, in this process; printed before the sweep too, should that be ended from outside."""
    end = time.monotonic() + allowed_s
    zoo = load(name)
    args = jax.block_until_ready(jax.jit(lambda: zoo.arguments(size))())
    found = Contenders(zoo.program, args)
    ways = {"jit": found.written}
    ways["tuned"], record = found.tuned(TUNING * allowed_s)
    ways["hand"] = ways["jit"] if zoo.by_hand is zoo.program else found.build(contenders.Jitted(zoo.by_hand))
    ways["python"], ways["eager"] = found.outermost("python(1)"), found.outermost("eager")
    ways["peer"] = found.peer(name, size, PEER * allowed_s)
    times = contenders.race(ways, RACE * allowed_s, ROUNDS)
    row: dict[str, Any] = {"program": name, "size": size, "allowed_s": allowed_s, **common.environment()}
    row |= {"ways": {key: figures(way, times, key) for key, way in ways.items()}, **against(times)}
    row |= {"verdict": record.verdict, "complete": record.complete, "notes": list(record.notes)}
    row |= {"failed_trials": [f"{t.plan}: {t.reason}" for t in record.trials if t.status in ("wrong", "failed")]}
    with_breakeven(row)
    print(json.dumps(row), flush=True)
    last_race_s = LAST_RACE * allowed_s
    start = time.monotonic()
    finalists, swept, left_out = found.sweep(record, max(end - last_race_s, start + SWEEP * allowed_s))
    row |= {"swept": swept, "left_out": left_out, "sweep_s": time.monotonic() - start}
    return with_breakeven(row | last_race(row, ways, finalists, last_race_s))


def peer_tunes(name: str, size: str, factors: list[int]) -> dict[str, Any]:
    """What tune_jax chooses for one program, and in how many seconds; in a process of its own."""
    zoo = load(name)
    args = jax.block_until_ready(jax.jit(lambda: zoo.arguments(size))())
    function = Function(zoo.program)
    program = Program.trace(function, Call.of(function, args, {}).key, args, {})
    assert program is not None
    start = time.perf_counter()
    plan = peer.tune(autoloop(zoo.program), peer.busiest(program), args, factors)
    return {"plan": plan, "tuning_s": time.perf_counter() - start, "version": peer.version()}


def last_race(
    row: Mapping[str, Any], ways: Mapping[str, Way], finalists: Mapping[str, Way], allowed_s: float
) -> dict[str, Any]:
    """The tuned function against the fastest of the sweep: its regret."""
    lanes = {"jit": ways["jit"], "tuned": ways["tuned"], **finalists}
    times = contenders.race(lanes, allowed_s, ROUNDS)
    others = [n for n in times if n != "tuned" and lanes[n].plan != ways["tuned"].plan]
    best = min(others or ["tuned"], key=lambda n: common.paired(times, "jit", n)[0])
    way = dataclasses.replace(lanes[best], tuning_s=row["sweep_s"], first_s=row["sweep_s"] + lanes[best].first_s)
    sweep = figures(way, times, best)
    return {"ways": {**row["ways"], "sweep": sweep}, "regret": common.paired(times, best, "tuned"), "best": way.plan}


def figures(way: Way, times: Mapping[str, list[float]], lane: str) -> dict[str, Any]:
    """What is kept of one way."""
    found = {key: value for key, value in dataclasses.asdict(way).items() if key not in ("call", "second_s")}
    if lane in times:
        found["ms"] = 1e3 * common.median_s(times[lane])
        found["speedup"] = common.paired(times, lane, "jit")
        found["rounds"] = len(times[lane])
    return found


def against(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """By how much tuned is faster than the other ways."""
    return {f"{n}_over_tuned": common.paired(times, "tuned", n) for n in times if n != "tuned" and "tuned" in times}


def with_breakeven(row: dict[str, Any]) -> dict[str, Any]:
    """The row with each way's break-even count."""
    for way in row["ways"].values():
        if "ms" in way:
            way["breakeven_calls"] = contenders.breakeven(way, row["ways"]["jit"])
    return row
