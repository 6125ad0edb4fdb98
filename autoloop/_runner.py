"""What a process does with one plan at a time: lowers it, compiles it, runs and checks it, times it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from autoloop import _agree, _host, _machine
from autoloop._inputs import Inputs
from autoloop._plan import Plan
from autoloop._records import Status, Trial


@dataclass
class Ready:
    """A candidate on its way: lowered with `call` at hand, then compiled, run once and found to agree."""

    candidate: Any
    trial: Trial
    cost: _host.Cost
    call: tuple[Any, Any] | None = None
    first_s: float = 0.0
    later_s: float = math.inf  # of the fastest call after the first


class Runner:
    """Runs plans of one program in this process.

    Args:
        candidate_for: makes the candidate of a plan.
        inputs: the arguments to run on.
        tolerance: how far outputs may be from those of the function as written.
        max_bytes: of memory that a candidate may need, None for what is free.
        device: where it runs, for its free memory.
        clock: seconds, ever rising.
    """

    def __init__(
        self,
        candidate_for: Callable[[Plan], Any],
        inputs: Inputs,
        tolerance: _agree.Tolerance,
        max_bytes: int | None,
        device: Any,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._candidate_for, self._inputs, self._tolerance = candidate_for, inputs, tolerance
        self._max_bytes, self._device, self._clock = max_bytes, device, clock
        self._expected: list[np.ndarray[Any, Any]] | None = None
        self._shardings: list[Any] = []
        #: Candidates that were lowered at least.
        self.ready: dict[Plan, Ready] = {}

    def lower(self, plan: Plan) -> bytes | None:
        """Traces and lowers; a digest that equal programs share."""
        candidate, cost = self._candidate_for(plan), _host.Cost()
        args, kwargs = self._inputs.fresh()
        digest: bytes | None = candidate.lower(args, kwargs, cost)
        self.ready[plan] = Ready(candidate, Trial(str(plan)), cost, (args, kwargs))
        return digest

    def build(self, plan: Plan) -> Trial:
        """Compiles what was lowered; whether its memory can be had."""
        ready, cost = self.ready[plan], self.ready[plan].cost
        assert ready.call is not None
        ready.candidate.compile(*ready.call, cost)
        ready.trial = ready.trial.replace(trace_s=cost.trace_s, compile_s=cost.compile_s, peak_bytes=cost.peak_bytes)
        if not plan.as_written and (reason := self._too_big(cost.peak_bytes)):
            ready.trial = ready.trial.replace(status=Status.SKIPPED, reason=reason)
        return ready.trial

    def first(self, plan: Plan) -> tuple[Trial, float]:
        """The first run, checked against the function as written; and its seconds."""
        ready = self.ready[plan]
        assert ready.call is not None
        (args, kwargs), ready.call = ready.call, None
        start = self._clock()
        outs = jax.block_until_ready(ready.candidate(*args, **kwargs))
        first_s = self._clock() - start
        error, reason = self._check(outs)
        status = Status.WRONG if reason else Status.OK
        return ready.trial.replace(status=status, reason=reason, max_error=_finite(error)), first_s

    def sample(self, plan: Plan, calls: int) -> float:
        """Seconds of one of several calls after one more, donated arguments copied beforehand; or of a single one."""
        ready = self.ready[plan]
        sets = [self._inputs.fresh() for _ in range(min(calls, self._inputs.most_copies()))]
        if calls > 1:
            args, kwargs = self._inputs.fresh()
            jax.block_until_ready(ready.candidate(*args, **kwargs))  # last before the span: copies are programs too
        start = self._clock()
        for args, kwargs in sets:
            jax.block_until_ready(ready.candidate(*args, **kwargs))
        return (self._clock() - start) / len(sets)

    def let_go(self, plan: Plan) -> None:
        """Frees the program of a plan."""
        if plan in self.ready:
            self.ready[plan].candidate = None

    def _too_big(self, needs_bytes: int) -> str:
        free = _machine.free_bytes(self._device)
        allowed = min(b for b in (self._max_bytes, free, needs_bytes) if b is not None)
        if needs_bytes <= allowed:
            return ""
        return f"needs {needs_bytes:,} bytes of memory, {allowed:,} are allowed or free"

    def _check(self, outs: Any) -> tuple[float, str]:
        flat = jax.tree.leaves(outs)
        if self._expected is None:
            self._expected = _agree.to_host(flat)
            self._shardings = [getattr(value, "sharding", None) for value in flat]
            return 0.0, ""
        if reason := _agree.shardings_differ(self._shardings, flat):
            return math.inf, reason
        return _agree.disagreement(self._expected, flat, self._tolerance)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
