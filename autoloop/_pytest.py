"""The pytest plugin of autoloop: tuning is off in a suite unless it is asked for, and fixtures.

Pytest's start-up does not import jax: the package's names are found when they are asked for, and the
fixtures import `autoloop.testing` only when a test uses one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_NAME = "AUTOLOOP_MODE"
_MODES = ("tune", "cached", "strict", "off")
_before = pytest.StashKey[str | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--autoloop-mode`."""
    parser.getgroup("autoloop").addoption(
        "--autoloop-mode",
        choices=_MODES,
        help=f"the mode of autoloop in this run; without it ${_NAME}, and without that off: nothing is tuned",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Sets the mode for this process and those it starts: the option, else the environment, else off."""
    config.stash[_before] = os.environ.get(_NAME)
    os.environ[_NAME] = config.getoption("--autoloop-mode") or os.environ.get(_NAME) or "off"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leaves the environment as it was."""
    before = config.stash.get(_before, None)
    if before is None:
        os.environ.pop(_NAME, None)
    else:
        os.environ[_NAME] = before


def pytest_report_header(config: pytest.Config) -> str:
    """Says in which mode the run is."""
    return f"autoloop: mode {os.environ[_NAME]} (change it with --autoloop-mode)"


@pytest.fixture
def autoloop_no_tuning() -> Iterator[None]:
    """Decorated functions are plain `jax.jit` in this test."""
    from autoloop import testing

    with testing.no_tuning():
        yield


@pytest.fixture
def autoloop_isolated_store() -> Iterator[Path]:
    """The folder of a store that only this test uses."""
    from autoloop import testing

    with testing.isolated_store() as folder:
        yield folder


@pytest.fixture
def autoloop_forced() -> Iterator[Callable[..., None]]:
    """`autoloop_forced(plan)`: decorated functions run this plan until the test ends."""
    from autoloop import testing

    yield from _until_the_end(testing.forced)


@pytest.fixture
def autoloop_fake_timings() -> Iterator[Callable[..., None]]:
    """`autoloop_fake_timings({plan_text: seconds})`: tunings find these times until the test ends."""
    from autoloop import testing

    yield from _until_the_end(testing.fake_timings)


@pytest.fixture
def autoloop_distorted_timings() -> Iterator[Callable[..., None]]:
    """`autoloop_distorted_timings(seed)`: tunings find times that are drawn, until the test ends."""
    from autoloop import testing

    yield from _until_the_end(testing.distorted_timings)


@pytest.fixture
def autoloop_assert_forms_agree() -> Callable[..., Any]:
    """`autoloop.testing.assert_forms_agree`."""
    from autoloop import testing

    return testing.assert_forms_agree


def _until_the_end(block: Callable[..., contextlib.AbstractContextManager[Any]]) -> Iterator[Callable[..., None]]:
    """A function that enters `block`, which is left when the test ends."""
    with contextlib.ExitStack() as stack:

        def enter(*args: Any, **kwargs: Any) -> None:
            stack.enter_context(block(*args, **kwargs))

        yield enter
