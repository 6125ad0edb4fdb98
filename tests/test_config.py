"""Which setting is in force, where it came from, and what is refused."""

import asyncio
import dataclasses
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autoloop import _config
from autoloop._config import Settings, settings
from autoloop._plan import Plan
from autoloop._records import AutoloopWarning


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AUTOLOOP_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def same_log_level():
    logger = logging.getLogger("autoloop")
    level = logger.level
    yield
    logger.setLevel(level)


# ---------------------------------------------------------------- the environment


def test_nothing_is_set():
    assert _config.from_environment() == _config.current() == Settings()
    assert Settings() == Settings("tune", None, None, (), None, None)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("AUTOLOOP_MODE", "tune", "mode", "tune"),
        ("AUTOLOOP_MODE", "cached", "mode", "cached"),
        ("AUTOLOOP_MODE", "strict", "mode", "strict"),
        ("AUTOLOOP_MODE", "off", "mode", "off"),
        ("AUTOLOOP_MODE", "", "mode", "tune"),
        ("AUTOLOOP_PLAN", "0=inline 0/0=unroll(2)", "plan", "0=inline 0/0=unroll(2)"),
        ("AUTOLOOP_PLAN", "", "plan", None),
        ("AUTOLOOP_CACHE_DIR", "/some/where", "cache_dir", "/some/where"),
        ("AUTOLOOP_CACHE_DIR", "", "cache_dir", None),
        ("AUTOLOOP_WISDOM", "one.json", "wisdom", ("one.json",)),
        ("AUTOLOOP_WISDOM", os.pathsep.join(["b", "a"]), "wisdom", ("b", "a")),
        ("AUTOLOOP_WISDOM", os.pathsep.join(["", "a", "", "b", ""]), "wisdom", ("a", "b")),
        ("AUTOLOOP_WISDOM", "", "wisdom", ()),
        ("AUTOLOOP_BUDGET_S", "12.5", "budget_s", 12.5),
        ("AUTOLOOP_BUDGET_S", " 3 ", "budget_s", 3.0),
        ("AUTOLOOP_BUDGET_S", "0", "budget_s", 0.0),
        ("AUTOLOOP_BUDGET_S", "", "budget_s", None),
        ("AUTOLOOP_LOG", "debug", "log", "debug"),
        ("AUTOLOOP_LOG", "INFO", "log", "info"),
        ("AUTOLOOP_LOG", "warning", "log", "warning"),
        ("AUTOLOOP_LOG", "error", "log", "error"),
        ("AUTOLOOP_LOG", "", "log", None),
    ],
)
def test_good_environment_values(monkeypatch, name, text, field, value):
    monkeypatch.setenv(name, text)
    assert _config.from_environment() == dataclasses.replace(Settings(), **{field: value})
    assert _config.current() == _config.from_environment()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("AUTOLOOP_MODE", "on", "AUTOLOOP_MODE must be one of tune, cached, strict, off; got 'on'"),
        ("AUTOLOOP_MODE", "Off", "AUTOLOOP_MODE must be one of tune, cached, strict, off; got 'Off'"),
        ("AUTOLOOP_BUDGET_S", "long", "AUTOLOOP_BUDGET_S must be a number of seconds, at least 0; got 'long'"),
        ("AUTOLOOP_BUDGET_S", "-1", "AUTOLOOP_BUDGET_S must be a number of seconds, at least 0; got '-1'"),
        ("AUTOLOOP_BUDGET_S", "nan", "AUTOLOOP_BUDGET_S must be a number of seconds, at least 0; got 'nan'"),
        ("AUTOLOOP_BUDGET_S", "inf", "AUTOLOOP_BUDGET_S must be a number of seconds, at least 0; got 'inf'"),
        ("AUTOLOOP_BUDGET_S", "30s", "AUTOLOOP_BUDGET_S must be a number of seconds, at least 0; got '30s'"),
        ("AUTOLOOP_LOG", "loud", "AUTOLOOP_LOG must be one of debug, info, warning, error; got 'loud'"),
        ("AUTOLOOP_LOG", "10", "AUTOLOOP_LOG must be one of debug, info, warning, error; got '10'"),
    ],
)
def test_bad_environment_values(monkeypatch, name, text, message):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match="must be") as caught:
        _config.from_environment()
    assert str(caught.value) == message


def test_a_bad_environment_leaves_no_setting_behind(monkeypatch):
    monkeypatch.setenv("AUTOLOOP_LOG", "loud")
    with pytest.raises(ValueError, match="AUTOLOOP_LOG"), settings(mode="off"):
        pytest.fail("the block must not run")
    assert not _config.overridden()


UNKNOWN = (
    "autoloop: the environment variable {} has no effect; autoloop reads AUTOLOOP_MODE, AUTOLOOP_PLAN, "
    "AUTOLOOP_CACHE_DIR, AUTOLOOP_WISDOM, AUTOLOOP_BUDGET_S, AUTOLOOP_LOG{}"
)


