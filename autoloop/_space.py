"""What a search may try (ladders of choices for each loop, sets of XLA options), and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoloop._plan import Choice, Plan
from autoloop._records import Trial


@dataclass(frozen=True)
class Axis:
    """One loop to choose for.

    Attributes:
        path: the loop's.
        work: its own, without inner loops.
        ladders: choices whose rungs cost ever more.
        first: how many of the ladders, in front, are tried on every loop before the others.
        length: trip count.
        together: choices to try for all loops side by side of this length at once.
    """

    path: tuple[int, ...]
    work: float
    ladders: tuple[tuple[Choice, ...], ...]
    first: int = 0
    length: int = 0
    together: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Space:
    """What may be tried.

    Attributes:
        axes: one per loop.
        options: sets of XLA options to try with the best plans.
        why_not: why a plan is not legal, None if it is.
        size: equations that a plan compiles.
        dispatches: calls into the device runtime that one run of a plan makes.
        chain: elementwise equations in the longest chain within one step of a loop.
    """

    axes: tuple[Axis, ...]
    options: tuple[tuple[tuple[str, str], ...], ...]
    why_not: Callable[[Plan], str | None]
    size: Callable[[Plan], float]
    dispatches: Callable[[Plan], float]
    chain: Callable[[Plan], int]

    def plans(self) -> Iterator[Plan]:
        """All plans of one choice, then, for each pair of nested loops, those of two."""
        singles = [c for axis in self.axes for ladder in axis.ladders for c in ladder]
        yield Plan()
        yield from (p for c in singles if not self.why_not(p := Plan((c,))))
        for outer in singles:
            for inner in singles:
                nested = len(inner.path) > len(outer.path) and inner.path[: len(outer.path)] == outer.path
                if nested and not self.why_not(plan := Plan((outer, inner))):
                    yield plan
        yield from (Plan(options=options) for options in self.options)


class Measure(Protocol):
    """From plans to trials, timed together; `best` is the best ratio so far."""

    def __call__(self, plans: Sequence[Plan], best: float) -> Sequence[Trial]:
        """Measures."""


@dataclass(frozen=True)
class Outcome:
    """What a search found: trials (as written first), the winner's text, why, and whether it finished."""

    trials: tuple[Trial, ...]
    winner: str
    verdict: str
    complete: bool


class SearchInterrupted(KeyboardInterrupt):
    """The user stopped the search; `outcome` is what it had found."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("tuning was interrupted")
        self.outcome = outcome
