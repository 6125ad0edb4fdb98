"""A record as HTML and as a picture."""

import html
import sys
from html.parser import HTMLParser

import pytest

from autoloop import Record, Status, Trial, _plot


def trial(plan, ratio, build=0.1):
    times = {"run_s": 1e-3 * ratio, "run_low_s": 0.9e-3 * ratio, "run_high_s": 1.2e-3 * ratio}
    ratios = {"ratio": ratio, "ratio_low": 0.95 * ratio, "ratio_high": 1.05 * ratio}
    return Trial(plan, trace_s=0.01, compile_s=build, rounds=9, **times, **ratios)


def record(*more, winner="0=inline"):
    trials = (trial("as-written", 1.0), trial("0=inline", 0.5, 0.4), *more)
    return Record("m.<f>", {"arguments": "f32[3]", "device": "cpu x1"}, winner, trials, "because a < b & c")


FAILED = Trial("0=eager", Status.FAILED, "<script>alert('x')</script>" + " and so on" * 20)


class Rows(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.kinds = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.kinds.append(dict(attrs).get("class", ""))
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.tags[-1] in ("td", "th") and self.rows:
            self.rows[-1][-1] += data


def test_html_holds_the_table_with_the_winner_marked():
    seen = Rows(record(FAILED)._repr_html_())
    assert [row[0] for row in seen.rows] == ["plan", "0=inline", "as-written", "0=eager"]
    assert seen.kinds == ["", "chosen", "", "unranked"]
    assert seen.rows[0][-2:] == ["pays after", "verdict"]


def test_html_escapes_every_text_and_cuts_none():
    text = record(FAILED)._repr_html_()
    assert "<script>" not in text
    assert "m.&lt;f&gt;" in text
    assert "because a &lt; b &amp; c" in text
    assert Rows(text).rows[-1][-1] == "failed"
    assert text.count(f"failed: 0=eager: {html.escape(FAILED.reason)}") == 1


def test_the_text_cuts_no_reason():
    assert " ".join(str(record(FAILED)).split()).count(FAILED.reason) == 1


@pytest.mark.parametrize(
    ("calls", "shown"), [(None, "-"), (0.0, "at once"), (1.0, "1 call"), (12345.0, "12,345 calls")]
)
def test_break_even_calls_have_a_column(calls, shown):
    seen = Rows(record(trial("0=unroll(2)", 0.7).replace(breakeven_calls=calls))._repr_html_())
    row = next(row for row in seen.rows if row[0] == "0=unroll(2)")
    assert row[-2] == shown


# ---------------------------------------------------------------- the picture


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def test_the_picture_holds_every_plan_that_ran(plt, tmp_path):
    path = tmp_path / "record.png"
    figure = record(FAILED, trial("0=unroll(2)", 3.0)).plot(str(path))
    left, right = figure.axes
    assert [label.get_text() for label in right.get_yticklabels()] == ["0=inline  1", "as-written  2", "0=unroll(2)  3"]
    assert [text.get_text() for text in left.texts] == ["1", "2", "3"]
    assert {text.get_text() for text in left.get_legend().get_texts()} == {"chosen", "as written"}
    assert path.read_bytes().startswith(b"\x89PNG")


def test_of_many_plans_the_slowest_are_left_out_but_not_the_baseline(plt):
    many = [trial(f"0=unroll({k})", 0.5 + k / 1000) for k in range(2, 60)]
    figure = record(*many).plot()
    labels = [label.get_text().split()[0] for label in figure.axes[1].get_yticklabels()]
    assert len(labels) == 30
    assert {"as-written", "0=inline"} <= set(labels)
    assert "30 slowest are left out" in figure.get_suptitle()


def test_there_is_nothing_to_draw_of_an_untuned_record():
    untuned = Record("m.f", {}, "as-written", (Trial("as-written", reason="no loop"),), "not tuned: no loop")
    with pytest.raises(ValueError, match=r"nothing to draw: no plan was timed \(not tuned: no loop\)"):
        untuned.plot()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'autoloop\[plot\]'"):
        record().plot()


@pytest.mark.parametrize("spread", [4.0, 12.0, 100.0])
def test_numbers_cover_neither_each_other_nor_dots(spread):
    points = [(spread * (k % 3), spread * (k // 3)) for k in range(9)]
    offsets = _plot.place(points, [str(k) for k in range(1, 10)])
    boxes = [_plot._box(x + dx, y + dy, 5.0) for (x, y), (dx, dy) in zip(points, offsets, strict=True)]
    for i, box in enumerate(boxes):
        assert not any(_plot._overlap(box, other) for other in boxes[:i])
        if spread > 10:
            assert not any(_plot._overlap(box, (x - 3, y - 3, x + 3, y + 3)) for x, y in points)
