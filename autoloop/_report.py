"""A record as text that a person reads: a table of trials, and what was chosen and why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoloop import _why
from autoloop._records import AS_WRITTEN, Record, Trial

HEADER = (
    "plan",
    "trace s",
    "compile s",
    "run ms",
    "interval ms",
    "ratio",
    "memory",
    "max error",
    "pays after",
    "verdict",
)


def table(record: Record) -> str:
    """All trials, the fastest first, those without a time last, as an aligned text table."""
    rows = [row(trial, record) for trial in ranked(record.trials)]
    return align([HEADER, *rows])


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Trials by run time; those that never ran follow in the order of the search."""
    return sorted(trials, key=lambda t: t.ratio if t.ok and t.ratio is not None else math.inf)


def row(trial: Trial, record: Record) -> tuple[str, ...]:
    """A trial's cells, one for each name in `HEADER`."""
    return (
        trial.plan,
        _number(trial.trace_s, "{:.2f}"),
        _number(trial.compile_s, "{:.2f}"),
        _number(trial.run_s, "{:.4g}", 1e3),
        _span(trial),
        _number(trial.ratio, "{:.3f}"),
        size_text(trial.peak_bytes),
        _number(trial.max_error, "{:.1e}"),
        _calls(trial.breakeven_calls),
        verdict(trial, record),
    )


def _number(value: float | None, form: str, times: float = 1.0) -> str:
    return "-" if value is None else form.format(value * times)


def _calls(count: float | None) -> str:
    """Calls after which a plan's extra build time is paid for."""
    if count is None:
        return "-"
    return "at once" if count < 1 else f"{count:,.0f} call{'' if count == 1 else 's'}"


def _span(trial: Trial) -> str:
    if trial.run_low_s is None or trial.run_high_s is None:
        return "-"
    return f"{1e3 * trial.run_low_s:.4g} to {1e3 * trial.run_high_s:.4g}"


def verdict(trial: Trial, record: Record) -> str:
    """A few words on what became of a trial."""
    if trial.plan == record.winner:
        return "chosen"
    if not trial.ok:
        return f"{trial.status}: {trial.reason}"
    if trial.plan == AS_WRITTEN:
        return "the baseline"
    if trial.ratio is None or trial.ratio_high is None:
        return trial.reason
    if trial.ratio_high < 1:
        return "faster"
    return "slower" if trial.ratio_low is not None and trial.ratio_low > 1 else "no clear difference"


def size_text(count: int | None) -> str:
    """Bytes in a unit that keeps the number short."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows as text: the first and last columns to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1
    lines = []
    for row in rows:
        cells = [cell.ljust(widths[i]) if i in (0, last) else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def heading(record: Record) -> list[str]:
    """What was tuned, and where: two lines."""
    return [
        f"{record.function}  [{record.key.get('arguments', '')}]",
        f"on {record.key.get('device', '?')}, {record.key.get('host', '?')}; {record.key.get('versions', '?')}",
    ]


def closing(record: Record) -> list[str]:
    """What was chosen, why, what to know of the tuning: one sentence a line."""
    state = "" if record.complete else " (the budget ended the search early)"
    tuned = f"tuned in {record.spent_s:.1f} s of {record.budget_s:g} s{state}, {record.created}"
    return [
        f"plan in force: {record.winner}",
        f"why: {record.verdict}",
        *_why.sentences(record),
        tuned,
        *(f"note: {note}" for note in record.notes),
    ]


def text(record: Record) -> str:
    """The whole report."""
    return "\n".join([*heading(record), "", table(record), "", *closing(record)])
