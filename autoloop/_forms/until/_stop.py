"""When a loop may stop before its last iteration: because from there on none changes anything.

Method: for each condition under which some carry is kept, assume that it holds in all its elements
when an iteration starts, and derive what the iteration then gives. If every carry is handed on as it
came, and the condition reads nothing else, the next iteration starts as this one did: by induction
none changes anything any more, and each gives the same y. Counters, which only ever add a constant,
may go on counting if nothing reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoloop import _jaxpr
from autoloop._carries import carry_texts
from autoloop._forms.until._facts import Assumption, Fact, Reading, read_body
from autoloop._forms.until._slices import Place

_MAX_CONDITIONS = 8


@dataclass(frozen=True)
class Stop:
    """A loop is over once all elements of the variable at `place` equal `value` as an iteration starts.

    Attributes:
        place: the condition's variable in the body.
        value: what it equals at the end.
        counters: what each iteration adds to the carries (by position) that count on.
    """

    place: Place
    value: int
    counters: Mapping[int, int]


def find_stop(scan: _jaxpr.Scan) -> Stop | str:
    """How the loop can stop early; or why it can't, as one sentence."""
    carry, _ = scan.split_outputs(read_body(scan.body).outputs)
    first = scan.num_consts
    counters = {k: f.shift for k, f in enumerate(carry) if f.same == first + k and f.shift}
    guards = [_keeping(fact, first + k) for k, fact in enumerate(carry)]
    # The condition that chooses most carries comes first. Each value to try costs a pass over the body:
    # 20 ms for a thousand equations.
    found = Counter(pair for pairs in guards for pair in dict.fromkeys(pairs)).most_common(_MAX_CONDITIONS)
    failures = []
    for (place, cases), _ in found:
        for value in range(cases):
            attempt = _Attempt(scan, counters, guards, Assumption(place, value))
            reason = attempt.why_not()
            if reason is None:
                return Stop(place, value, counters)
            failures.append((attempt.distance, reason))
    # What keeps most carries, and of those that have conditions, was meant to end the loop.
    return (
        min(failures, key=lambda f: f[0])[1]
        if failures
        else "no carry is kept under a condition, so none tells that the loop is over"
    )


def _keeping(fact: Fact, position: int) -> list[tuple[Place, int]]:
    """Conditions that may keep a carry as it came in at `position`, and how many values each has."""
    return [(g.place, g.cases) for g in fact.guards if g.same in (position, None)]


class _Attempt:
    """One condition with one value at the end."""

    def __init__(
        self,
        scan: _jaxpr.Scan,
        counters: Mapping[int, int],
        guards: list[list[tuple[Place, int]]],
        assumed: Assumption,
    ) -> None:
        self._scan, self._counters, self._guards, self._assumed = scan, counters, guards, assumed
        self._reading = read_body(scan.body, assumed)
        self.changed = tuple(self._changed(self._reading))

    def _changed(self, reading: Reading) -> Iterator[int]:
        carry, _ = self._scan.split_outputs(reading.outputs)
        for k, after in enumerate(carry):
            position = self._scan.num_consts + k
            before = reading.inputs[position]
            as_it_came = after.same == position and not after.shift
            equal = after.uniform is not None and after.uniform == before.uniform
            empty = self._scan.in_avals[position].size == 0  # which `jnp.where` simplifies away
            if not (as_it_came or equal or empty or k in self._counters):
                yield k

    @property
    def distance(self) -> tuple[int, int]:
        """How many carries are not kept, and how many of them have conditions that might."""
        return len(self.changed), sum(bool(self._guards[k]) for k in self.changed)

    def why_not(self) -> str | None:
        """Why the loop may not stop on this condition, as one sentence; None if it may."""
        return self._carry_problem() or self._condition_problem() or self._output_problem()

    def _carry_problem(self) -> str | None:
        if not self.changed:
            return None
        other = self.changed[0]
        guarded = [k for k, pairs in enumerate(self._guards) if self._assumed.place in {p for p, _ in pairs}]
        if self._guards[other] and other not in guarded:
            return f"{self._name(guarded[0])} and {self._name(other)} are kept under different conditions"
        kept = [self._name(k) for k in guarded if k not in self.changed]
        return f"{self._name(other)} changes even where a condition {f'keeps {kept[0]}' if kept else 'holds'}"

    def _condition_problem(self) -> str | None:
        condition = self._reading.condition
        assert condition is not None  # a guard stands somewhere in the body
        moving = self._moving(condition)
        if moving:
            return f"the condition reads {moving}, so that it need not hold for ever"
        _, carry, _ = self._scan.split_inputs(range(len(self._reading.inputs)))
        if condition.reads.isdisjoint(carry):
            return "the condition reads no carry, so that it never changes"
        return None

    def _output_problem(self) -> str | None:
        _, ys = self._scan.split_outputs(self._reading.outputs)
        for k, fact in enumerate(ys):
            moving = self._moving(fact)
            if moving:
                return f"stacked output {k} depends on the iteration after the end: it reads {moving}"
        return None

    def _moving(self, fact: Fact) -> str:
        _, carry, xs = self._scan.split_inputs(range(len(self._reading.inputs)))
        if not fact.reads.isdisjoint(xs):
            return "stacked inputs"
        counting = [k for k in sorted(self._counters) if carry[k] in fact.reads]
        return f"the counter in {self._name(counting[0])}" if counting else ""

    def _name(self, carry: int) -> str:
        return carry_texts(self._scan)[carry]
