"""What does a masked scan gain as a real while?

A Newton solver with a tolerance, written as libraries write it so that it can be differentiated: a scan
of the most rounds that may be needed, whose body is `cond(done, identity, step)`. It makes the implicit
steps of a stiff oscillator in time, an outer scan.

- `lanes`: 32 systems under `vmap`, where the `cond` becomes selects and every round is computed;
- `single`: one system, where the `cond` skips the work of a round but not the round.

At most 100 rounds a step, about 6 are needed. Each in a process of its own: as written (`jax.jit`) and
tuned from an empty store, raced in interleaved rounds, outputs compared bit by bit; ratios are medians of
paired rounds with 95 % intervals.

    python benchmarks/bench_until.py [--budget 10] [--rounds 21]
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from typing import Any

import common
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autoloop import autoloop
from autoloop._report import align

LANES, STEPS, MOST_ROUNDS = 32, 50, 100
_TOLERANCE = 1e-6
_STEP_S = 0.5

CASES = ("lanes", "single")


def residual(new: Any, old: Any, stiffness: Any) -> Any:
    """Zero where the implicit step is solved: van der Pol's oscillator, stiff."""
    place, speed = new
    return new - old - _STEP_S * jnp.stack([speed, stiffness * (1 - place * place) * speed - place])


def solve(old: Any, stiffness: Any) -> tuple[Any, Any]:
    """The next state, and how many rounds Newton's method needed; written as a masked scan."""

    def improve(state: Any) -> Any:
        new, rounds, _ = state
        slope = jax.jacfwd(residual)(new, old, stiffness)
        change = _solve2(slope, residual(new, old, stiffness))
        return new - change, rounds + 1, jnp.max(jnp.abs(change)) < _TOLERANCE

    def body(state: Any, _: None) -> Any:
        return lax.cond(state[2], lambda s: s, improve, state), None

    begin = (old, jnp.int32(0), jnp.bool_(False))
    new, rounds, _ = lax.scan(body, begin, None, length=MOST_ROUNDS)[0]
    return new, rounds


def _solve2(m: Any, v: Any) -> Any:
    """Cramer's rule."""
    whole = m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]
    return jnp.stack([m[1, 1] * v[0] - m[0, 1] * v[1], m[0, 0] * v[1] - m[1, 0] * v[0]]) / whole


def rollout(state: Any, stiffness: Any) -> Any:
    """All time steps of one system: the states, and the rounds of each step."""

    def advance(state: Any, _: None) -> Any:
        state, rounds = solve(state, stiffness)
        return state, (state, rounds)

    return lax.scan(advance, state, None, length=STEPS)[1]


def rollouts(states: Any, stiffness: Any) -> Any:
    """The same for many systems at once, `vmap` inside the scan of time steps."""

    def advance(states: Any, _: None) -> Any:
        states, rounds = jax.vmap(solve)(states, stiffness)
        return states, (states, rounds)

    return lax.scan(advance, states, None, length=STEPS)[1]


def case(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Function and arguments."""
    stiffness = jnp.linspace(0.5, 1.5, LANES)
    states = jnp.stack([jnp.linspace(1.0, 2.0, LANES), jnp.zeros(LANES)], axis=1)
    return (rollouts, (states, stiffness)) if name == "lanes" else (rollout, (states[0], stiffness[LANES // 2]))


def measure(name: str, budget_s: float, rounds: int) -> dict[str, Any]:
    """The row of one case, in this process."""
    function, args = case(name)
    written = jax.jit(function)
    with tempfile.TemporaryDirectory() as store:
        os.environ["AUTOLOOP_CACHE_DIR"] = store  # not `settings(...)`: within it a call is off the hot path
        tuned = autoloop(budget_s=budget_s, progress=False)(function)
        outputs = {"written": written(*args), "tuned": tuned(*args)}
        record = tuned.report(*args)
    assert record is not None
    calls = {"written": common.blocked(written, args), "tuned": common.blocked(tuned, args)}
    once_s = min(common.interleaved({"written": calls["written"]}, 3)["written"])
    found = common.interleaved(calls, rounds, repeat=max(1, min(200, math.ceil(common.SPAN_S / once_s))))
    needed = np.asarray(outputs["written"][1]).reshape(STEPS, -1).max(axis=1)  # by the slowest lane
    return {
        "case": name,
        "ms": {key: 1e3 * common.median_s(seconds) for key, seconds in found.items()},
        "written_over_tuned": common.paired(found, "tuned", "written"),
        "plan": record.winner,
        "tuning_s": record.spent_s,
        "bit_equal": _bit_equal(outputs["written"], outputs["tuned"]),
        "rounds_needed": [float(needed.mean()), int(needed.max())],
        "verdict": record.verdict,
        "notes": list(record.notes),
    }


def _bit_equal(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A case's figures as text."""
    if "failed" in row:
        return (row["case"], *["-"] * 7, f"failed: {row['failed'][:100]}")
    mid, low, high = row["written_over_tuned"]
    mean, most = row["rounds_needed"]
    return (
        row["case"],
        f"{row['ms']['written']:.3f}",
        f"{row['ms']['tuned']:.3f}",
        f"{mid:.2f}",
        f"{low:.2f} to {high:.2f}",
        "yes" if row["bit_equal"] else "no",
        f"{mean:.1f}, at most {most}",
        f"{row['tuning_s']:.1f}",
        row["plan"],
    )


def main() -> None:
    """Measures, prints and keeps the results."""
    parser = common.parser(__doc__, 120.0)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of each tuning")
    parser.add_argument("--rounds", type=int, default=21)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.budget, given.rounds)))
        return
    clock, rows = common.Clock(given.limit), []
    for name in CASES:
        clock.say(name)
        words = [name, "--budget", str(given.budget), "--rounds", str(given.rounds)]
        try:
            rows.append(common.alone(__file__, words, clock.left_s))
        except RuntimeError as error:
            rows.append({"case": name, "failed": str(error)})
    header = ("case", "written ms", "tuned ms", "written / tuned", "interval", "bit-equal", "rounds needed", "tuning s")
    legend = f"{LANES} lanes, {STEPS} time steps, at most {MOST_ROUNDS} rounds each; budget {given.budget:g} s"
    table = align([(*header, "plan"), *map(cells, rows)])
    common.write("until", rows, f"{table}\n\n{legend}", given.out)


if __name__ == "__main__":
    main()
