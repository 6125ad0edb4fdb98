"""For users' tests: that forms agree, that nothing is tuned, and tunings with a known outcome.

Each context manager holds for the thread (or task) that enters it. The pytest plugin that ships with
autoloop turns tuning off for a whole suite and offers each of these as a fixture.
"""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoloop import _choose, _config, _stores, _tune
from autoloop._config import Settings, settings
from autoloop._forms_agree import assert_forms_agree
from autoloop._plan import Plan
from autoloop._plans import check_plan
from autoloop._records import AS_WRITTEN, AutoloopWarning, Record, Status, Trial

__all__ = [
    "assert_forms_agree",
    "distorted_timings",
    "fake_timings",
    "forced",
    "isolated_store",
    "no_tuning",
]

#: Seconds of a call as written where `fake_timings` does not say.
_AS_WRITTEN_S = 1.0
#: Drawn times lie between these ratios to as-written.
_DRAWN_RATIOS = (0.25, 4.0)
_DRAWN_AS_WRITTEN_S = 1e-3


# ---------------------------------------------------------------- settings for a block


@contextlib.contextmanager
def no_tuning() -> Iterator[Settings]:
    """Decorated functions are plain `jax.jit` inside the block: nothing is looked up, tuned or stored."""
    with settings(mode="off") as found:
        yield found


@contextlib.contextmanager
def isolated_store() -> Iterator[Path]:
    """A store of its own, empty at first and gone afterwards; wisdom files are not consulted.

    The mode stays as it is: where tuning is off, add `autoloop.settings(mode="tune")`.

    Yields:
        The folder of the store.
    """
    with tempfile.TemporaryDirectory(prefix="autoloop-", ignore_cleanup_errors=True) as made:
        folder = Path(made) / "store"
        try:
            with settings(cache_dir=folder, wisdom=()):
                yield folder
        finally:
            _stores.close_store(folder)


@contextlib.contextmanager
def forced(plan: str | Plan) -> Iterator[Settings]:
    """Decorated functions run `plan` inside the block, whatever is remembered; nothing is tuned.

    Args:
        plan: a `Plan` or its text, for example `"0=python(1)"`.

    Raises:
        TypeError: neither a plan nor a text.
        ValueError: not the text of a plan, or a form that does not exist.
        AutoloopWarning: from the call of a function that the plan does not fit; a test that
            forces a plan wants to know.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "autoloop: the forced plan does not fit", AutoloopWarning)
        with settings(mode="cached", plan=check_plan(plan)) as found:
            yield found


# ---------------------------------------------------------------- tunings with a known outcome


@contextlib.contextmanager
def _tuned_by(stand_in: Callable[[_tune.Request], _tune.Tuned]) -> Iterator[None]:
    """Tunings inside the block are done by `stand_in`; what it finds is forgotten afterwards."""
    token = _tune.stand_in.set(stand_in)
    try:
        with isolated_store(), settings(mode="tune", plan=None):
            yield
    finally:
        _tune.stand_in.reset(token)


@contextlib.contextmanager
def fake_timings(seconds: Mapping[str, float]) -> Iterator[None]:
    """Tunings inside the block find that plans take these times; nothing is compiled or timed for it.

    The winner follows by the usual rules, is dispatched to, and `report` shows the figures. Plans
    that are not named are not tried; a named one that does not fit a function is skipped there.
    Uses a store of its own.

    Args:
        seconds: of one call, by the text of the plan; `as-written` takes 1 s unless it is named.

    Raises:
        TypeError: a time that is no number.
        ValueError: not the text of a plan, a form that does not exist, or a time not above 0.

    Example:
        >>> import jax
        >>> import autoloop
        >>> from autoloop.testing import fake_timings
        >>> @autoloop.autoloop
        ... def halve(x):
        ...     return jax.lax.scan(lambda c, _: (c / 2, None), x, None, length=3)[0]
        >>> with fake_timings({"as-written": 2e-3, "0=inline": 1e-3}):
        ...     print(halve(8.0), halve.plan(8.0))
        1.0 0=inline
    """
    found = {AS_WRITTEN: _AS_WRITTEN_S}
    for text, value in seconds.items():
        found[str(check_plan(text))] = _positive(text, value)
    with _tuned_by(lambda request: _faked(request, found)):
        yield


def _positive(plan: str, value: Any) -> float:
    checked = _config.check_seconds(f"fake_timings: the time of {plan}", value)
    if checked == 0:
        raise ValueError(f"fake_timings: the time of {plan} must be above 0 seconds; got {value!r}")
    return checked


def _faked(request: _tune.Request, seconds: Mapping[str, float]) -> _tune.Tuned:
    """A tuning that found just these times."""
    base_s = seconds[AS_WRITTEN]
    trials = [_trial_of(request, text, s, s / base_s) for text, s in seconds.items()]
    finished = _choose.with_breakeven(trials)
    winner, verdict = _choose.choose(finished, request.options.rules)
    record = Record(
        function=request.program.function.name,
        key=dict(request.key),
        winner=winner.plan,
        trials=finished,
        verdict=verdict,
        budget_s=request.budget_s,
        expected_calls=request.options.expected_calls,
        created=_tune.now(),
        notes=("the times were made up by autoloop.testing",),
    )
    return _tune.Tuned(record, None)


def _trial_of(request: _tune.Request, text: str, run_s: float, ratio: float) -> Trial:
    plan = Plan.parse(text)
    if reason := request.program.why_not(plan) or _not_allowed(request, plan):
        return Trial(text, Status.SKIPPED, reason)
    return _timed(Trial(text, trace_s=0.0, compile_s=0.0, max_error=0.0), run_s, ratio)


def _not_allowed(request: _tune.Request, plan: Plan) -> str:
    return "" if request.options.allows(plan) else "the option forms does not allow it"


def _timed(trial: Trial, run_s: float, ratio: float) -> Trial:
    """The trial as if every round had shown the same."""
    return trial.replace(
        run_s=run_s,
        run_low_s=run_s,
        run_high_s=run_s,
        ratio=ratio,
        ratio_low=ratio,
        ratio_high=ratio,
        rounds=_choose.LEAST_ROUNDS,
    )


@contextlib.contextmanager
def distorted_timings(seed: int) -> Iterator[None]:
    """Tunings inside the block compile, run and check plans as ever, but their times are drawn.

    Any plan that agrees may win, the same one for the same seed (unless the budget ends the search):
    for tests that a program is right whatever is chosen on whatever machine. Uses a store of its own.

    Args:
        seed: of the times; each plan takes 0.25 to 4 times the time as written.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"distorted_timings: the seed must be an int; got {seed!r}")
    with _tuned_by(lambda request: _tune.trial_all(request, lambda trial: _drawn(trial, seed))):
        yield


def _drawn(trial: Trial, seed: int) -> Trial:
    if not trial.ok or trial.run_s is None:
        return trial
    low, high = map(math.log, _DRAWN_RATIOS)
    dice = random.Random(f"{seed} {trial.plan}")
    ratio = 1.0 if trial.plan == AS_WRITTEN else math.exp(dice.uniform(low, high))
    return _timed(trial, ratio * _DRAWN_AS_WRITTEN_S, ratio)