@pytest.fixture
def fresh_process():
    _config._warn_of_unknown_variables.cache_clear()
    yield
    _config._warn_of_unknown_variables.cache_clear()


@pytest.mark.parametrize(
    ("name", "near"),
    [("AUTOLOOP_BUDGET", "; did you mean 'AUTOLOOP_BUDGET_S'?"), ("AUTOLOOP_XYZZY_PLUGH_QUUX", "")],
)
def test_a_variable_that_is_none_of_the_six_is_warned_of_once(monkeypatch, name, near, fresh_process):
    monkeypatch.setenv(name, "3")
    with pytest.warns(AutoloopWarning) as caught:
        assert [_config.current(), _config.current()] == [Settings(), Settings()]
    assert [str(warning.message) for warning in caught] == [UNKNOWN.format(name, near)]


def test_a_warning_that_is_an_error_comes_again(monkeypatch, fresh_process):
    monkeypatch.setenv("AUTOLOOP_MODUS", "off")
    for _ in range(2):
        with pytest.raises(AutoloopWarning, match="AUTOLOOP_MODUS has no effect"):
            _config.current()


def test_settings_know_near_misses():
    with pytest.raises(TypeError, match=r"got budget; did you mean 'budget_s'\?$"), settings(budget=3):
        pytest.fail("the block must not run")


# ---------------------------------------------------------------- the context manager


def test_settings_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE", "cached")
    monkeypatch.setenv("AUTOLOOP_BUDGET_S", "5")
    with settings(mode="off", budget_s=None) as found:
        assert (found.mode, found.budget_s) == ("off", None)
    assert (_config.current().mode, _config.current().budget_s) == ("cached", 5)


def test_settings_nest():
    assert not _config.overridden()
    with settings(mode="off", budget_s=1) as outer:
        assert (outer.mode, outer.budget_s) == ("off", 1)
        with settings(mode="strict", plan="0=inline") as inner:
            assert (inner.mode, inner.budget_s, inner.plan) == ("strict", 1, "0=inline")
            assert _config.current() == inner
        assert _config.current() == outer
        assert _config.overridden()
    assert not _config.overridden()
    assert _config.current() == Settings()


def test_settings_end_when_the_block_raises():
    with pytest.raises(KeyError), settings(mode="off"):
        raise KeyError
    assert not _config.overridden()


def test_settings_yield_what_is_in_force(monkeypatch):
    monkeypatch.setenv("AUTOLOOP_PLAN", "0=inline")
    with settings(mode="off") as found:
        assert found == _config.current() == Settings(mode="off", plan="0=inline")


def test_settings_without_settings_count_as_settings():
    with settings() as found:
        assert found == Settings()
        assert _config.overridden()


def test_settings_stay_in_their_thread():
    seen, entered, read = [], threading.Event(), threading.Event()

    def other():
        entered.wait(10)
        seen.append((_config.overridden(), _config.current().mode))
        with settings(mode="strict"):
            seen.append((_config.overridden(), _config.current().mode))
            read.set()

    thread = threading.Thread(target=other)
    thread.start()
    with settings(mode="off"):
        entered.set()
        assert read.wait(10)
        assert _config.current().mode == "off"
    thread.join()
    assert seen == [(False, "tune"), (True, "strict")]


