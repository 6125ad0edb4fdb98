import logging
import sys
import types

import pytest

from autoloop import _progress
from autoloop._progress import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Bar:
    made = []

    def __init__(self, **given):
        self.given, self.texts, self.closed, self.n = given, [], False, 0
        Bar.made.append(self)

    def set_postfix_str(self, text, refresh):
        self.texts.append(text)

    def close(self):
        self.closed = True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watched(monkeypatch):
    Bar.made = []
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    return Bar.made


def test_nothing_is_shown_of_a_quick_tuning(clock, watched):
    progress = Progress("f", 30.0, None, clock)
    clock.now = 1.9
    progress.step("0=inline", 1.0)
    progress.close()
    assert watched == []


def test_a_bar_shows_candidate_seconds_and_best(clock, watched):
    progress = Progress("f", 30.0, None, clock)
    clock.now = 5.0
    progress.step("0=inline", 0.5)
    clock.now = 40.0
    progress.step("0=python(1)", 1.0)
    progress.close()
    (bar,) = watched
    assert bar.given["desc"] == "tuning f"
    assert bar.texts == ["best 2.00x, trying 0=inline", "nothing faster yet, trying 0=python(1)"]
    assert bar.n == 30.0
    assert bar.closed


def test_wanted_shows_from_the_start_and_unwanted_never(clock, watched):
    Progress("f", 30.0, True, clock).step("p", 1.0)
    assert len(watched) == 1
    silent = Progress("f", 30.0, False, clock)
    clock.now = 100.0
    silent.step("p", 1.0)
    assert len(watched) == 1


def test_the_log_is_used_where_nobody_watches(clock, monkeypatch, caplog):
    monkeypatch.setattr(_progress, "_tqdm", lambda: None)
    progress = Progress("f", 30.0, None, clock)
    with caplog.at_level(logging.INFO, "autoloop"):
        for now in (3.0, 11.0, 12.0, 22.0):
            clock.now = now
            progress.step("0=inline", 0.5)
    assert [r.getMessage() for r in caplog.records] == [
        "tuning f: 11 of 30 s, best 2.00x, trying 0=inline",
        "tuning f: 22 of 30 s, best 2.00x, trying 0=inline",
    ]


def test_without_tqdm_or_a_terminal_there_is_no_bar(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert _progress._tqdm() is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert _progress._tqdm() is None
