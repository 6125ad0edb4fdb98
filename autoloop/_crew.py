"""Who measures: one process by itself, or a crew of processes in which each does the same at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from autoloop._plan import Plan
from autoloop._records import Trial


class Crew(Protocol):
    """Who measures: each `own` is what this process does; what comes back counts for all processes."""

    note: str

    def build(self, plan: Plan, own: Callable[[], Trial]) -> Trial:
        """Builds a plan."""

    def first(self, plan: Plan, own: Callable[[], tuple[Trial, float]]) -> tuple[Trial, float]:
        """Runs and checks a plan for the first time."""

    def sample(self, plan: Plan, calls: int, own: Callable[[int], float]) -> float:
        """Seconds of one of several calls."""

    def time(self, share: float, own: Callable[[], float]) -> float:
        """Seconds of a call of a shortened program."""

    def begin(self, shortened: bool) -> None:
        """Measuring begins."""

    def let_go(self, plan: Plan) -> None:
        """A plan's program is not needed any more."""


class Alone:
    """This process measures by itself."""

    note = ""

    def build(self, plan: Plan, own: Callable[[], Trial]) -> Trial:
        """As `own`."""
        return own()

    def first(self, plan: Plan, own: Callable[[], tuple[Trial, float]]) -> tuple[Trial, float]:
        """As `own`."""
        return own()

    def sample(self, plan: Plan, calls: int, own: Callable[[int], float]) -> float:
        """As `own`."""
        return own(calls)

    def time(self, share: float, own: Callable[[], float]) -> float:
        """As `own`."""
        return own()

    def begin(self, shortened: bool) -> None:
        """Nothing is to be told."""

    def let_go(self, plan: Plan) -> None:
        """Nothing is to be told."""


ALONE = Alone()