def test_settings_stay_in_their_task():
    async def task(mode, turn, other):
        with settings(mode=mode):
            other.set()
            await turn.wait()
            return _config.current().mode

    async def both():
        turns = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(task("off", *turns), task("strict", *turns[::-1]))

    assert asyncio.run(both()) == ["off", "strict"]
    assert not _config.overridden()


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"plan": Plan.parse("0/0=unroll(2) 0=inline")}, "plan", "0=inline 0/0=unroll(2)"),
        ({"plan": "0=inline"}, "plan", "0=inline"),
        ({"plan": None}, "plan", None),
        ({"plan": ""}, "plan", None),
        ({"cache_dir": Path("/some/where")}, "cache_dir", str(Path("/some/where"))),
        ({"cache_dir": None}, "cache_dir", None),
        ({"cache_dir": ""}, "cache_dir", None),
        ({"wisdom": "one.json"}, "wisdom", ("one.json",)),
        ({"wisdom": Path("one.json")}, "wisdom", ("one.json",)),
        ({"wisdom": ["b", Path("a")]}, "wisdom", ("b", "a")),
        ({"wisdom": ()}, "wisdom", ()),
        ({"budget_s": 3}, "budget_s", 3.0),
        ({"budget_s": 0}, "budget_s", 0.0),
        ({"log": "Debug"}, "log", "debug"),
        ({"log": None}, "log", None),
    ],
)
def test_values_of_settings(given, field, value):
    with settings(**given) as found:
        assert getattr(found, field) == value
        assert type(getattr(found, field)) is type(value)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"mode": "on"}, ValueError, "settings(mode=...) must be one of tune, cached, strict, off; got 'on'"),
        ({"mode": None}, ValueError, "settings(mode=...) must be one of tune, cached, strict, off; got None"),
        (
            {"budget_s": -1},
            ValueError,
            "settings(budget_s=...) must be a finite number of seconds, at least 0; got -1",
        ),
        (
            {"budget_s": float("nan")},
            ValueError,
            "settings(budget_s=...) must be a finite number of seconds, at least 0; got nan",
        ),
        (
            {"budget_s": float("inf")},
            ValueError,
            "settings(budget_s=...) must be a finite number of seconds, at least 0; got inf",
        ),
        (
            {"budget_s": "30"},
            TypeError,
            "settings(budget_s=...) must be a number of seconds, at least 0; got '30'",
        ),
        (
            {"budget_s": True},
            TypeError,
            "settings(budget_s=...) must be a number of seconds, at least 0; got True",
        ),
        (
            {"log": "loud"},
            ValueError,
            "settings(log=...) must be one of debug, info, warning, error; got 'loud'",
        ),
        ({"log": 10}, ValueError, "settings(log=...) must be one of debug, info, warning, error; got '10'"),
        (
            {"modes": "off", "budget": 3},
            TypeError,
            "settings() knows mode, plan, cache_dir, wisdom, budget_s, log; got budget, modes; "
            "did you mean 'budget_s'?",
        ),
    ],
)
def test_settings_that_are_refused(given, error, message):
    with pytest.raises(error) as caught, settings(**given):
        pytest.fail("the block must not run")
    assert str(caught.value) == message
    assert not _config.overridden()


def test_an_override_asks_neither_the_environment_nor_for_sense(monkeypatch):
    monkeypatch.setenv("AUTOLOOP_MODE", "nonsense")
    with _config.override(mode="no mode"):
        assert _config.overridden()
    assert not _config.overridden()


# ---------------------------------------------------------------- checks that options share


@pytest.mark.parametrize("value", [0, 0.0, 1, 2.5, 10**6])
def test_seconds(value):
    seconds = _config.check_seconds("budget_s", value)
    assert (seconds, type(seconds)) == (value, float)


@pytest.mark.parametrize("value", ["1", None, [1], True, 1j])
def test_no_number_of_seconds(value):
    with pytest.raises(TypeError) as caught:
        _config.check_seconds("budget_s", value)
    assert str(caught.value) == f"budget_s must be a number of seconds, at least 0; got {value!r}"


@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), -float("inf")])
def test_a_number_that_no_duration_has(value):
    with pytest.raises(ValueError, match="must be a finite number") as caught:
        _config.check_seconds("budget_s", value)
    assert str(caught.value) == f"budget_s must be a finite number of seconds, at least 0; got {value!r}"


# ---------------------------------------------------------------- logging and folders


def test_the_log_level_is_left_alone_unless_set(monkeypatch):
    logger = logging.getLogger("autoloop")
    logger.setLevel(logging.CRITICAL)
    _config.current()
    assert logger.level == logging.CRITICAL
    monkeypatch.setenv("AUTOLOOP_LOG", "debug")
    _config.current()
    assert logger.level == logging.DEBUG
    assert logger.handlers == []


def test_the_folder_that_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _config.cache_dir(Settings(cache_dir="/some/where")) == Path("/some/where")
    assert _config.cache_dir(Settings(cache_dir="~/mine")) == tmp_path / "mine"
    assert list(tmp_path.iterdir()) == [], "asking makes no folder"


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("linux", {}, ".cache/autoloop"),
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg"}, "xdg/autoloop"),
        ("linux", {"XDG_CACHE_HOME": ""}, ".cache/autoloop"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache/autoloop"),
        ("freebsd14", {}, ".cache/autoloop"),
        ("darwin", {"XDG_CACHE_HOME": "{home}/xdg"}, "Library/Caches/autoloop"),
        ("win32", {"LOCALAPPDATA": "{home}/local"}, "local/autoloop"),
        ("win32", {"LOCALAPPDATA": ""}, "AppData/Local/autoloop"),
    ],
)
def test_the_folder_of_the_platform(monkeypatch, tmp_path, platform, environment, folder):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    assert _config.cache_dir(Settings()) == tmp_path / folder


def test_a_level_that_is_asked_for_shows_where_no_logging_is_set_up(tmp_path):
    code = (
        "import logging, autoloop\n"
        "from autoloop import _config\n"
        "assert not logging.getLogger('autoloop').handlers\n"
        "_config.current()\n"
        "logging.getLogger('autoloop').info('seen')\n"
    )
    for level, seen in (("info", True), ("", False)):
        environment = {**os.environ, "AUTOLOOP_LOG": level, "AUTOLOOP_CACHE_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert ("autoloop: seen" in done.stderr) == seen
