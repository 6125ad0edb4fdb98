"""Trials in several processes at once: what one process measures, all of them run at the same moment.

A program with collectives runs only if all processes run it. The leader searches; each thing that it
has built, run or timed is a line that the others follow with runners of their own, and what counts is
the slowest process's time and the worst one's fate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from autoloop._plan import Plan
from autoloop._records import Status, Trial
from autoloop._runner import Runner
from autoloop._together import Talk

T = TypeVar("T")

#: A timed span is at least this long: processes begin it some tenths of a millisecond apart.
_SPAN_S = 0.02
#: Fields of a trial that a vote holds; of numbers the largest counts.
_NUMBERS = ("trace_s", "compile_s", "peak_bytes", "max_error")


class Leader:
    """The crew of the process that leads: has the others do what it does, and merges.

    Args:
        talk: with the other processes.
        wait_s: seconds that one step may take in the slowest process.
    """

    def __init__(self, talk: Talk, wait_s: float) -> None:
        self._talk, self._wait_s = talk, wait_s
        self._seen_s: dict[Plan, float] = {}
        self._dropped: list[str] = []
        #: What the record says of it.
        self.note = "timed in all processes at once; the times are the slowest process's"

    def begin(self, shortened: bool) -> None:
        """Has the others set up their runners: of the program last timed, or on the whole one."""
        self.do("begin", lambda: None, shortened=shortened)

    def time(self, share: float, own: Callable[[], float]) -> float:
        """Seconds of a call of the program shortened to a share."""
        mine, votes = self.do("time", own, share=share)
        return max([mine, *(_seconds(v) for v in votes.values())])

    def build(self, plan: Plan, own: Callable[[], Trial]) -> Trial:
        """Builds a plan in all processes."""
        mine, votes = self.do("build", own, plan=str(plan))
        return _merged(mine, votes)

    def first(self, plan: Plan, own: Callable[[], tuple[Trial, float]]) -> tuple[Trial, float]:
        """Runs and checks a plan in all processes."""
        (trial, first_s), votes = self.do("first", own, plan=str(plan))
        trial = _merged(trial, votes)
        return trial, max([first_s, *(_seconds(v) for v in votes.values())]) if trial.ok else first_s

    def sample(self, plan: Plan, calls: int, own: Callable[[int], float]) -> float:
        """Seconds of a call in the slowest process."""
        if plan in self._seen_s:
            calls = max(calls, math.ceil(_SPAN_S / max(self._seen_s[plan], 1e-7)))
        mine, votes = self.do("sample", lambda: own(calls), plan=str(plan), calls=calls)
        self._seen_s[plan] = max([mine, *(_seconds(v) for v in votes.values())])
        return self._seen_s[plan]

    def let_go(self, plan: Plan) -> None:
        """Has the others free a plan's program, with the next line."""
        self._dropped.append(str(plan))

    def do(self, what: str, own: Callable[[], T], **how: Any) -> tuple[T, dict[int, dict[str, Any]]]:
        """Has the others do something while this process does its own; (its own result, their votes).

        Raises:
            Exception: what `own` raises, once the others are done.
            Stopped: some process gave up.
        """
        drop, self._dropped = self._dropped, []
        self._talk.post(json.dumps({"do": what, "drop": drop, **how}))
        try:
            mine = own()
        except Exception:
            self._talk.gather(self._wait_s)
            raise
        return mine, {rank: json.loads(vote) for rank, vote in self._talk.gather(self._wait_s).items()}


def _seconds(vote: Mapping[str, Any]) -> float:
    if "seconds" not in vote:
        raise RuntimeError(f"another process failed: {vote.get('reason')}")
    return float(vote["seconds"])


def _merged(mine: Trial, votes: Mapping[int, Mapping[str, Any]]) -> Trial:
    """This process's trial, made worse by what the others say."""
    changes: dict[str, Any] = {}
    for name in _NUMBERS:
        known = [v for v in (getattr(mine, name), *(vote.get(name) for vote in votes.values())) if v is not None]
        changes[name] = max(known, default=None)
    for rank, vote in sorted(votes.items()):
        if mine.ok and vote["status"] != Status.OK:
            changes |= {"status": Status(vote["status"]), "reason": f"process {rank}: {vote['reason']}"}
            break
    return mine.replace(**changes)


# ---------------------------------------------------------------- following


class Follower:
    """Does what the leader's lines say.

    Args:
        talk: with the leader.
        wait_s: seconds to wait for a line.
        runner: makes what runs plans: of the program last timed, or for the whole one.
        time_short: builds the program shortened to a share and times it.
    """

    def __init__(
        self, talk: Talk, wait_s: float, runner: Callable[[bool], Runner], time_short: Callable[[float], float]
    ) -> None:
        self._talk, self._wait_s = talk, wait_s
        self._make_runner, self._time_short = runner, time_short
        self.runner: Runner | None = None
        self.shortened = False

    def until(self, last: str) -> dict[str, Any]:
        """Follows until a line that says to do `last`, and returns that line.

        Raises:
            Stopped: some process gave up.
        """
        while True:
            line: dict[str, Any] = json.loads(self._talk.next(self._wait_s))
            if line["do"] == last:
                return line
            try:
                vote = self._obey(line)
            except Exception as error:
                vote = {"status": Status.FAILED, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
            self._talk.vote(json.dumps(vote))

    def _obey(self, line: Mapping[str, Any]) -> dict[str, Any]:
        if line["do"] == "time":
            return {"seconds": self._time_short(line["share"])}
        if line["do"] == "begin":
            self.shortened = line["shortened"]
            self.runner = self._make_runner(self.shortened)
            return {}
        runner = self.runner
        assert runner is not None
        for dropped in line["drop"]:
            runner.let_go(Plan.parse(dropped))
        plan = Plan.parse(line["plan"])
        if line["do"] == "sample":
            return {"seconds": runner.sample(plan, line["calls"])}
        if line["do"] == "build":
            runner.lower(plan)
            return _vote(runner.build(plan))
        trial, first_s = runner.first(plan)
        return {**_vote(trial), "seconds": first_s}


def _vote(trial: Trial) -> dict[str, Any]:
    return {name: getattr(trial, name) for name in ("status", "reason", *_NUMBERS)}
