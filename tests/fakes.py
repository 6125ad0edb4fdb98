"""Stand-ins that make tunings quick, alike on every machine, and countable; scripts in tests use them too."""

import math

from autoloop import _machine, _timing, _trial, _tune


def make_quick(patch=setattr):
    """From now on trials run each plan once and know no clock and no load of the machine."""
    patch(_timing, "race", race)
    patch(_trial, "_ABANDON", math.inf)
    patch(_machine, "calibrate", lambda *args: 0.0)
    patch(_machine, "busy_note", lambda *args: "")


def race(baseline, candidates, *args, **kwargs):
    """Each plan runs once and is said to take half the time as written.

    With one legal plan beside as written (`forms=["inline"]` and one loop), that plan wins.
    """
    for sampler in (baseline, *(sampler for sampler, _ in candidates)):
        sampler(1)
    return [_exactly(0.5) for _ in candidates], _exactly(1.0)


def _exactly(seconds):
    interval = _timing.Interval(seconds, seconds, seconds)
    return _timing.Timing(interval, interval, rounds=6)


def count_tunings(patch=setattr):
    """From now on a name for each tuning: that of the function tuned."""
    found, real = [], _tune.tune

    def counted(request):
        found.append(request.program.function.name)
        return real(request)

    patch(_tune, "tune", counted)
    return found
