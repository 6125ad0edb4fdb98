"""Why a loop can't be distributed, in words."""

from __future__ import annotations

from collections.abc import Sequence

from autoloop._carries import carry_texts
from autoloop._forms.distribute.graph import Component
from autoloop._forms.distribute.groups import Schedule

_NAMED = 4  # equations named before "..."


def why_nothing_moves(schedule: Schedule) -> str | None:
    """Why every equation stays in the scan, as one sentence; None if some do not."""
    if schedule.moved or schedule.parallel:
        return None
    cyclic = [c for c in schedule.graph.components if c.cyclic and schedule.is_serial(c)]
    through = f"the recurrence through {_carries(schedule, cyclic)}" if cyclic else "the scan"
    pinned = sorted(set(schedule.facts.pinned.values()))
    if pinned:
        return f"the body holds {pinned[0]}, and nothing else that could leave {through}"
    rest = [c for c in schedule.graph.components if c not in cyclic]
    names = dict.fromkeys(schedule.body.eqns[k].primitive.name for c in rest for k in c.eqns)
    if not names:
        one = "one recurrence" if len(cyclic) == 1 else "recurrences"
        return f"the whole body is {one} through {_carries(schedule, cyclic)}: nothing can move"
    listed = ", ".join([*list(names)[:_NAMED], *(["..."] if len(names) > _NAMED else [])])
    return f"outside {through} the body holds nothing worth moving ({listed})"


def _carries(schedule: Schedule, components: Sequence[Component]) -> str:
    names = carry_texts(schedule.facts.scan)
    found = [names[k] for k in sorted(k for c in components for k in c.carries)]
    if len(found) > _NAMED:
        return f"{len(found)} carries"
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
