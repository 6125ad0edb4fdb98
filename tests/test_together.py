"""Several processes that agree or all give up: the talk, trials in lockstep, and decisions, on a fake transport."""

import json
import threading
import time

import pytest

from autoloop import _lockstep, _together
from autoloop._plan import Plan
from autoloop._records import Status, Trial
from autoloop._together import Stopped, Talk

WRITTEN, OTHER = Plan(), Plan.parse("0=inline")


class Board:
    """A transport within one process; waits end at once unless `wait_s` says how long they may really take."""

    def __init__(self, wait_s=5.0):
        self.texts, self.changed, self.wait_s = {}, threading.Condition(), wait_s

    def put(self, key, text):
        with self.changed:
            wrote = self.texts.setdefault(key, text) is text
            self.changed.notify_all()
            return wrote

    def get(self, key, wait_s):
        with self.changed:
            self.changed.wait_for(lambda: key in self.texts, min(wait_s, self.wait_s))
            return self.texts.get(key)

    def drop(self, prefix):
        with self.changed:
            for key in [key for key in self.texts if key.startswith(prefix)]:
                del self.texts[key]


def at_once(*parts):
    """Results of functions that run in threads of their own; what one raises is its result."""
    found = [None] * len(parts)

    def run(number, part):
        try:
            found[number] = part()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def talks(board, count=2):
    return [Talk(board, "t", range(count), own) for own in range(count)]


