"""A record as text that a person reads: what is in force and why, a table of trials, and what to know of it."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence

from autoloop import _why
from autoloop._records import AS_WRITTEN, Record, Status, Trial

HEADER = ("plan", "run ms", "interval", "ratio", "build s", "memory", "error", "pays after", "verdict")

#: What the columns are. Figures of one row come from the same rounds, which is why a ratio is not a quotient.
LEGEND = (
    "run ms: median of a whole call, with its 95 % interval; build s: tracing+compiling",
    "ratio: median over paired rounds of the time / as written in the same round, so not the quotient of two run ms; "
    "unclear: its 95 % interval, which follows, holds 1",
)

#: What an argument's star is.
WEAK = "*: an argument of weak type, as a Python number is"

#: A record's `environment` says under this name which plan is forced, where a report is asked for then.
FORCED = "forced"

#: Lines that are no table are wrapped at so many columns.
COLUMNS = 100

#: Of the plans that did not run for one reason, this many characters are named.
_NAMED = 70

_OPTION = re.compile(r"(?:^| )(xla_\S+)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
#: A choice or an XLA option inside a reason.
_PLAN_WORD = re.compile(r"(?:as-written|\d+(?:/\d+)*=[a-z]+(?:\(\w+\))?|xla_\w+=[\w,]*\w)")


# ---------------------------------------------------------------- the table


def table(record: Record) -> str:
    """The plans that were tried, the fastest first, as an aligned text table; XLA options as letters."""
    return "\n".join([align([HEADER, *rows(record)]), *letters_text(record)])


def rows(record: Record) -> list[tuple[str, ...]]:
    """The table's rows, one for each of the `ranked` trials; XLA options, which are long texts, as letters."""
    letters = _letters(record)
    return [(_shortened(plan, letters), *cells) for plan, *cells in (_row(t, record) for t in ranked(record.trials))]


def letters_text(record: Record) -> list[str]:
    """What the letters in the rows stand for, one a line."""
    return [f"[{letter}] is {options}" for options, letter in _letters(record).items()]


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that were made, by run time; those that did not end well follow in the order of the search."""
    made = [t for t in trials if t.status is not Status.SKIPPED]
    return sorted(made, key=lambda t: t.ratio if t.ok and t.ratio is not None else math.inf)


def _options(plan: str) -> str:
    return " ".join(_OPTION.findall(plan))


def _letters(record: Record) -> dict[str, str]:
    """The sets of XLA options in the order of the rows, and a letter for each."""
    found = dict.fromkeys(options for t in ranked(record.trials) if (options := _options(t.plan)))
    return {options: chr(ord("a") + k % 26) * (1 + k // 26) for k, options in enumerate(found)}


def _shortened(plan: str, letters: dict[str, str]) -> str:
    options = _options(plan)
    return f"{_OPTION.sub('', plan)} [{letters[options]}]".strip() if options else plan


def _row(trial: Trial, record: Record) -> tuple[str, ...]:
    """A trial's cells, one for each name in `HEADER`."""
    return (
        trial.plan,
        "-" if trial.run_s is None else _brief(trial.run_s),
        _span(trial),
        _number(trial.ratio, "{:.3f}"),
        _build(trial),
        size_text(trial.peak_bytes),
        _number(trial.max_error, "{:.1e}"),
        _calls(trial.breakeven_calls),
        verdict(trial, record),
    )


def _number(value: float | None, form: str, times: float = 1.0) -> str:
    return "-" if value is None else form.format(value * times)


def _span(trial: Trial) -> str:
    if trial.run_low_s is None or trial.run_high_s is None:
        return "-"
    return "run once" if trial.rounds == 1 else f"{_brief(trial.run_low_s)}-{_brief(trial.run_high_s)}"


def _brief(seconds: float) -> str:
    """Milliseconds to three digits, none of them an exponent's."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _build(trial: Trial) -> str:
    if trial.trace_s is None and trial.compile_s is None:
        return "-"
    return f"{_number(trial.trace_s, '{:.2f}')}+{_number(trial.compile_s, '{:.2f}')}"


def _calls(count: float | None) -> str:
    """Calls after which a plan's extra build time is paid for."""
    if count is None:
        return "-"
    return "at once" if count < 1 else f"{count:,.0f} call{'' if count == 1 else 's'}"


def verdict(trial: Trial, record: Record) -> str:
    """A word or two on what became of a trial."""
    if trial.plan == record.environment.get(FORCED):
        return "forced"
    if trial.plan == record.winner:
        return "chosen"
    if not trial.ok:
        return str(trial.status)
    if trial.plan == AS_WRITTEN:
        return "the baseline"
    if trial.ratio is None or trial.ratio_high is None:
        return trial.reason
    if trial.ratio_high < 1:
        return "faster"
    if trial.ratio_low is not None and trial.ratio_low > 1:
        return "slower"
    return f"unclear, {trial.ratio_low or trial.ratio:.2f}-{trial.ratio_high:.2f}"


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


