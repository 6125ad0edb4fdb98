"""What a search may try (ladders of choices for each loop, sets of XLA options), and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autoloop._plan import Choice, Plan
from autoloop._records import Trial


@dataclass(frozen=True)
class Axis:
    """One loop to choose for: its own work, without inner loops, and ladders of choices whose rungs cost ever more."""

    path: tuple[int, ...]
    work: float
    ladders: tuple[tuple[Choice, ...], ...]


@dataclass(frozen=True)
class Space:
    """What may be tried.

    Attributes:
        axes: one per loop.
        options: sets of XLA options to try with the best plans.
        why_not: why a plan is not legal, None if it is.
        size: equations that a plan compiles.
        dispatches: calls into the device runtime that one run of a plan makes.
    """

    axes: tuple[Axis, ...]
    options: tuple[tuple[tuple[str, str], ...], ...]
    why_not: Callable[[Plan], str | None]
    size: Callable[[Plan], float]
    dispatches: Callable[[Plan], float]

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
