"""A record as HTML for notebooks: the report's table, the winner marked, and its sentences."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from autoloop import _report
from autoloop._records import Record, Trial

#: Reads on light and on dark pages: the page's own colours, lines and marks by opacity.
_STYLE = """
.autoloop table {border-collapse: collapse; font-size: 0.9em; white-space: nowrap}
.autoloop th, .autoloop td {text-align: right; padding: 0.15em 0.6em; border-bottom: 1px solid rgba(128,128,128,0.25)}
.autoloop th:first-child, .autoloop td:first-child, .autoloop th:last-child, .autoloop td:last-child {text-align: left}
.autoloop td:first-child {font-family: monospace}
.autoloop tr.chosen td {font-weight: bold; background: rgba(70,160,70,0.2)}
.autoloop tr.unranked td {opacity: 0.6}
.autoloop p {margin: 0.3em 0; max-width: 60em}
.autoloop .table {overflow-x: auto}
.autoloop .small {font-size: 0.85em; opacity: 0.75}
"""


def _row(cells: tuple[str, ...], kind: str, tag: str = "td") -> str:
    inner = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f'<tr class="{kind}">{inner}</tr>' if kind else f"<tr>{inner}</tr>"


def _kind(trial: Trial, record: Record) -> str:
    if trial.plan == record.winner:
        return "chosen"
    return "" if trial.ok and trial.ratio is not None else "unranked"


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def html(record: Record) -> str:
    """The whole report, as one `div`; every text of the record is escaped."""
    pairs = zip(_report.rows(record), _report.ranked(record.trials), strict=True)
    rows = [_row(cells, _kind(trial, record)) for cells, trial in pairs]
    small = [*_report.letters_text(record), *_report.below(record)]
    head = _row(_report.HEADER, "", "th")
    name, *where = map(escape, _report.heading(record))
    return (
        f'<div class="autoloop"><style>{_STYLE}</style><p><b>{name}</b><br>{"<br>".join(where)}</p>'
        f"<p><b>{escape(_report.decision(record))}</b></p>"
        f'<div class="table"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<div class="small">{_paragraphs(small)}</div>{_paragraphs(_report.closing(record))}</div>'
    )