# ---------------------------------------------------------------- what stands around it


def heading(record: Record) -> list[str]:
    """What was tuned, and where: two lines."""
    return [
        f"{record.function}  [{record.key.get('arguments', '')}]",
        f"on {record.key.get('device', '?')}, {record.key.get('host', '?')}; {record.key.get('versions', '?')}",
    ]


def decision(record: Record) -> str:
    """The plan in force, its gain and why, as one line."""
    why = f"({record.verdict.removeprefix(f'{record.winner} ')})"
    forced = record.environment.get(FORCED)
    if forced is None:
        return f"plan in force: {record.winner} {why}"
    if record.trial(record.winner) == Trial(record.winner):  # nothing but the force behind it
        return f"plan in force: {forced}, forced {why}"
    return f"plan in force: {forced}, forced; the remembered is {record.winner} {why}"


def below(record: Record) -> list[str]:
    """What to know of the table: its columns, what went wrong, what did not run, one line for each reason."""
    timed = any(trial.ratio is not None for trial in record.trials)
    weak = [WEAK] if "*" in record.key.get("arguments", "") else []
    bad = [t for t in record.trials if t.status in (Status.WRONG, Status.FAILED)]
    return [*(LEGEND if timed else ()), *weak, *(f"{t.status}: {t.plan}: {t.reason}" for t in bad), *_not_run(record)]


def _not_run(record: Record) -> list[str]:
    kinds: dict[str, list[Trial]] = {}
    for trial in record.trials:
        if trial.status is Status.SKIPPED:
            kinds.setdefault(_NUMBER.sub("#", _PLAN_WORD.sub("#", trial.reason)), []).append(trial)
    return [_left_out(trials) for trials in sorted(kinds.values(), key=len, reverse=True)]


def _left_out(trials: Sequence[Trial]) -> str:
    """One line on plans that did not run for one reason, whose figures may differ."""
    plans: list[str] = []
    length = 0
    for trial in trials:
        length += len(trial.plan) + 2
        if plans and length > _NAMED:
            break
        plans.append(trial.plan)
    more = f" and {len(trials) - len(plans)} more" if len(plans) < len(trials) else ""
    same = len({t.reason for t in trials}) == 1
    likewise = "" if same else "; the others likewise"
    count = f"{len(trials)} plan{'' if len(trials) == 1 else 's'}"
    return f"not run: {count}, {trials[0].reason}{likewise}: {', '.join(plans)}{more}"


def closing(record: Record) -> list[str]:
    """Why, in sentences, and what to know of the tuning: one a line."""
    return [*_why.sentences(record), *_tuned(record), *(f"note: {note}" for note in record.notes)]


def _tuned(record: Record) -> list[str]:
    """What the tuning took, and after how many calls that is paid for; nothing of a program that was not tuned."""
    if not record.spent_s and not record.budget_s:
        return [f"decided {record.created}"] if record.created else []
    taken = f"tuned {record.created} in {record.spent_s:.1f} s, budget {record.budget_s:g} s{_ended(record)}"
    return [taken + _paid(record)]


def _ended(record: Record) -> str:
    """How the budget and the end of the search go together."""
    over = record.spent_s > record.budget_s
    if record.interrupted:
        return ": it was interrupted, and goes on at the next call"
    if record.complete:
        return ": the last trial was let finish" if over else ""
    if over:
        return ": it ended the search, and the last trial was let finish"
    return ": what would not have fitted into it was not run"


def _paid(record: Record) -> str:
    written, winner = record.trial(AS_WRITTEN), record.trial(record.winner)
    if (
        written is None
        or winner is None
        or not written.run_s
        or winner.ratio is None
        or winner.ratio >= 1
        or not record.spent_s
    ):
        return ""
    calls = math.ceil(record.spent_s / ((1 - winner.ratio) * written.run_s))
    return f"; {calls:,} call{' pays' if calls == 1 else 's pay'} it back"


def text(record: Record) -> str:
    """The whole report."""
    shown = [table(record)] if any(trial != Trial(trial.plan) for trial in record.trials) else []
    blocks = (wrapped([*heading(record), decision(record)]), shown, wrapped(below(record)), wrapped(closing(record)))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def wrapped(lines: Iterable[str], columns: int = COLUMNS) -> list[str]:
    """Lines that fit a terminal; what goes on in the next one is set in."""
    wrapper = textwrap.TextWrapper(columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in wrapper.wrap(line)]
