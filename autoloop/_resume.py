"""Going on from an earlier record: what of it still counts, and which forms it did not know.

Timings are kept per plan, as ratios to the function as written in the same rounds. So a new version of
autoloop with one more form needs to time only plans that hold that form, and the function as written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from autoloop._options import Options
from autoloop._plan import Plan
from autoloop._program import Program
from autoloop._records import AS_WRITTEN, Record, Trial
from autoloop._space import Space

#: Where a record's environment says which forms its search knew.
FORMS = "forms"


def new_forms(record: Record | None, options: Options) -> tuple[str, ...]:
    """Forms that may be tried now and that a record's tuning did not know; none where it does not say."""
    known = None if record is None else record.environment.get(FORMS)
    return () if known is None else tuple(name for name in options.allowed_forms if name not in known.split())


def with_forms_of(environment: Mapping[str, str], earlier: Record) -> dict[str, str]:
    """An environment that says which forms an earlier search knew, where a later one tried no others."""
    kept = {name: text for name, text in earlier.environment.items() if name == FORMS}
    return {**{name: text for name, text in environment.items() if name != FORMS}, **kept}


def known(record: Record | None, program: Program) -> tuple[Trial, ...]:
    """The trials of a record whose plans fit the program as this version sees it."""
    return () if record is None else tuple(trial for trial in record.trials if _fits(trial.plan, program))


def _fits(text: str, program: Program) -> bool:
    try:
        return text == AS_WRITTEN or not program.why_not(Plan.parse(text))
    except ValueError:  # a plan of another version
        return False


def only(space: Space, forms: Sequence[str]) -> Space:
    """A space of which only plans that hold one of these forms are tried; of no forms: the space."""
    return dataclasses.replace(space, why_not=_holding(forms, space.why_not)) if forms else space


def _holding(forms: Sequence[str], why_not: Callable[[Plan], str | None]) -> Callable[[Plan], str | None]:
    def of(plan: Plan) -> str | None:
        if plan.as_written or any(choice.form in forms for choice in plan.choices):
            return why_not(plan)
        return "it was tried before"

    return of


def joined(record: Record, before: Record | None, forms: Sequence[str]) -> Record:
    """A record of new forms alone, with what the record before it says of its search."""
    if before is None or not forms:
        return record
    note = f"{', '.join(forms)} were timed later than the other forms, whose times are of {before.created}"
    notes = tuple(dict.fromkeys([*before.notes, note, *record.notes]))
    complete = record.complete and before.complete
    return record.replace(complete=complete, interrupted=before.interrupted, notes=notes)
