"""What every test runs in: a store of its own, none of the user's settings, and quick tunings on request."""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import fakes
import pytest

import autoloop
from autoloop import _stores

_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def no_settings_of_the_user():
    """None of the user's settings; nor those of our own plugin, which turns tuning off where it is installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AUTOLOOP_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(autouse=True)
def own_store(stores, monkeypatch):
    """The folder of this test's store, which nothing has made yet."""
    for name in [name for name in os.environ if name.startswith("AUTOLOOP_")]:
        monkeypatch.delenv(name)
    folder = stores / str(next(_numbers))
    monkeypatch.setenv("AUTOLOOP_CACHE_DIR", str(folder))
    yield folder
    for store in _stores.stores.values():
        store.close()
    _stores.stores.clear()


@pytest.fixture
def tunings(monkeypatch):
    """Names of the functions tuned so far, one entry a tuning."""
    return fakes.count_tunings(monkeypatch.setattr)


@pytest.fixture
def quick(monkeypatch):
    """Trials run each plan once, and each is said to take half the time as written."""
    fakes.make_quick(monkeypatch.setattr)


def _start(running, script, environment):
    path = [str(Path(autoloop.__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running.append(process)
    return process


def _finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


@contextlib.contextmanager
def _children():
    """Processes that the caller appends; those that still run are ended."""
    running = []
    yield running
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def start_python():
    """Starts a script in a Python of its own, which sees this very package."""
    with _children() as running:
        yield lambda script, **environment: _start(running, script, environment)


@pytest.fixture
def python(start_python):
    """Runs a script in a Python of its own and returns what it printed."""
    return lambda script, **environment: _finish(start_python(script, **environment))


@pytest.fixture(scope="module")
def module_python(stores):
    """As `python`, for fixtures of a module; its store is empty at first."""
    store = str(stores / str(next(_numbers)))
    with _children() as running:
        yield lambda script, **env: _finish(_start(running, script, {"AUTOLOOP_CACHE_DIR": store, **env}))
