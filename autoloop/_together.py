"""One conversation between the processes of a program, in which they agree or all give up.

Pure: no jax, and clock and transport are given. One process leads. It posts a line, the others do what
it says and vote, and the leader posts the next one. A line is written once: whoever waited too long
writes that the talk has stopped in the place of the next line. So the first one to write decides, all
read the same, and no process goes on alone; a process that comes late finds the talk stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

#: Seconds between two looks at whether another process has stopped the talk.
_LOOK_S = 0.5
#: Seconds that reading what is known to be written may take.
_READ_S = 10.0

_GO, _STOP = "go ", "stop "


class Transport(Protocol):
    """Texts under keys that all processes see, each written once."""

    def put(self, key: str, text: str) -> bool:
        """Writes unless the key is taken; returns whether it wrote."""

    def get(self, key: str, wait_s: float) -> str | None:
        """What stands under a key, None if nothing came in time."""

    def drop(self, prefix: str) -> None:
        """Forgets all keys that begin so."""


class Stopped(BaseException):
    """The processes can't agree. No `Exception`: what contains the failure of a plan must let it pass."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Talk:
    """One process's part in one conversation.

    Args:
        transport: how texts travel.
        name: of the conversation; the same in all processes, and used once.
        ranks: of the processes that take part; the lowest leads.
        own: the rank of this process.
        clock: seconds, ever rising.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        ranks: Sequence[int],
        own: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport, self._name, self._clock = transport, name, clock
        self._own, self._others = own, sorted(set(ranks) - {own})
        self.leads = own == min([own, *self._others])
        self._step = 0

    def post(self, text: str) -> None:
        """As the leader: the next line.

        Raises:
            Stopped: another process stopped the talk before.
        """
        self._step += 1
        if not self._transport.put(self._line(self._step), _GO + text):
            self._read_stop(self._step, _READ_S)
            raise Stopped("two processes lead the same talk")

    def gather(self, wait_s: float) -> dict[int, str]:
        """As the leader: the others' votes on the last line (before the first: that they are here).

        Raises:
            Stopped: some vote did not come in time, or another process stopped the talk.
        """
        end = self._clock() + wait_s
        votes = {rank: self._vote_of(rank, end) for rank in self._others}
        self._transport.drop(f"{self._name}/{self._step}/")  # all have read it; a program may tune for hours
        return votes

    def vote(self, text: str) -> None:
        """As a follower: the answer to the last line (before the first: that this process is here)."""
        self._transport.put(f"{self._name}/{self._step}/vote {self._own}", text)

    def next(self, wait_s: float) -> str:
        """As a follower: the next line.

        Raises:
            Stopped: it did not come in time, or the talk was stopped.
        """
        self._step += 1
        line = self._transport.get(self._line(self._step), wait_s)
        if line is None:
            reason = f"process {self._own} waited {wait_s:.3g} s for the process that decides"
            if self._transport.put(self._line(self._step), _STOP + reason):
                raise Stopped(reason)
            line = self._transport.get(self._line(self._step), _READ_S) or f"{_STOP}{reason}"
        if line.startswith(_STOP):
            raise Stopped(line.removeprefix(_STOP))
        return line.removeprefix(_GO)

    def stop(self, reason: str) -> None:
        """Ends the talk in the place of the next line, unless that is written already."""
        self._transport.put(self._line(self._step + 1), _STOP + reason)

    def _line(self, step: int) -> str:
        return f"{self._name}/{step}/line"

    def _vote_of(self, rank: int, end: float) -> str:
        key = f"{self._name}/{self._step}/vote {rank}"
        while True:
            left_s = end - self._clock()
            vote = self._transport.get(key, max(0.0, min(_LOOK_S, left_s)))
            if vote is not None:
                return vote
            self._read_stop(self._step + 1, 0.0)
            if left_s <= 0:
                reason = f"process {rank} did not answer in time"
                self.stop(reason)
                self._read_stop(self._step + 1, _READ_S)
                raise Stopped(reason)

    def _read_stop(self, step: int, wait_s: float) -> None:
        """Raises if somebody stopped the talk at this step."""
        line = self._transport.get(self._line(step), wait_s)
        if line is not None and line.startswith(_STOP):
            raise Stopped(line.removeprefix(_STOP))


def slowest(talk: Talk, seconds: float, wait_s: float) -> float:
    """The largest of all processes' seconds, the same in all of them.

    Raises:
        Stopped: some process did not take part in time.
    """
    if talk.leads:
        votes = talk.gather(wait_s)
        found = max(seconds, *(float(v) for v in votes.values()))
        talk.post(repr(found))
        return found
    talk.vote(repr(seconds))
    return float(talk.next(2 * wait_s))