class Impatient:
    """A clock on which any time to wait is over at the second look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1000.0
        return self.now


def reasons(found):
    assert all(isinstance(one, Stopped) for one in found), found
    return {one.reason for one in found}


# ------------------------------------------------ the talk


@pytest.mark.parametrize("count", [1, 2, 4])
def test_lines_reach_all_and_votes_come_back(count):
    leader, *others = talks(Board(), count)

    def lead():
        here = leader.gather(60)
        leader.post("do it")
        done = leader.gather(60)
        leader.post("end")
        return here, done

    def follow(talk, rank):
        talk.vote(f"here {rank}")
        first = talk.next(60)
        talk.vote(f"did {rank}")
        return first, talk.next(60)

    (here, done), *read = at_once(lead, *(lambda t=t, r=r: follow(t, r) for r, t in enumerate(others, 1)))
    ranks = range(1, count)
    assert here == {rank: f"here {rank}" for rank in ranks}
    assert done == {rank: f"did {rank}" for rank in ranks}
    assert read == [("do it", "end")] * (count - 1)


def test_the_lowest_rank_leads_and_the_others_follow():
    board = Board()
    assert [Talk(board, "t", [3, 1, 2], own).leads for own in (1, 2, 3)] == [True, False, False]


def test_what_was_said_is_forgotten_while_the_talk_goes_on():
    board = Board()
    leader, follower = talks(board)

    def lead():
        leader.gather(60)
        for number in range(50):
            leader.post(str(number))
            leader.gather(60)

    def follow():
        follower.vote("here")
        for _ in range(50):
            follower.vote(follower.next(60))

    at_once(lead, follow)
    assert board.texts == {}


def test_a_process_that_does_not_come_stops_the_talk_and_finds_it_stopped():
    board = Board(wait_s=0.0)
    leader, follower = Talk(board, "t", range(2), 0, Impatient()), Talk(board, "t", range(2), 1)
    with pytest.raises(Stopped, match="process 1 did not answer in time"):
        leader.gather(30)
    follower.vote("here at last")
    with pytest.raises(Stopped, match="process 1 did not answer in time"):
        follower.next(30)


def test_a_leader_that_does_not_come_finds_the_talk_stopped():
    board = Board(wait_s=0.0)
    leader, follower = talks(board)
    follower.vote("here")
    with pytest.raises(Stopped, match="process 1 waited 30 s for the process that decides"):
        follower.next(30)
    leader.gather(30)
    with pytest.raises(Stopped, match="process 1 waited 30 s"):
        leader.post("do it")


def test_a_line_that_was_written_in_time_counts_for_one_who_stopped_waiting():
    # The line arrives between the end of the wait and the try to stop: the first writer decides.
    class Late(Board):
        def get(self, key, wait_s):
            if wait_s == 30 and key.endswith("line"):
                self.put(key, "go do it")
                return None
            return super().get(key, wait_s)

    _, follower = talks(Late())
    assert follower.next(30) == "do it"


def test_a_process_that_gives_up_is_heard_while_the_leader_waits_for_its_vote():
    board = Board()
    leader, follower = talks(board)

    def lead():
        leader.gather(60)
        leader.post("do it")
        leader.gather(60)

    def follow():
        follower.vote("here")
        follower.next(60)
        follower.stop("no more memory")
        raise Stopped("no more memory")

    start = time.monotonic()
    assert reasons(at_once(lead, follow)) == {"no more memory"}
    assert time.monotonic() - start < 30


def test_the_third_process_learns_that_the_second_did_not_come():
    board = Board(wait_s=0.2)
    leader, _, third = talks(board, 3)

    def follow():
        third.vote("here")
        third.next(60)

    found = at_once(lambda: leader.gather(0.1), follow)
    assert len(reasons(found)) == 1


def test_two_leaders_of_one_talk_are_an_error():
    board = Board()
    first, second = Talk(board, "t", [0, 1], 0), Talk(board, "t", [0, 1], 0)
    first.post("a")
    with pytest.raises(Stopped, match="two processes lead the same talk"):
        second.post("b")


def test_stopping_is_no_ordinary_exception():
    # Whatever contains the failure of a plan must not take it for one.
    assert not issubclass(Stopped, Exception)


@pytest.mark.parametrize("seconds", [(3.0, 1.0, 2.0), (1.0, 2.0, 3.0)])
def test_the_slowest_is_the_same_everywhere(seconds):
    parts = zip(talks(Board(), 3), seconds, strict=True)
    found = at_once(*(lambda t=t, s=s: _together.slowest(t, s, 60) for t, s in parts))
    assert found == [3.0, 3.0, 3.0]


def test_the_slowest_is_not_told_where_one_is_missing():
    leader, _, third = talks(Board(wait_s=0.1), 3)
    reasons(at_once(lambda: _together.slowest(leader, 1.0, 0.1), lambda: _together.slowest(third, 1.0, 0.1)))


# ------------------------------------------------ trials in lockstep


class Runner:
    """What a process does with plans, written down; and how it fares."""

    def __init__(self, seconds, **fates):
        self.done, self.seconds, self.fates = [], seconds, fates

    def lower(self, plan):
        self.done.append(("lower", str(plan)))

    def build(self, plan):
        self.done.append(("build", str(plan)))
        trial = Trial(str(plan), trace_s=self.seconds, compile_s=2 * self.seconds, peak_bytes=10)
        return self.fate("build", trial)

    def first(self, plan):
        self.done.append(("first", str(plan)))
        return self.fate("first", Trial(str(plan), max_error=self.seconds / 100)), self.seconds

    def sample(self, plan, calls):
        self.done.append(("sample", str(plan), calls))
        return self.fate("sample", self.seconds)

    def let_go(self, plan):
        self.done.append(("let go", str(plan)))

    def fate(self, what, default):
        found = self.fates.get(what, default)
        if isinstance(found, Exception):
            raise found
        return found


def in_step(lead, runners, short=(5.0, 6.0)):
    """(what the leader's part returned, what the followers did), the followers following to the end."""
    board = Board()
    leader, *others = talks(board, 1 + len(runners))
    crew = _lockstep.Leader(leader, 60)

    def run():
        leader.gather(60)
        result = lead(crew)
        leader.post(json.dumps({"do": "end"}))
        return result

    def follow(talk, runner, seconds):
        talk.vote("here")
        follower = _lockstep.Follower(talk, 60, lambda shortened: runner, lambda share: seconds * share)
        return follower.until("end")

    pairs = zip(others, runners, short, strict=False)
    found = at_once(run, *(lambda t=t, r=r, s=s: follow(t, r, s) for t, r, s in pairs))
    assert found[1:] == [{"do": "end"}] * len(runners), found
    return found[0]


def all_of(crew, own, plan=OTHER):
    crew.begin(shortened=False)
    built = crew.build(plan, lambda: own.build(plan))
    first = crew.first(plan, lambda: own.first(plan))
    return built, first, crew.sample(plan, 3, lambda calls: own.sample(plan, calls))


@pytest.mark.parametrize(("own_s", "theirs_s"), [(0.5, 0.1), (0.1, 0.5)])
def test_the_slowest_process_counts(own_s, theirs_s):
    own, theirs = Runner(own_s), Runner(theirs_s)
    built, (ran, first_s), sample_s = in_step(lambda crew: all_of(crew, own), [theirs, Runner(0.2)])
    assert (built.trace_s, built.compile_s, built.peak_bytes) == (0.5, 1.0, 10)
    assert (first_s, sample_s, ran.max_error) == (0.5, 0.5, 0.005)
    assert built.ok
    assert ran.ok


def test_all_do_the_same_in_the_same_order():
    own, theirs = Runner(0.5), Runner(0.1)
    in_step(lambda crew: all_of(crew, own), [theirs])
    assert theirs.done == [("lower", "0=inline"), *own.done]


def test_short_calls_are_repeated_as_often_everywhere():
    own, theirs = Runner(0.001), Runner(0.002)

    def lead(crew):
        crew.begin(shortened=False)
        return [crew.sample(OTHER, 3, lambda calls: own.sample(OTHER, calls)) for _ in range(2)]

    assert in_step(lead, [theirs]) == [0.002, 0.002]
    assert theirs.done == own.done
    assert [calls for *_, calls in own.done] == [3, 10]  # 20 ms at least, of the slowest


@pytest.mark.parametrize(
    ("fates", "stage", "status", "reason"),
    [
        ({"build": Trial("0=inline", Status.SKIPPED, "too big")}, 0, Status.SKIPPED, "process 1: too big"),
        ({"build": ValueError("no")}, 0, Status.FAILED, "process 1: ValueError: no"),
        ({"first": Trial("0=inline", Status.WRONG, "off")}, 1, Status.WRONG, "process 1: off"),
        ({"first": ValueError("no")}, 1, Status.FAILED, "process 1: ValueError: no"),
    ],
)
def test_what_goes_wrong_in_one_process_is_wrong_in_all(fates, stage, status, reason):
    found = in_step(lambda crew: all_of(crew, Runner(0.1)), [Runner(0.1, **fates), Runner(0.1)])
    trial = found[0] if stage == 0 else found[1][0]
    assert (trial.status, trial.reason) == (status, reason)


def test_a_sample_that_fails_elsewhere_fails_here():
    found = in_step(lambda crew: at_once(lambda: all_of(crew, Runner(0.1))), [Runner(0.1, sample=ValueError("no"))])
    assert isinstance(found[0], RuntimeError)
    assert "another process failed: ValueError: no" in str(found[0])


def test_a_failure_of_the_leaders_own_leaves_all_in_step():
    own, theirs = Runner(0.1, build=ValueError("mine")), Runner(0.1)

    def lead(crew):
        failed = at_once(lambda: all_of(crew, own))
        crew.build(WRITTEN, lambda: Trial("as-written"))
        return failed

    (error,) = in_step(lead, [theirs])
    assert str(error) == "mine"
    assert [plan for what, plan in theirs.done if what == "build"] == ["0=inline", "as-written"]


def test_programs_that_can_not_win_are_freed_everywhere():
    theirs = Runner(0.1)

    def lead(crew):
        all_of(crew, Runner(0.1))
        crew.let_go(OTHER)
        crew.sample(WRITTEN, 1, lambda calls: 0.1)

    in_step(lead, [theirs])
    assert theirs.done[-2:] == [("let go", "0=inline"), ("sample", "as-written", 1)]


def test_shortened_programs_are_timed_by_all():
    assert in_step(lambda crew: crew.time(0.5, lambda: 1.0), [Runner(0.1), Runner(0.1)]) == 3.0
